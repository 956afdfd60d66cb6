package guarantee

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCapBatches(t *testing.T) {
	quick := Function{Objective: 10 * ms, Rate: 100, Cost: ms, Batch: 1, LongestBatch: ms}
	greedy := Function{Objective: 100 * ms, Rate: 1000, Fixed: 2 * ms, Cost: ms, Batch: 32, LongestBatch: 34 * ms}
	steady := Function{Objective: 100 * ms, Rate: 200, Fixed: 2 * ms, Cost: ms, Batch: 7, LongestBatch: 34 * ms}
	unknown := Function{Objective: 10 * ms}
	for _, c := range []struct {
		name       string
		functions  []Function
		longest    []time.Duration
		infeasible string // of the first
	}{
		{"none", nil, nil, ""},
		{"alone", []Function{greedy}, []time.Duration{0}, "it needs 100 % of the device's time, and its guarantee is 90 %"},
		// quick has 10 ms, of which its own batch takes 1. greedy has 100, less 34 and 10 + 1 of quick.
		{"a long batch blocks a short objective", []Function{quick, greedy}, []time.Duration{100*ms - 34*ms - 16500*time.Microsecond, 9 * ms}, ""},
		{"a function within its guarantee keeps its batches", []Function{quick, steady}, []time.Duration{0, 9 * ms}, ""},
		{"an unknown cost", []Function{unknown, greedy}, []time.Duration{100 * ms / 3, 0}, ""},
		{
			"no batch is short enough", []Function{quick, {Objective: 100 * ms, Rate: 10, Cost: 20 * ms, Batch: 1, LongestBatch: 20 * ms}},
			[]time.Duration{0, 20 * ms}, "one that already runs 20ms; the objective allows 10ms",
		},
		{
			"a third of the objective", []Function{{Objective: 10 * ms, Rate: 1, Cost: 8 * ms, Batch: 1, LongestBatch: 8 * ms}, greedy},
			[]time.Duration{0, 10 * ms / 3}, "one batch takes 8ms",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			actions := Decide(c.functions)
			CapBatches(c.functions, actions)
			for i, want := range c.longest {
				if got := actions[i].LongestBatch; want > 0 && (got < want-ms/2 || got > want+ms/2) || want == 0 && got > 0 && got < c.functions[i].batchCost() {
					t.Errorf("function %d: a batch may take %v, want %v", i, got, want)
				}
			}
			if len(actions) > 0 {
				if got := actions[0].Infeasible; (got == "") != (c.infeasible == "") || !strings.Contains(got, c.infeasible) {
					t.Errorf("infeasible: %q, want %q", got, c.infeasible)
				}
			}
		})
	}
}

// No cap keeps a function within its guarantee from the batches that its need was computed with. No other
// cap is below a third of the shortest objective of another function.
func TestCapBatchesBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		functions := make([]Function, rapid.IntRange(1, 8).Draw(t, "functions"))
		for i := range functions {
			f := &functions[i]
			f.Objective = time.Duration(rapid.Int64Range(1e6, 1e9).Draw(t, "objective"))
			f.Rate = rapid.Float64Range(0, 5000).Draw(t, "rate")
			f.Cost = time.Duration(rapid.Int64Range(0, 1e7).Draw(t, "cost"))
			f.Fixed = time.Duration(rapid.Int64Range(0, 1e7).Draw(t, "fixed"))
			f.Batch = rapid.Float64Range(1, 64).Draw(t, "batch")
		}
		actions := Decide(functions)
		CapBatches(functions, actions)
		for i := range functions {
			f, a := &functions[i], &actions[i]
			shortest := time.Duration(0)
			for j := range functions {
				if o := functions[j]; j != i && o.costKnown() && (shortest == 0 || o.Objective < shortest) {
					shortest = o.Objective
				}
			}
			switch {
			case shortest == 0 && a.LongestBatch != 0:
				t.Fatalf("function %d: a batch may take %v although it blocks no other", i, a.LongestBatch)
			case shortest != 0 && a.LongestBatch < shortest/3:
				t.Fatalf("function %d: a batch may take %v, less than a third of %v", i, a.LongestBatch, shortest)
			case a.LongestBatch != 0 && a.Kept && a.LongestBatch < f.batchCost():
				t.Fatalf("function %d: a batch may take %v, and its need assumes %v", i, a.LongestBatch, f.batchCost())
			}
			if n := f.Requests(a.LongestBatch); a.LongestBatch > 0 && f.Cost > 0 && n < 1 {
				t.Fatalf("function %d: %d requests in a batch", i, n)
			}
		}
	})
}

func TestRequests(t *testing.T) {
	f := Function{Fixed: 2 * ms, Cost: ms}
	for longest, want := range map[time.Duration]int{0: 0, ms: 1, 3 * ms: 1, 5*ms + ms/2: 3} {
		if got := f.Requests(longest); got != want {
			t.Errorf("%d requests in a batch of %v, want %d", got, longest, want)
		}
	}
	f.Cost = 0
	for longest, want := range map[time.Duration]int{ms: 1, 2 * ms: 0, 3 * ms: 0} {
		if got := f.Requests(longest); got != want {
			t.Errorf("%d requests in a batch of %v if all batches take 2 ms, want %d", got, longest, want)
		}
	}
	if got := (&Function{}).Requests(ms); got != 0 {
		t.Errorf("%d requests in a batch of unknown cost, want no limit", got)
	}
}
