package batching

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// overloaded is a function that gets more requests than batches of 1 can answer.
type overloaded struct {
	slo    time.Duration
	mean   device
	ladder []int
	load   float64 // in multiples of the capacity with batches of 1
}

// run runs a rule from its start. The node has no requests before.
func (o overloaded) run(rule *Rule) *node {
	return &node{
		rule: rule, state: rule.Start(), mean: o.mean, slo: o.slo,
		interval: time.Duration(float64(o.mean(1)) / o.load),
		noise:    rand.New(rand.NewPCG(1, 1)),
		stall:    func() time.Duration { return 0 },
	}
}

// goodput returns the part of the requests that are answered in time in the second after the first.
func (o overloaded) goodput(n *node) float64 {
	n.run(int64(time.Second))
	n.run(int64(2*time.Second + o.slo))
	part, _ := n.inTime(int64(time.Second))
	return part
}

// best returns the goodput of the best fixed size. It considers only those for which the target
// in overload leaves time.
func (o overloaded) best(t rapid.TB) (most float64) {
	for _, n := range o.ladder {
		if n > 1 && o.mean(n).Seconds() > 0.95*maxOverload*o.slo.Seconds() {
			break
		}
		fixed := o.run(newRule(t, Fixed, Config{SLO: o.slo, Ladder: o.ladder, Fixed: n}))
		for _, size := range o.ladder {
			fixed.state = fixed.rule.Warm(fixed.state, size, o.mean(size))
		}
		most = max(most, o.goodput(fixed))
	}
	return most
}

// A function that starts cold in overload finds the size that answers the most in time. It
// knows how long a batch of 1 takes, but nothing about larger ones. The first of those may be
// disturbed.
func TestGrowth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slo := time.Duration(rapid.IntRange(5, 25).Draw(t, "slo_ms")) * time.Millisecond
		one := time.Duration(rapid.Float64Range(0.03, 0.45).Draw(t, "batch of 1, part of slo") * float64(slo))
		fixed := time.Duration(rapid.Float64Range(0, 1).Draw(t, "fixed part") * float64(one))
		o := overloaded{
			slo: slo, mean: linear(fixed, one-fixed),
			ladder: rapid.SampledFrom([][]int{{1, 8, 32}, {1, 4, 16}, {1, 8}, {1, 2, 4, 8, 16, 32}}).Draw(t, "ladder"),
			load:   rapid.Float64Range(1.2, 5).Draw(t, "load"),
		}
		added := rapid.Bool().Draw(t, "sizes are added while it serves")
		stall := time.Duration(rapid.Float64Range(0, 3).Draw(t, "stall, in objectives") * float64(slo))
		disturbed := rapid.Bool().Draw(t, "the first larger batch is disturbed")

		n := o.run(newRule(t, SLAB, Config{SLO: slo, Ladder: o.ladder}))
		if added {
			n = o.run(newRule(t, SLAB, Config{SLO: slo, Ladder: o.ladder[:1]}))
		}
		n.state = n.rule.Warm(n.state, 1, o.mean(1))
		n.stall = func() time.Duration {
			if n.padded == 1 || !disturbed {
				return 0
			}
			disturbed = false
			return stall
		}
		if added {
			for size := range o.ladder[1:] {
				n.run(n.now + int64(50*time.Millisecond))
				larger := newRule(t, SLAB, Config{SLO: slo, Ladder: o.ladder[:size+2]})
				n.state, n.rule = larger.Grown(n.state, n.rule), larger
			}
		}
		if got, want := o.goodput(n), o.best(t); got < 0.9*want {
			t.Errorf("%.1f %% are answered in time, with the best fixed size %.1f %%; limit %v", 100*got, 100*want, n.state.Limit)
		}
	})
}
