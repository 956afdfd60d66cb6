package gpu

import (
	"math/rand/v2"
	"testing"
	"time"
)

// waiting simulates a thread that waits for batches. It measures how long the thread
// was awake, and how late it noticed each end. Naps last a little longer than
// requested.
type waiting struct {
	e            estimate
	awake, slept int64
	late         []int64
}

func (w *waiting) batch(took int64, overslept func() int64) {
	now := int64(0)
	for now < took {
		if n := w.e.nap(now); n > 0 {
			n += overslept()
			w.slept += n
			now += n
		} else {
			w.awake++ // one check
			now += 300
			w.awake += 299
		}
	}
	w.late = append(w.late, now-took)
	w.e.add(now)
}

func (w *waiting) fresh() *waiting { return &waiting{e: w.e} }

// A waiting thread sleeps most of the time and notices the end.
func TestEstimateNaps(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	overslept := func() int64 { return 3000 + int64(random.ExpFloat64()*2000) }
	for _, c := range []struct {
		name         string
		took, jitter time.Duration
		busy         float64 // maximum part of the time
	}{
		{"a small model", 300 * time.Microsecond, 3 * time.Microsecond, 0.2},
		{"a large one", 3 * time.Millisecond, 15 * time.Microsecond, 0.04},
		{"a large one beside others", 5 * time.Millisecond, 300 * time.Microsecond, 0.3},
	} {
		w := &waiting{}
		batch := func() { w.batch(int64(c.took)+int64(random.NormFloat64()*float64(c.jitter)), overslept) }
		for range 50 {
			batch()
		}
		w = w.fresh()
		for range 1000 {
			batch()
		}
		if busy := float64(w.awake) / float64(w.awake+w.slept); busy > c.busy {
			t.Errorf("%s: awake for %.2f of the time, want %.2f at most", c.name, busy, c.busy)
		}
		missed := 0
		for _, late := range w.late {
			if late > int64(5*time.Microsecond) {
				missed++
			}
		}
		if missed > len(w.late)/20 {
			t.Errorf("%s: %d of %d ends were seen late", c.name, missed, len(w.late))
		}
	}
}

// Batches may become shorter (a larger share) while the thread sleeps through their
// ends.
func TestEstimateShorter(t *testing.T) {
	w := &waiting{}
	overslept := func() int64 { return 3000 }
	for range 50 {
		w.batch(int64(4*time.Millisecond), overslept)
	}
	for range 50 {
		w.batch(int64(2*time.Millisecond), overslept)
	}
	for range 20 {
		w.late = nil
		w.batch(int64(2*time.Millisecond), overslept)
		if w.late[0] > int64(5*time.Microsecond) {
			t.Fatalf("the end is seen %v late", time.Duration(w.late[0]))
		}
	}
}

// A batch of unknown time is polled at first, and then checked after naps.
func TestEstimateUnknown(t *testing.T) {
	w := &waiting{}
	w.batch(int64(20*time.Millisecond), func() int64 { return 3000 })
	if w.awake > int64(60*time.Microsecond) {
		t.Errorf("awake for %v", time.Duration(w.awake))
	}
	if late := time.Duration(w.late[0]); late > 2*time.Millisecond {
		t.Errorf("the end is seen %v late", late)
	}
}
