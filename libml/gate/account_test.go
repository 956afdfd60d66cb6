package gate

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/control/budget"
)

// framework is able to run batches demoted, or not.
type framework bool

func (f framework) Demotable(int, int) bool { return bool(f) }

// newAccount returns an account at level 2 with these times of batches of 1 and so on.
func newAccount(terms Terms, objective time.Duration, times ...time.Duration) *Account {
	return NewAccount(0, Config{
		Level: 2, Framework: framework(true), Objective: objective, Terms: terms, Times: append([]time.Duration{0}, times...), Size: 1,
	})
}

// The level of a batch is the ordered one, at most that of the process's streams. A batch that the
// framework queues on the slot's own stream keeps that stream's level.
func TestBatchLevel(t *testing.T) {
	for _, c := range []struct {
		framework Demotable
		ordered   budget.Level
		demoted   bool
		want      budget.Level
	}{
		{framework(true), budget.Demoted, false, 3}, {framework(true), 3, false, 3},
		{framework(true), 2, false, 2}, {framework(true), 5, false, 3},
		{framework(true), 2, true, budget.Demoted},
		{framework(false), 2, false, 3}, {nil, 2, false, 3},
	} {
		a := Account{level: 3, framework: c.framework, terms: Terms{Level: c.ordered}}
		if got := a.BatchLevel(0, 1, c.demoted); got != c.want {
			t.Errorf("level %d of a batch with order %d, demoted %v, %+v; want %d", got, c.ordered, c.demoted, c.framework, c.want)
		}
	}
}

// However much work there is, the work within the guarantee is at most the guarantee, the savings and one
// batch.
func TestAccountBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		percent := rapid.Float64Range(0.5, 100).Draw(t, "percent")
		costs := rapid.SliceOfN(rapid.Int64Range(1e4, 1e8), 8, 8).Draw(t, "costs")
		slices.Sort(costs)
		times := make([]time.Duration, len(costs))
		for i, c := range costs {
			times[i] = time.Duration(c)
		}
		const objective = 10 * time.Millisecond
		terms := Terms{Guarantee: percent / 100, Level: 2}
		a, now := newAccount(terms, objective, times...), int64(0)
		var charged, largest time.Duration
		for range rapid.IntRange(1, 100).Draw(t, "batches") {
			limit := rapid.IntRange(1, 8).Draw(t, "limit")
			padded := rapid.IntRange(1, limit).Draw(t, "padded")
			guaranteed, _ := a.Guaranteed(now, terms, limit)
			if !a.begin(now, 0, padded, !guaranteed) {
				charged += a.Cost(padded)
			}
			largest = max(largest, a.Cost(limit))
			now += rapid.Int64Range(0, 1e8).Draw(t, "time")
			capacity := budget.Capacity(percent/100, objective, largest)
			if most := float64(capacity+largest) + percent/100*float64(now) + 1; float64(charged) > most {
				t.Fatalf("charged %v in %v at %v %%, want at most %v", charged, time.Duration(now), percent, time.Duration(most))
			}
		}
	})
}

// Times only decrease: to the time of a batch, and to the rate of successive batches of one kind
// without a gap. The cost leaves out what a batch
// leaves to other processes.
func TestBatchCost(t *testing.T) {
	const ms = int64(time.Millisecond)
	a := newAccount(Terms{}, 0, 3*time.Millisecond, 0, 0, 0, 0, 0, 0, 0)
	want := func(when string, padded int, cost float64) {
		t.Helper()
		if got := a.Time(padded); got != time.Duration(cost*float64(ms)) {
			t.Errorf("%s a batch of %d takes %v, want %v ms", when, padded, got, cost)
		}
	}
	line := func(when string, fixed, each float64) {
		t.Helper()
		f, e := a.fixed.Load(), a.perImage.Load()
		if math.Abs(float64(f)-fixed*float64(ms)) > 10 || math.Abs(float64(e)-each*float64(ms)) > 10 {
			t.Errorf("%s a batch of n costs %v + n * %v, want %v and %v ms", when, time.Duration(f), time.Duration(e), fixed, each)
		}
	}
	want("measured", 1, 3)
	want("not measured", 4, 12)
	line("one size", 0, 3)
	end := func(began, ended float64, demoted bool) {
		a.End(4, demoted, int64(began*float64(ms)), int64(ended*float64(ms)))
	}
	end(0, 5, false)
	want("served", 4, 5)
	want("not measured", 8, 10)
	fixed := 3 - 2.0/3
	line("two sizes", fixedTimeUse*fixed, 2.0/3)
	if got, want := a.Cost(4), fixedTimeUse*fixed+4*2.0/3; math.Abs(got.Seconds()*1000-want) > 1e-3 {
		t.Errorf("a batch of 4 costs %v, want %v ms", got, want)
	}
	end(10, 18, false)
	want("slow", 4, 5)
	for i := range seriesBatches + 1 { // two in flight, one ends every 2 ms
		end(float64(100+2*i-4), float64(100+2*i), false)
	}
	want("two in flight", 4, 2)
	want("smaller than two in flight", 1, 2)
	for i := range seriesBatches + 1 { // of two kinds
		end(float64(300+i-2), float64(300+i), i%2 == 0)
	}
	want("mixed", 4, 2)
}

// The cost of a size that was added while the process served is at most the shortest time of a
// batch of it, or of a larger size. Here batches overlap and their sizes vary.
func TestAddedSizeCost(t *testing.T) {
	const ms = int64(time.Millisecond)
	sizes := []int{1, 2, 4, 8, 16, 32}
	rapid.Check(t, func(t *rapid.T) {
		first := time.Duration(rapid.Int64Range(ms/10, 10*ms).Draw(t, "batch of 1"))
		times := make([]time.Duration, 32)
		times[0] = first
		a := newAccount(Terms{}, 0, times...)

		shortest := map[int]time.Duration{}
		began, ended := int64(0), int64(0)
		for range rapid.IntRange(1, 50).Draw(t, "batches") {
			n := rapid.SampledFrom(sizes[1:]).Draw(t, "size")
			ended = max(ended, began) + rapid.Int64Range(1, 40*ms).Draw(t, "ends after the one before by")
			took := time.Duration(ended - began)
			a.End(n, false, began, ended)
			began = ended - rapid.Int64Range(1, int64(took)).Draw(t, "the next begins before the end by")

			if known := shortest[n]; known == 0 || took < known {
				shortest[n] = took
			}
			for _, n := range sizes {
				for larger, took := range shortest {
					if n <= larger && a.Cost(n) > took {
						t.Fatalf("a batch of %d costs %v, one of %d took %v", n, a.Cost(n), larger, took)
					}
				}
			}
		}
	})
}
