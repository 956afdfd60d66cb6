package pack

import (
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// A rule is how much of a GPU a segment takes in one respect. The segments of one GPU never take
// more than 1 of any rule.
type rule func(plan.Point) float64

func rulesOf(g plan.GPU) []rule {
	if g.Percent {
		return sharedRules(g)
	}
	return partitionRules(g)
}

// roundings is the number of rules that sharedRules rounds steps for.
const roundings = 10

// sharedRules are those of a GPU without MIG: steps, memory, and clients of MPS. Steps also count
// rounded: a GPU holds at most n segments of more than 1/(n+1) of its steps. (Fekete and Schepers,
// New classes of fast lower bounds for bin packing problems, 2001, function u.)
func sharedRules(g plan.GPU) []rule {
	rules := []rule{func(pt plan.Point) float64 { return float64(pt.GPCs) / float64(g.GPCs) }}
	for n := 1; n <= roundings; n++ {
		rules = append(rules, func(pt plan.Point) float64 {
			if parts := (n + 1) * pt.GPCs; parts%g.GPCs != 0 {
				return float64(parts/g.GPCs) / float64(n)
			}
			return float64(pt.GPCs) / float64(g.GPCs)
		})
	}
	if g.MemoryMiB > 0 {
		rules = append(rules, func(pt plan.Point) float64 { return pt.MemoryMiB / float64(g.MemoryMiB) })
	}
	if g.Clients > 0 {
		rules = append(rules, func(pt plan.Point) float64 { return float64(pt.Processes) / float64(g.Clients) })
	}
	return rules
}

// partitionRules are those of a GPU with MIG. One counts memory slices, the others the places for
// each size: a segment takes as many of them as it leaves fewer. On an A100, sizes 1, 2, 3, 4, 7 take
//
//	1 2 3 4 7 of 7 places for size 1
//	0 1 1 2 3 of 3 places for size 2
//	0 0 0 1 1 of 1 place for size 4
//	1 2 4 4 8 of 8 memory slices
//
// Sizes 3 and 7 give no rule: seven segments of size 1 would take more than there is.
func partitionRules(g plan.GPU) []rule {
	fillings := fillings(g)
	var rules []rule
	add := func(takes map[int]float64) {
		for _, filling := range fillings {
			sum := 0.0
			for i, n := range filling {
				sum += float64(n) * takes[g.Sizes[i].GPCs]
			}
			if sum > 1+1e-9 {
				return
			}
		}
		rules = append(rules, func(pt plan.Point) float64 { return takes[pt.GPCs] })
	}
	slots := map[int]float64{}
	for place := range g.Sizes {
		takes := map[int]float64{}
		places := 0
		for _, filling := range fillings {
			places = max(places, filling[place])
		}
		for i, size := range g.Sizes {
			left := 0
			for _, filling := range fillings {
				if i != place && filling[i] > 0 {
					left = max(left, filling[place])
				}
			}
			if i == place {
				left = places - 1
			}
			takes[size.GPCs] = float64(places-left) / float64(places)
			slots[size.GPCs] = float64(size.Slots) / float64(g.Slots)
		}
		add(takes)
	}
	add(slots)
	return rules
}

// fillings returns the sets of segments that the placement table allows on one GPU, as counts by
// size.
func fillings(g plan.GPU) (all [][]int) {
	counts := make([]int, len(g.Sizes))
	var fill func(slot int)
	fill = func(slot int) {
		if slot >= g.Slots {
			if !slices.ContainsFunc(all, func(f []int) bool { return slices.Equal(f, counts) }) {
				all = append(all, slices.Clone(counts))
			}
			return
		}
		fill(slot + 1)
		for i, size := range g.Sizes {
			if size.MayStart(slot) && slot+size.Slots <= g.Slots {
				counts[i]++
				fill(slot + size.Slots)
				counts[i]--
			}
		}
	}
	fill(0)
	return all
}

// use returns how many GPUs of a kind loads need at least.
func (k *kind) use(loads []float64) float64 { return slices.Max(k.of(loads)) }

// ceil rounds a number of GPUs up. It ignores what floating-point rounding adds to a whole number.
func ceil(gpus float64) int { return int(math.Ceil(gpus - 1e-6)) }
