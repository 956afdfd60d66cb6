package loop

import (
	"testing"
	"time"
)

func TestNaps(t *testing.T) {
	for _, c := range []struct {
		name string
		naps naps
		left time.Duration
		want bool // the loop naps, which changes the estimate
	}{
		{"long batch", naps{overslept: -1}, time.Hour, true},
		{"batch about to end", naps{overslept: -1}, 2 * minNap, true},
		{"too short", naps{overslept: -1}, 2*minNap - 4, false},
		{"too short after oversleep", naps{overslept: minNap}, 3 * minNap, false},
		{"overdue batch", naps{overslept: -1}, -time.Second, false},
		{"busy polling", naps{poll: true, overslept: -1}, time.Hour, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := c.naps
			n.nap(c.left)
			if napped := n != c.naps; napped != c.want {
				t.Errorf("napped %v, want %v", napped, c.want)
			}
		})
	}
}

func TestOversleep(t *testing.T) {
	estimate := time.Duration(0)
	for range 100 {
		estimate = oversleep(estimate, minNap, 10*time.Second)
	}
	if estimate > maxNap {
		t.Errorf("naps take %v longer after stalls, want %v at most: no batch would be napped through", estimate, maxNap)
	}
	for range 100 {
		estimate = oversleep(estimate, maxNap, maxNap+5*time.Microsecond)
	}
	if estimate > 6*time.Microsecond {
		t.Errorf("naps take %v longer after naps that took 5 µs longer", estimate)
	}
}
