package gslice

import (
	"cmp"
	"slices"
)

// shareDemand is the share that an IF needs.
type shareDemand struct {
	ID      ID
	Percent float64
	// Steps are the allowed grants, ascending multiples of quantum. If Steps is empty, all are
	// allowed.
	Steps []float64
}

// grant is the share that an IF gets.
type grant struct {
	ID ID
	// Percent is a multiple of quantum.
	Percent float64
	// Slack is the part of Percent beyond the demand, 0 unless SpreadSlack.
	Slack float64
}

// divide divides a total of at most 100 % among demands by MAX-MIN fairness (3.2.3), the smallest
// demand first. A demand is granted if it is at most an equal part of what remains.
// The others share the rest in proportion to their demands, none below the last grant:
//
//	{30, 40, 90} -> {30, 30, 40}    {30, 100} -> {30, 70}    {8, 60} -> {8, 60}
//
// Demands are clamped to the minimum and 100. The rest beyond all demands stays free unless
// SpreadSlack is set.
//
// A grant with Steps is rounded to one of them, and may exceed its demand. If the smallest steps
// are more than the total, Steps have no effect.
//
// The grants are sorted by ID. They depend only on the demands, not on their order, and add up
// to at most total. The IDs must differ.
func (c Config) divide(total float64, demands []shareDemand) []grant {
	n := len(demands)
	if n == 0 {
		return nil
	}
	sorted := make([]shareDemand, n)
	for i, d := range demands {
		sorted[i] = shareDemand{ID: d.ID, Percent: c.clamp(d.Percent), Steps: d.Steps}
	}
	slices.SortFunc(sorted, func(a, b shareDemand) int {
		return cmp.Or(cmp.Compare(a.Percent, b.Percent), a.ID.Compare(b.ID))
	})
	grants := make([]grant, n)
	remaining, last, i := total, min(c.MinimumPercent, total/float64(n)), 0
	for ; i < n && sorted[i].Percent <= remaining/float64(n-i); i++ {
		grants[i] = grant{ID: sorted[i].ID, Percent: floorTo(sorted[i].Percent)}
		remaining -= grants[i].Percent
		last = max(last, grants[i].Percent)
	}
	proportional(grants[i:], sorted[i:], remaining, min(last, remaining/float64(max(1, n-i))))
	if c.SpreadSlack && i == n {
		spread(grants, sorted, remaining)
	}
	step(grants, sorted, total)
	slices.SortFunc(grants, func(a, b grant) int { return a.ID.Compare(b.ID) })
	return grants
}

// step rounds each grant to a step of its demand. Each goes to the step below it, and at least to
// the first. Then each that was rounded down goes to the step above while that fits the total, in
// the order of grants. If the steps are more than the total, the largest grants go down.
func step(grants []grant, demands []shareDemand, total float64) {
	stepped := make([]float64, len(grants))
	at := make([]int, len(grants)) // each grant's step
	sum := 0.0
	for i, g := range grants {
		stepped[i] = g.Percent
		if steps := demands[i].Steps; len(steps) > 0 {
			at[i] = atOrBelow(steps, g.Percent)
			stepped[i] = steps[at[i]]
		}
		sum += stepped[i]
	}

	for i, g := range grants {
		steps, next := demands[i].Steps, at[i]+1
		if next >= len(steps) || g.Percent <= stepped[i] {
			continue
		}
		if more := steps[next] - stepped[i]; sum+more <= total {
			at[i], stepped[i], sum = next, steps[next], sum+more
		}
	}

	for sum > total {
		less := stepDown(stepped, at, demands)
		if less == 0 {
			return // even the first steps are too much: keep the grants, which fit
		}
		sum -= less
	}
	for i := range grants {
		grants[i].Slack = max(0, grants[i].Slack+stepped[i]-grants[i].Percent)
		grants[i].Percent = stepped[i]
	}
}

// atOrBelow returns the index of the largest step that is at most percent, or 0.
func atOrBelow(steps []float64, percent float64) int {
	above, exactly := slices.BinarySearch(steps, percent)
	if exactly {
		return above
	}
	return max(0, above-1)
}

// stepDown lowers the largest grant that is above its first step by one step. It returns by how
// much, 0 if no grant can go down.
func stepDown(stepped []float64, at []int, demands []shareDemand) (less float64) {
	largest := -1
	for i := range at {
		if at[i] > 0 && (largest < 0 || stepped[i] > stepped[largest]) {
			largest = i
		}
	}
	if largest < 0 {
		return 0
	}
	at[largest]--
	lower := demands[largest].Steps[at[largest]]
	less = stepped[largest] - lower
	stepped[largest] = lower
	return less
}

// proportional splits remaining in proportion to the demands, which must ascend and exceed it
// in sum. No part is below lowest. Raising a small part to lowest takes from the others, and the
// next one may fall below it. The parts are therefore computed one after the other.
//
// No part exceeds its demand. It is either the demand's part of a larger sum, or lowest, which
// was granted to a smaller demand.
func proportional(grants []grant, demands []shareDemand, remaining, lowest float64) {
	var weights float64
	for _, d := range demands {
		weights += d.Percent
	}
	for i, d := range demands {
		part := max(lowest, remaining*d.Percent/weights)
		// Rounding can raise the last part above what remains.
		grants[i] = grant{ID: d.ID, Percent: floorTo(min(part, remaining, d.Percent))}
		remaining -= grants[i].Percent
		weights -= d.Percent
	}
}

// spread adds what remains to the grants in proportion to the demands.
func spread(grants []grant, demands []shareDemand, remaining float64) {
	var weights float64
	for _, d := range demands {
		weights += d.Percent
	}
	for i, d := range demands {
		part := floorTo(min(remaining, remaining*d.Percent/weights))
		grants[i].Percent += part
		grants[i].Slack = part
		remaining -= part
		weights -= d.Percent
	}
}
