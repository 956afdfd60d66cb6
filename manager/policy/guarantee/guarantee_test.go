package guarantee

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/control/budget"
)

const ms = time.Millisecond

func TestDecide(t *testing.T) {
	// A busy function at 10 requests per second of 30 ms needs 0.45 of the device with its
	// margin for bursts.
	busy := Function{Objective: 100 * ms, Rate: 10, Cost: 30 * ms, Batch: 1}
	small := Function{Objective: 10 * ms, Rate: 10, Cost: 2 * ms, Batch: 1} // 0.03
	greedy := Function{Objective: 100 * ms, Rate: 100, Cost: 30 * ms, Batch: 1}
	idle := Function{Objective: 20 * ms, Cost: 2 * ms, Batch: 1} // one batch per objective: 0.1
	unknown := Function{Objective: 20 * ms}
	byHand := Function{Objective: 20 * ms, Rate: 10, Cost: ms, SharePercent: 40}
	// 800 requests per second in batches of 8 of 3 ms need 0.3, times a margin of 1.209.
	eights := 0.3 * (1.05 + 0.45/math.Sqrt(8))
	for _, c := range []struct {
		name      string
		functions []Function
		want      []float64
	}{
		{"none", nil, nil},
		{"alone", []Function{small}, []float64{0.9}},
		{"batches", []Function{{Objective: 20 * ms, Rate: 800, Fixed: ms, Cost: ms / 4, Batch: 8}, greedy}, []float64{eights, 0.9 - eights}},
		{"batches of any size take equally long", []Function{{Objective: 20 * ms, Rate: 800, Fixed: 3 * ms, Batch: 8}, greedy}, []float64{eights, 0.9 - eights}},
		{"rest is divided equally", []Function{small, busy}, []float64{0.03 + 0.21, 0.45 + 0.21}},
		{"greedy gets the rest", []Function{small, greedy, busy}, []float64{0.03, 0.42, 0.45}},
		{"as many as possible are kept", []Function{busy, busy, busy}, []float64{0.45, 0.45, 0}},
		{"the rest of those that do not fit", []Function{busy, greedy, small, greedy}, []float64{0.45, 0.21, 0.03, 0.21}},
		{"priority before need", []Function{small, {Objective: 100 * ms, Rate: 60, Cost: 10 * ms, Batch: 1, Priority: 1}}, []float64{0, 0.9}},
		{"priority does not help what exceeds the device", []Function{small, {Objective: 100 * ms, Rate: 100, Cost: 30 * ms, Batch: 1, Priority: 9}}, []float64{0.03, 0.87}},
		{"a priority that is kept", []Function{small, busy, {Objective: 100 * ms, Rate: 12, Cost: 30 * ms, Batch: 1, Priority: 1}}, []float64{0.03, 0.33, 0.54}},
		{"two greedy", []Function{greedy, small, greedy}, []float64{0.435, 0.03, 0.435}},
		{"idle keeps a batch per objective", []Function{idle, greedy}, []float64{0.1, 0.8}},
		{"unknown takes an equal part", []Function{unknown, greedy}, []float64{0.45, 0.45}},
		{"by hand", []Function{byHand, greedy}, []float64{0.4, 0.5}},
		{"by hand only", []Function{byHand}, []float64{0.4}},
		{"nothing left", []Function{{Objective: ms, SharePercent: 100}, greedy}, []float64{1, 0}},
	} {
		var got []float64
		for _, a := range Decide(c.functions) {
			got = append(got, a.Guarantee)
		}
		if !slices.EqualFunc(got, c.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestWorker(t *testing.T) {
	fast := Function{Objective: 10 * ms, Rate: 30, Cost: 2 * ms, Batch: 1}
	slow := Function{Objective: 100 * ms, Rate: 10, Fixed: 4 * ms, Cost: 2 * ms, Batch: 4} // 3 ms per request
	unknown := Function{Objective: 50 * ms, Rate: 5}
	idle := Function{Objective: 20 * ms, Cost: 2 * ms, Batch: 1}
	for name, c := range map[string]struct {
		members   []Function
		objective time.Duration
		rate      float64
		cost      time.Duration
		batch     float64
	}{
		"one":                {[]Function{fast}, 10 * ms, 30, 2 * ms, 1},
		"two":                {[]Function{slow, fast}, 10 * ms, 40, (30*2 + 10*3) * ms / 40, (30 + 10*4) / 40.0},
		"cost not known":     {[]Function{fast, unknown}, 10 * ms, 35, 2 * ms, 1},
		"no cost is known":   {[]Function{unknown}, 50 * ms, 5, 0, 0},
		"size costs nothing": {[]Function{{Objective: 50 * ms, Rate: 40, Fixed: 8 * ms, Batch: 4}}, 50 * ms, 40, 2 * ms, 4},
		"no request yet":     {[]Function{idle}, 20 * ms, 0, 2 * ms, 1},
	} {
		w := Worker("w", 30, c.members)
		if w.Name != "w" || w.SharePercent != 30 || w.Objective != c.objective || w.Rate != c.rate ||
			(w.Cost-c.cost).Abs() > time.Microsecond || math.Abs(w.Batch-c.batch) > 1e-9 {
			t.Errorf("%s: %+v, want %+v", name, w, c)
		}
		if a := Decide([]Function{w})[0]; math.Abs(a.Guarantee-0.3) > 1e-9 || a.Level == budget.Demoted {
			t.Errorf("%s: %+v, want 0.3 of the device", name, a)
		}
	}
}

// Functions within their guarantees may use headroom times their needs, except for what is
// guaranteed to an overloaded function of a shorter objective, and by hand.
func TestAllowance(t *testing.T) {
	modest := Function{Objective: 25 * ms, Rate: 10, Cost: 10 * ms, Batch: 1} // 0.15
	heavy := Function{Objective: 25 * ms, Rate: 20, Cost: 10 * ms, Batch: 1}  // 0.3
	greedy := Function{Objective: 25 * ms, Rate: 1000, Cost: 10 * ms, Batch: 1}
	short := greedy
	short.Objective = 5 * ms
	slow := modest
	slow.Objective = 50 * ms // the level of greedy, which is overloaded
	byHand := modest
	byHand.SharePercent = 30
	for _, c := range []struct {
		name      string
		functions []Function
		want      []float64
	}{
		{"one", []Function{modest, greedy}, []float64{0.24, 0.75}},
		{"two", []Function{heavy, modest, greedy}, []float64{0.48, 0.24, 0.45}},
		{"in proportion", []Function{heavy, heavy, modest}, []float64{0.36, 0.36, 0.2}},
		{"at the level of an overloaded function", []Function{modest, slow, greedy}, []float64{0.24, 0.24, 0.6}},
		{"beside a short objective", []Function{modest, short}, []float64{0.15, 0.75}},
		{"all within", []Function{modest, heavy}, []float64{0.375, 0.525}},
		{"by hand", []Function{byHand, modest, greedy}, []float64{0.3, 0.24, 0.45}},
		{"nobody asks", []Function{{Objective: 25 * ms, SharePercent: 30}}, []float64{0.3}},
	} {
		var got []float64
		for _, a := range Decide(c.functions) {
			got = append(got, a.Allowance)
		}
		if !slices.EqualFunc(got, c.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Functions whose costs are not known yet need equal parts, which fit.
func TestUnknownCosts(t *testing.T) {
	for n := 1; n <= 64; n++ {
		for i, a := range Decide(make([]Function, n)) {
			if !a.Kept {
				t.Fatalf("function %d of %d is not kept", i+1, n)
			}
		}
	}
}

// A function of unknown cost takes no guarantee from others.
func TestUnknownCostLast(t *testing.T) {
	busy := Function{Objective: 25 * ms, Rate: 100, Cost: 6 * ms, Batch: 1, Kept: true}
	if actions := Decide([]Function{{Objective: 25 * ms}, busy}); !actions[1].Kept || actions[0].Kept {
		t.Errorf("a new function takes the guarantee of one that needs %.0f %%: %+v", 100*actions[1].Need, actions)
	}
}

func TestLevel(t *testing.T) {
	modest := Function{Objective: 25 * ms, Rate: 10, Cost: 10 * ms, Batch: 1}
	greedy := Function{Objective: 25 * ms, Rate: 1000, Cost: 10 * ms, Batch: 1}
	slow := Function{Objective: time.Hour, Rate: 1000, Cost: 10 * ms, Batch: 1}
	var got []budget.Level
	for _, a := range Decide([]Function{modest, greedy, slow}) {
		got = append(got, a.Level)
	}
	if want := []budget.Level{3, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("levels %v, want %v: a function beyond its guarantee comes after others of its objective", got, want)
	}
}

func TestDecideBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		functions := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Function {
			return Function{
				Objective: time.Duration(rapid.Int64Range(1e6, 1e9).Draw(t, "objective")),
				Rate:      rapid.Float64Range(0, 1e4).Draw(t, "rate"),
				Cost:      time.Duration(rapid.Int64Range(0, 1e8).Draw(t, "cost")),
				Batch:     rapid.Float64Range(0, 64).Draw(t, "batch"),
				Priority:  rapid.Uint8Range(0, 2).Draw(t, "priority"),
			}
		}), 1, 12).Draw(t, "functions")
		sum, fewest := 0.0, 1.0
		actions := Decide(functions)
		for _, a := range actions {
			sum += a.Guarantee
			fewest = min(fewest, a.Guarantee)
			if a.Level < budget.MinLevel || a.Level > budget.MaxLevel || a.Saved < 0 || a.Allowance < a.Guarantee {
				t.Fatalf("action %+v", a)
			}
		}
		if math.Abs(sum-Guaranteed) > 1e-9 {
			t.Fatalf("the guarantees add up to %v, want %v", sum, Guaranteed)
		}
		for i, a := range actions {
			if lacks := a.Guarantee < a.Need-1e-9; a.Kept == lacks {
				t.Fatalf("function %d needs %v and has %v; it is kept: %v", i, a.Need, a.Guarantee, a.Kept)
			}
			// Functions of smaller needs are kept first, and those of unknown costs last. Functions that are not kept have
			// equal parts.
			for j, b := range actions {
				switch f, g := &functions[i], &functions[j]; {
				case a.Kept:
				case b.Kept && g.Priority <= f.Priority && b.Need > a.Need && (f.costKnown() || !g.costKnown()):
					t.Fatalf("function %d needs %v and is not kept, %d needs %v and is", i, a.Need, j, b.Need)
				case !b.Kept && math.Abs(a.Guarantee-b.Guarantee) > 1e-9:
					t.Fatalf("functions %d and %d are not kept and have %v and %v", i, j, a.Guarantee, b.Guarantee)
				}
			}
		}
	})
}

// Which functions are kept does not change with the noise of their needs. Among equal priorities none that is kept ceases to
// be; with priorities, each function that joins makes others cease at most once.
func TestKeptIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		priorities := rapid.Uint8Range(0, 2).Draw(t, "priorities")
		functions := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Function {
			return Function{
				Objective: 25 * ms, Rate: rapid.Float64Range(1, 500).Draw(t, "rate"), Cost: ms, Batch: 1,
				Priority: rapid.Uint8Range(0, priorities).Draw(t, "priority"),
			}
		}), 1, 8).Draw(t, "functions")
		noise := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		base := slices.Clone(functions)
		changes := 0
		for step := range 50 {
			for i := range functions {
				functions[i].Rate = base[i].Rate * (0.99 + 0.02*noise.Float64())
			}
			for i, a := range Decide(functions) {
				f := &functions[i]
				if step > 0 && f.Kept != a.Kept {
					changes++
				}
				if priorities == 0 && f.Kept && !a.Kept {
					t.Fatalf("step %d: function %d ceases to be kept at a need of %v", step, i, a.Need)
				}
				if f.Kept = a.Kept; a.Kept && a.Guarantee < a.Need/hysteresis-1e-9 {
					t.Fatalf("function %d is kept at %v, and needs %v", i, a.Guarantee, a.Need)
				}
			}
		}
		if n := len(functions); changes > n*n {
			t.Fatalf("%d changes of %d functions", changes, n)
		}
	})
}

