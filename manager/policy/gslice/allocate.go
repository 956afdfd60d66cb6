package gslice

import (
	"cmp"
	"slices"
)

// shareDemand is what an IF would have.
type shareDemand struct {
	ID      ID
	Percent float64
}

// grant is what an IF gets.
type grant struct {
	ID ID
	// Percent is the share, a multiple of Quantum.
	Percent float64
	// Slack is the part of Percent beyond the demand, 0 unless SpreadSlack.
	Slack float64
}

// allocateFairly divides 100 % among demands by MAX-MIN fairness (3.2.3), the smallest
// demand first: each is granted while it is at most an equal part of what remains.
// The rest share what then remains in proportion to their demands, none below the
// last grant:
//
//	{30, 40, 90} -> {30, 30, 40}    {30, 100} -> {30, 70}    {8, 60} -> {8, 60}
//
// Demands are clamped to the minimum and 100. What nobody demands stays free
// unless SpreadSlack.
//
// With Steps each grant is one of them, up or down from what it would be, if the smallest
// goes round; a demand may get a little more than it asks for then.
//
// The grants are sorted by ID; they depend on the demands alone, not on their
// order, and their sum is never above 100. IDs are different from each other.
func allocateFairly(demands []shareDemand, c Config) []grant { return c.divide(100, demands) }

// divide is allocateFairly for a total that may be less than 100.
func (c Config) divide(total float64, demands []shareDemand) []grant {
	n := len(demands)
	if n == 0 {
		return nil
	}
	sorted := make([]shareDemand, n)
	for i, d := range demands {
		sorted[i] = shareDemand{ID: d.ID, Percent: c.clamp(d.Percent)}
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
	c.step(grants, total)
	slices.SortFunc(grants, func(a, b grant) int { return a.ID.Compare(b.ID) })
	return grants
}

// step brings grants to shares that may be given: each to the step below it, and then, in
// the order of grants, to the one above while there is room. One that is below the first
// step gets that; where all together are too much then, the largest go down.
func (c Config) step(grants []grant, total float64) {
	if len(c.Steps) == 0 {
		return
	}
	sum := 0.0
	at := make([]int, len(grants)) // each grant's step
	for i, g := range grants {
		above, exactly := slices.BinarySearch(c.Steps, g.Percent)
		if at[i] = above; !exactly {
			at[i] = max(0, above-1)
		}
		sum += floorTo(c.Steps[at[i]])
	}
	for i, g := range grants {
		if next := at[i] + 1; next < len(c.Steps) && g.Percent > c.Steps[at[i]] {
			if more := floorTo(c.Steps[next]) - floorTo(c.Steps[at[i]]); sum+more <= total {
				at[i], sum = next, sum+more
			}
		}
	}
	for sum > total {
		largest := 0
		for i := range at {
			if at[i] > at[largest] {
				largest = i
			}
		}
		if at[largest] == 0 {
			break // not even the first step goes round
		}
		sum -= floorTo(c.Steps[at[largest]]) - floorTo(c.Steps[at[largest]-1])
		at[largest]--
	}
	if sum > total {
		return // the grants as they were: they go round
	}
	for i := range grants {
		grants[i].Slack = max(0, grants[i].Slack+floorTo(c.Steps[at[i]])-grants[i].Percent)
		grants[i].Percent = floorTo(c.Steps[at[i]])
	}
}

// allows reports whether a share may be given.
func (c Config) allows(percent float64) bool {
	return len(c.Steps) == 0 || slices.ContainsFunc(c.Steps, func(s float64) bool { return floorTo(s) == percent })
}

// proportional splits remaining in proportion to the demands, which ascend and
// exceed it in sum, none below least. Raising the small ones to least takes from
// the others, which may bring the next one below it: so the small ones are settled
// one after the other. No part exceeds its demand: it is smaller than the demand's
// part of a sum that is larger than what is split, or it is least, which was a
// grant to a smaller demand.
func proportional(grants []grant, demands []shareDemand, remaining, least float64) {
	var weights float64
	for _, d := range demands {
		weights += d.Percent
	}
	for i, d := range demands {
		part := max(least, remaining*d.Percent/weights)
		// The last may be a rounding error above what is left.
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
