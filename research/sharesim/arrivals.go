package sharesim

import (
	"math"
	"math/rand/v2"
	"time"
)

// Phase is a rate that holds from a time on.
type Phase struct {
	At   time.Duration
	Rate float64 // requests per second; 0: silence
}

// arrivals is a Poisson stream whose rate changes.
type arrivals struct {
	phases []Phase
	random *rand.Rand
	at     float64 // of the next request, in nanoseconds
	phase  int     // that at lies in
}

func newArrivals(f Function, random *rand.Rand) arrivals {
	a := arrivals{phases: f.Phases, random: random}
	a.at = float64(a.phases[0].At)
	a.advance()
	return a
}

// end returns when a phase ends.
func (a *arrivals) end() float64 {
	if a.phase+1 == len(a.phases) {
		return math.Inf(1)
	}
	return float64(a.phases[a.phase+1].At)
}

func (a *arrivals) advance() {
	work := a.random.ExpFloat64() * float64(time.Second)
	for {
		rate := a.phases[a.phase].Rate
		if next := a.at + work/rate; rate > 0 && next <= a.end() {
			a.at = next
			return
		}
		if math.IsInf(a.end(), 1) {
			a.at = math.Inf(1)
			return
		}
		work -= (a.end() - a.at) * rate
		a.at = a.end()
		a.phase++
	}
}

// next returns when the next request comes.
func (a *arrivals) next() int64 {
	if a.at > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return int64(math.Ceil(a.at))
}