// step is the time between two observations.
const step = 50 * ms

// client sends requests to a function whose demand it observes.
type client struct {
	demand  Demand
	now     time.Duration
	arrived int
	owed    float64 // the part of a request that is due
}

// send sends rate requests per second for some time. It returns the times of rises.
func (c *client) send(rate float64, d time.Duration) (rises []time.Duration) {
	for end := c.now + d; c.now < end; {
		c.now += step
		c.owed += rate * step.Seconds()
		whole := math.Floor(c.owed)
		c.owed -= whole
		c.arrived += int(whole)
		if c.demand.Observe(c.arrived, c.now) {
			rises = append(rises, c.now)
		}
	}
	return rises
}

func (c *client) expect(t *testing.T, when string, low, high float64) {
	t.Helper()
	if r := c.demand.Rate(); r < low || r > high {
		t.Errorf("%s: rate is %.1f, want %v to %v", when, r, low, high)
	}
}

func TestDemand(t *testing.T) {
	var c client
	c.send(0, 2*time.Second)
	c.expect(t, "before anything came", 0, 0)
	c.send(100, 20*time.Second)
	c.expect(t, "100 per second", 99, 101)
	c.send(0, time.Hour)
	c.expect(t, "an hour of silence", 99, 101)

	before := c.now
	rises := c.send(1000, time.Second)
	c.expect(t, "a second after a step to 1,000", 800, 1000)
	if len(rises) == 0 || rises[0]-before > 2*sampleTime {
		t.Errorf("rises %v after a step at %v, want one within two samples", rises, before)
	}
	c.send(1000, 4*time.Second)
	c.expect(t, "five seconds after the step", 990, 1000)
	if rises = c.send(1050, 10*time.Second); len(rises) > 0 {
		t.Errorf("rises at %v although the rate rose by a twentieth", rises)
	}
	c.expect(t, "ten seconds after a small step", 1045, 1050)
	c.send(100, 4*time.Second)
	c.expect(t, "four seconds after a step down", 500, 800)
}

