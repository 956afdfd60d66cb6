package pack

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/plan"
)

// fillings lists everything that one GPU can hold, as counts of sizes. It tries every legal set of
// sizes and starts.
func fillings(g plan.GPU) [][]int {
	seen := map[string][]int{}
	counts := make([]int, len(g.Sizes))
	var fill func(slot, gpcs int)
	fill = func(slot, gpcs int) {
		if slot == g.Slots {
			seen[fmt.Sprint(counts)] = slices.Clone(counts)
			return
		}
		fill(slot+1, gpcs)
		for k, s := range g.Sizes {
			if s.MayStart(slot) && slot+s.Slots <= g.Slots && s.GPCs <= gpcs {
				counts[k]++
				fill(slot+s.Slots, gpcs-s.GPCs)
				counts[k]--
			}
		}
	}
	fill(0, g.GPCs)
	var all [][]int
	for _, c := range seen {
		all = append(all, c)
	}
	return all
}

// fewest returns the min number of GPUs that hold counts, by brute force.
func fewest(all [][]int, counts []int, known map[string]int) int {
	if !slices.ContainsFunc(counts, func(n int) bool { return n > 0 }) {
		return 0
	}
	key := fmt.Sprint(counts)
	if n, ok := known[key]; ok {
		return n
	}
	best := math.MaxInt
	for _, p := range all {
		rest := make([]int, len(counts))
		helps := false
		for k := range p {
			rest[k] = max(0, counts[k]-p[k])
			helps = helps || rest[k] < counts[k]
		}
		if helps {
			best = min(best, 1+fewest(all, rest, known))
		}
	}
	known[key] = best
	return best
}

func TestA100Patterns(t *testing.T) {
	for _, name := range []string{"a100-40", "a100-80", "h100-80", "h200-141"} {
		g := gpu(t, name)
		c := newPartitioned(g, g.Sizes)
		if len(c.patterns) != 12 {
			t.Errorf("%s: %d patterns: %v", name, len(c.patterns), c.patterns)
		}
		want := [][]float64{{0, 0, 0, 1, 1}, {0, 1. / 3, 1. / 3, 2. / 3, 1}, {1. / 8, 1. / 4, 1. / 2, 1. / 2, 1}, {1. / 7, 2. / 7, 3. / 7, 4. / 7, 1}}
		if len(c.prices) != len(want) || !c.whole {
			t.Fatalf("%s: rules %v, whole %v", name, c.prices, c.whole)
		}
		for _, rule := range want {
			if !slices.ContainsFunc(c.prices, func(p []float64) bool { return dominated(p, rule) && dominated(rule, p) }) {
				t.Errorf("%s: no rule %v among %v", name, rule, c.prices)
			}
		}
	}
}

func TestPackExact(t *testing.T) {
	for _, name := range []string{"a30", "a100-80", "h200-141"} {
		t.Run(name, func(t *testing.T) {
			g := gpu(t, name)
			c := newPartitioned(g, g.Sizes)
			all := fillings(g)
			known := map[string]int{}
			rapid.Check(t, func(t *rapid.T) {
				counts := make([]int, len(g.Sizes))
				for k := range counts {
					counts[k] = rapid.IntRange(0, 5).Draw(t, "count")
				}
				bins := c.pack(counts)
				used, left := 0, slices.Clone(counts)
				for _, b := range bins {
					used += b.times
					for k, n := range b.counts {
						left[k] -= n * b.times
					}
					legal(t, g, g.Sizes, b.counts, c.slots(b.counts))
				}
				if !slices.Equal(left, make([]int, len(left))) {
					t.Fatalf("%v: %v are left, or too many", counts, left)
				}
				if want := fewest(all, counts, known); used != want || c.minGPUs(counts) != want {
					t.Fatalf("%v: %d GPUs, least %d; want %d", counts, used, c.minGPUs(counts), want)
				}
			})
		})
	}
}

func TestPackThousands(t *testing.T) {
	g := gpu(t, "a100-80")
	c := newPartitioned(g, g.Sizes)
	rapid.Check(t, func(t *rapid.T) {
		counts := make([]int, len(g.Sizes))
		for k := range counts {
			counts[k] = rapid.IntRange(0, 50000).Draw(t, "count")
		}
		bins := c.pack(counts)
		used := 0
		for _, b := range bins {
			used += b.times
		}
		if used != c.minGPUs(counts) || len(bins) > 40 {
			t.Fatalf("%v: %d GPUs in %d ways, least %d", counts, used, len(bins), c.minGPUs(counts))
		}
	})
}

// legal checks places against the table.
func legal(t *rapid.T, g plan.GPU, sizes []plan.Size, counts pattern, places []place) {
	got := make(pattern, len(counts))
	taken := map[int]bool{}
	for _, at := range places {
		got[at.size]++
		if !sizes[at.size].MayStart(at.slot) {
			t.Fatalf("size %d in slot %d", sizes[at.size].GPCs, at.slot)
		}
		for s := at.slot; s < at.slot+sizes[at.size].Slots; s++ {
			if taken[s] || s >= g.Slots {
				t.Fatalf("slot %d twice, or none, in %v", s, places)
			}
			taken[s] = true
		}
	}
	if !slices.Equal(got, counts) {
		t.Fatalf("%v are laid out, want %v", got, counts)
	}
}

func TestStepRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.IntRange(1, 66).Draw(t, "steps")
		g := plan.PercentGPU("drawn", steps, 1, 1)
		var sizes []plan.Size
		var widths []int
		for _, s := range g.Sizes {
			if rapid.IntRange(0, 3).Draw(t, "used") == 0 {
				sizes, widths = append(sizes, s), append(widths, s.Slots)
			}
		}
		if len(widths) == 0 {
			t.Skip("no sizes")
		}
		c := newStepped(steps, widths)
		if top, p := c.dearest(c.price); top > 1+1e-9 {
			t.Fatalf("rule %v: pattern %v is worth %v", c.price, p, top)
		}
		counts := make([]int, len(widths))
		for k := range counts {
			counts[k] = rapid.IntRange(0, 12).Draw(t, "count")
		}
		price := make([]float64, len(widths))
		for k := range price {
			price[k] = rapid.Float64Range(0, 1).Draw(t, "price")
		}
		before := slices.Clone(price)
		top, p := c.dearest(price)
		if got := worth(price, p); math.Abs(got-top) > 1e-9 {
			t.Fatalf("pattern %v is worth %v, not %v", p, got, top)
		}
		c.lift(price, top)
		if raised, _ := c.dearest(price); raised > top+1e-9 || !dominated(before, price) {
			t.Fatalf("lifted from %v to %v: the dearest from %v to %v", before, price, top, raised)
		}
		bins := c.pack(counts)
		used, left, least := 0, slices.Clone(counts), ceilGPUs(worth(c.price, counts))
		for _, b := range bins {
			used += b.times
			for k, n := range b.counts {
				left[k] -= n * b.times
			}
			legal(t, g, sizes, b.counts, c.slots(b.counts))
		}
		if !slices.Equal(left, make([]int, len(left))) || used < least {
			t.Fatalf("%v: %d GPUs, least %d, left %v", counts, used, least, left)
		}
	})
}
