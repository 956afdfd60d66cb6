package observe

import (
	"slices"
	"time"

	"github.com/penstock/penstock/control"
)

// Swaps counts the hand-overs of a function, and the moves to other multiprocessors. It keeps the
// idle times of the last ones for the status page; the histogram has all of them. The control loop
// owns it.
type Swaps struct {
	Count     uint64
	kept      []time.Duration // idle times, newest last
	maxIdle   time.Duration
	idleCount uint64
}

// keptIdleTimes bounds the sample for the percentiles of the status page.
const keptIdleTimes = 1024

// AddIdle adds the idle time of a hand-over.
func (s *Swaps) AddIdle(d time.Duration) {
	if len(s.kept) == keptIdleTimes {
		s.kept = slices.Delete(s.kept, 0, 1)
	}
	s.kept = append(s.kept, d)
	s.maxIdle = max(s.maxIdle, d)
	s.idleCount++
}

// Idle returns the newest idle time, percentiles of those kept, and the maximum ever.
func (s *Swaps) Idle() control.IdleMicros {
	if s.idleCount == 0 {
		return control.IdleMicros{}
	}
	sorted := slices.Sorted(slices.Values(s.kept))
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	return control.IdleMicros{
		Count: s.idleCount,
		Last:  micros(s.kept[len(s.kept)-1]),
		P50:   micros(sorted[len(sorted)/2]),
		P99:   micros(sorted[len(sorted)*99/100]),
		Max:   micros(s.maxIdle),
	}
}
