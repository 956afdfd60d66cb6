package residency

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestArrivals(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tests := map[string]struct {
		interval func() time.Duration
		want     time.Duration
	}{
		"exact":  {func() time.Duration { return 40 * ms }, 40 * ms},
		"jitter": {func() time.Duration { return 40*ms + time.Duration(random.Int64N(int64(4*ms))) - 2*ms }, 40 * ms},
		"random": {func() time.Duration { return time.Duration(random.ExpFloat64() * float64(40*ms)) }, 0},
		"two cameras": {func() func() time.Duration {
			odd := false
			return func() time.Duration {
				if odd = !odd; odd {
					return 10 * ms
				}
				return 30 * ms
			}
		}(), 0},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			var a Arrivals
			now, periodic := at(1), 0
			for range 1000 {
				now += int64(c.interval())
				a = a.Observe(now)
				next, period := a.Expected()
				if period == 0 {
					continue
				}
				periodic++
				if off := next - now - int64(period); off != 0 {
					t.Fatalf("expects the next request %v after the period", time.Duration(off))
				}
				if d := period - c.want; c.want != 0 && (d < -2*ms || d > 2*ms) {
					t.Fatalf("period %v, want about %v", period, c.want)
				}
			}
			if c.want != 0 && periodic < 900 {
				t.Errorf("periodic after %d of 1000 requests, want nearly all", periodic)
			}
			if c.want == 0 && periodic > 100 {
				t.Errorf("periodic after %d of 1000 requests, want hardly any", periodic)
			}
		})
	}
}

// TestArrivalsStop stops a periodic stream. After its next request it is no stream any more.
func TestArrivalsStop(t *testing.T) {
	var a Arrivals
	for i := range int64(10) {
		a = a.Observe(at(100 + 40*i))
	}
	if _, period := a.Expected(); period != 40*ms {
		t.Fatalf("period %v, want 40ms", period)
	}
	a = a.Observe(at(5000))
	if _, period := a.Expected(); period != 0 {
		t.Errorf("period %v after a pause, want none", period)
	}
}
