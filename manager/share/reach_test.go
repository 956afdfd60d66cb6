package share

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestReachIsWhatSharesHaveShown(t *testing.T) {
	type at struct {
		percent, ms float64
		batches     int
	}
	for _, c := range []struct {
		name         string
		tried        []at
		percent      float64
		least, whole float64 // ms
	}{
		{"nothing", nil, 0, 0, 0},
		{"too little", []at{{50, 3, reachEnough - 1}}, 0, 0, 0},
		{"one share: in proportion, perhaps", []at{{50, 3, reachEnough}}, 50, 3, 1.5},
		{"one share, seen twice", []at{{50, 4, 4}, {51, 3, 4}}, 51, 3, 1.53},
		{"the whole device", []at{{100, 3, reachEnough}}, 100, 3, 3},
		{"in proportion", []at{{20, 10, 99}, {50, 4, 99}}, 50, 4, 2},
		{"a share brings nothing, or a tenth", []at{{20, 3, 99}, {50, 3, 99}}, 50, 3, 2.791},
		{"close shares prove little", []at{{20, 3, 99}, {26, 3, 99}}, 26, 3, 1.840},
		{"worse with more: noise", []at{{20, 3, 99}, {50, 3.2, 99}}, 50, 3, 2.791},
		{"a part of it", []at{{16, 8, 99}, {64, 4, 99}}, 64, 4, 3.103},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Reach
			for _, a := range c.tried {
				r.Note(a.percent, a.batches, time.Duration(a.ms*1e6))
			}
			percent, least, whole := r.Best()
			near := func(d time.Duration, ms float64) bool { return math.Abs(d.Seconds()*1e3-ms) < 1e-3 }
			if percent != c.percent || !near(least, c.least) || !near(whole, c.whole) {
				t.Errorf("%v at %v %%, %v with all, want %v ms at %v %% and %v ms", least, percent, whole, c.least, c.percent, c.whole)
			}
		})
	}
}

// What is said of the whole device is never more than it takes, where more of it makes a
// batch quicker by less and less.
func TestReachPromisesNoLessThanTheDevice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fixed := rapid.Float64Range(0, 5).Draw(t, "fixed") // ms that no share shortens
		work := rapid.Float64Range(0.01, 20).Draw(t, "work")
		takes := func(percent float64) time.Duration { return time.Duration((fixed + work*100/percent) * 1e6) }
		var r Reach
		slow := 1 + rapid.SampledFrom([]float64{0, reachDoubt}).Draw(t, "other work")
		for _, percent := range rapid.SliceOfN(rapid.Float64Range(1, 100), 1, 5).Draw(t, "percents") {
			r.Note(percent, reachEnough, time.Duration(rapid.Float64Range(1, slow).Draw(t, "slower")*float64(takes(percent))))
		}
		most := time.Duration(slow*float64(takes(100))) + time.Microsecond
		if _, least, whole := r.Best(); whole > most || whole > least {
			t.Fatalf("%v with all of it, %v at best; it takes %v", whole, least, takes(100))
		}
	})
}
