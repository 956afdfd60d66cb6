package gslice

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func demandsOf(percents ...float64) []shareDemand {
	var ds []shareDemand
	for i, p := range percents {
		ds = append(ds, shareDemand{ID: ID{IF: fmt.Sprintf("if%02d", i)}, Percent: p})
	}
	return ds
}

func percents(gs []grant) []float64 {
	var ps []float64
	for _, g := range gs {
		ps = append(ps, g.Percent)
	}
	return ps
}

func sum(ps []float64) float64 {
	total := 0.0
	for _, p := range ps {
		total += p
	}
	return total
}

func TestAllocate(t *testing.T) {
	for _, c := range []struct {
		demands, want []float64
	}{
		{nil, nil},
		{[]float64{30, 40, 90}, []float64{30, 30, 40}},
		{[]float64{90, 30, 40}, []float64{40, 30, 30}},
		{[]float64{30, 100}, []float64{30, 70}},
		{[]float64{8, 60}, []float64{8, 60}},
		{[]float64{100}, []float64{100}},
		{[]float64{100, 100}, []float64{50, 50}},
		{[]float64{60, 90}, []float64{40, 60}},
		{[]float64{50, 50}, []float64{50, 50}},
		{[]float64{10, 20, 60, 80}, []float64{10, 20, 30, 40}},
		{[]float64{250, -3}, []float64{95, 5}},
	} {
		if got := percents(defaultConfig().divide(100, demandsOf(c.demands...))); !slices.Equal(got, c.want) {
			t.Errorf("Allocate(%v) = %v, want %v", c.demands, got, c.want)
		}
	}
}

func TestSpreadSlack(t *testing.T) {
	c := defaultConfig()
	c.SpreadSlack = true
	grants := c.divide(100, demandsOf(10, 30))
	if got := percents(grants); !slices.Equal(got, []float64{25, 75}) {
		t.Errorf("shares %v, want 25 and 75: slack of 60 as 1 to 3", got)
	}
	if grants[1].Slack != 45 {
		t.Errorf("slack %v of the second, want 45", grants[1].Slack)
	}
	if got := percents(c.divide(100, demandsOf(30, 40, 90))); !slices.Equal(got, []float64{30, 30, 40}) {
		t.Errorf("shares %v where there is no slack", got)
	}
}

func TestAllocateMinimum(t *testing.T) {
	demands := make([]float64, 40) // 40 times 5 %
	demands[7] = 90
	for i, p := range percents(defaultConfig().divide(100, demandsOf(demands...))) {
		if p < 2.4 || p > 2.5 {
			t.Errorf("IF %d gets %v, want 100/40 but for the grain", i, p)
		}
	}
}

func drawDemands(t *rapid.T) []shareDemand {
	// IDs of one IF and of several, demands that tie and that are out of range.
	n := rapid.IntRange(0, 60).Draw(t, "n")
	var ds []shareDemand
	for i := range n {
		p := rapid.OneOf(
			rapid.Float64Range(-10, 200),
			rapid.SampledFrom([]float64{5, 30, 100, 100.0 / 3}),
		).Draw(t, "percent")
		ds = append(ds, shareDemand{ID: ID{IF: string(rune('a' + i%5)), Instance: i / 5}, Percent: p})
	}
	return ds
}

func TestAllocateProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := defaultConfig()
		c.MinimumPercent = rapid.Float64Range(0.1, 20).Draw(t, "minimum")
		c.SpreadSlack = rapid.Bool().Draw(t, "spread slack")
		ds := drawDemands(t)
		grants := c.divide(100, ds)

		if total := sum(percents(grants)); total > 100 {
			t.Fatalf("%.20f %% in sum", total)
		}
		other := rapid.Permutation(ds).Draw(t, "order")
		if again := c.divide(100, other); !slices.Equal(grants, again) {
			t.Fatalf("%v, in another order %v", grants, again)
		}
		demand := map[ID]float64{}
		short := false
		for _, d := range ds {
			demand[d.ID] = c.clamp(d.Percent)
		}
		for _, g := range grants {
			if g.Percent-g.Slack > demand[g.ID] || g.Slack < 0 || !c.SpreadSlack && g.Slack != 0 {
				t.Fatalf("%+v beyond its demand of %v", g, demand[g.ID])
			}
			if least := min(c.MinimumPercent, 100/float64(len(ds))); g.Percent < least-quantum {
				t.Fatalf("%+v below %v", g, least)
			}
			if g.Percent != floorTo(g.Percent) {
				t.Fatalf("%+v is no multiple of the quantum", g)
			}
			short = short || g.Percent < demand[g.ID]-quantum
		}
		// Fair: a larger demand never gets less, and no grant is below its demand while
		// anything is left.
		for _, a := range grants {
			for _, b := range grants {
				if demand[a.ID] < demand[b.ID] && a.Percent > b.Percent+quantum {
					t.Fatalf("demand %v gets %v, demand %v gets %v", demand[a.ID], a.Percent, demand[b.ID], b.Percent)
				}
			}
		}
		if left := 100 - sum(percents(grants)); short && left > quantum*float64(len(ds)) {
			t.Fatalf("%v %% are left and somebody is short", left)
		}
	})
}

func TestAllocateSteps(t *testing.T) {
	c := defaultConfig()
	steps := []float64{8, 11, 24, 26, 50, 90, 100}
	for _, x := range []struct {
		demands, want []float64
		slack         bool
	}{
		{[]float64{30}, []float64{50}, false},                 // up: there is room
		{[]float64{100}, []float64{100}, false},               // a step already
		{[]float64{5}, []float64{8}, false},                   // below the first
		{[]float64{40, 60}, []float64{50, 50}, false},         // the smaller one up, the other down
		{[]float64{30, 40, 90}, []float64{26, 26, 26}, false}, // up would be too much for any
		{[]float64{10, 10}, []float64{11, 11}, false},
		{[]float64{10, 60}, []float64{24, 50}, true}, // slack is 14 and 86: the first up
	} {
		c.SpreadSlack = x.slack
		var ds []shareDemand
		for i, p := range x.demands {
			ds = append(ds, shareDemand{ID: ID{IF: string(rune('a' + i))}, Percent: p, Steps: steps})
		}
		if got := percents(c.divide(100, ds)); !slices.Equal(got, x.want) {
			t.Errorf("demands %v: %v, want %v", x.demands, got, x.want)
		}
	}
}

func TestStepsTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := defaultConfig()
		c.SpreadSlack = rapid.Bool().Draw(t, "spread slack")
		ds := drawDemands(t)
		steps, first, free := map[ID][]float64{}, 0.0, false
		for i := range ds {
			ds[i].Steps = [][]float64{nil, {8, 11, 24, 26, 47.5, 50, 90, 100}, {24, 26, 50, 90, 100}, {100}}[rapid.IntRange(0, 3).Draw(t, "steps")]
			if steps[ds[i].ID] = ds[i].Steps; ds[i].Steps == nil {
				free = true // what it is granted depends on the others
			} else {
				first += ds[i].Steps[0]
			}
		}
		grants := c.divide(100, ds)
		if total := sum(percents(grants)); total > 100 {
			t.Fatalf("%.20f %% in sum", total)
		}
		if first > 100 || free {
			return
		}
		for _, g := range grants {
			if !slices.Contains(steps[g.ID], g.Percent) {
				t.Fatalf("%+v is none of %v", g, steps[g.ID])
			}
		}
	})
}