// Random arrivals of a constant rate raise it little.
func TestDemandOfRandomArrivals(t *testing.T) {
	for _, rate := range []float64{2, 30, 300, 3000, 30000} {
		var d Demand
		r := rand.New(rand.NewPCG(1, 2))
		arrivals, next := 0, 0.0
		sum, n := 0.0, 0
		for at := step; at < 200*time.Second; at += step {
			for next < at.Seconds() {
				next += r.ExpFloat64() / rate
				arrivals++
			}
			d.Observe(arrivals, at)
			if at > 20*time.Second {
				sum += d.Rate()
				n++
			}
		}
		if mean := sum / float64(n); mean < rate || mean > rate+1.9*math.Sqrt(rate) {
			t.Errorf("%v random arrivals per second: mean rate %.1f", rate, mean)
		}
	}
}

func TestInfeasible(t *testing.T) {
	quick := Function{Objective: 8 * ms, Rate: 10, Cost: 2 * ms, Batch: 1}
	light := Function{Objective: 8 * ms, Rate: 10, Cost: ms / 2, Batch: 1}
	slow := Function{Objective: 200 * ms, Rate: 10, Cost: 40 * ms, Batch: 1}
	busy := Function{Objective: 100 * ms, Rate: 10, Cost: 30 * ms, Batch: 1}
	busier := Function{Objective: 100 * ms, Rate: 20, Cost: 30 * ms, Batch: 1}
	for _, c := range []struct {
		name      string
		functions []Function
		want      string
	}{
		{"alone", []Function{quick}, ""},
		{"next to a lower level", []Function{quick, slow}, ""},
		{"next to equal levels that need little", []Function{light, light, light, light}, ""},
		{"own batch of any size", []Function{{Objective: 8 * ms, Rate: 1, Fixed: 9 * ms}}, "one batch takes 9ms, and the objective allows 8ms"},
		{"own batch", []Function{{Objective: 8 * ms, Rate: 1, Cost: 9 * ms}}, "one batch takes 9ms, and the objective allows 8ms"},
		{"kept", []Function{busy}, ""},
		{"not kept", []Function{busier, busy}, "it needs 90 % of the device's time, and its guarantee is 45 %"},
		{"equal levels", []Function{quick, quick, quick, quick}, "earlier batches of equal or shorter objectives"},
	} {
		got := Decide(c.functions)[0].Infeasible
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q in it", c.name, got, c.want)
		}
	}
}
