package share

import (
	"cmp"
	"slices"
)

// Demand is what an IF would have.
type Demand struct {
	ID      ID
	Percent float64
}

// Grant is what an IF gets.
type Grant struct {
	ID ID
	// Percent is the share, a multiple of Quantum.
	Percent float64
	// Slack is the part of Percent beyond the demand, 0 unless SpreadSlack.
	Slack float64
}

// Allocate divides 100 % among demands by MAX-MIN fairness (3.2.3), the smallest
// demand first: each is granted while it is at most an equal part of what remains.
// The rest share what then remains in proportion to their demands, none below the
// last grant:
//
//	{30, 40, 90} -> {30, 30, 40}    {30, 100} -> {30, 70}    {8, 60} -> {8, 60}
//
// Demands are clamped to the minimum and 100. What nobody demands stays free
// unless SpreadSlack.
//
// The grants are sorted by ID; they depend on the demands alone, not on their
// order, and their sum is never above 100. IDs are different from each other.
func Allocate(demands []Demand, c Config) []Grant {
	return c.divide(100, demands)
}

// divide is Allocate for a total that may be less than 100.
func (c Config) divide(total float64, demands []Demand) []Grant {
	n := len(demands)
	if n == 0 {
		return nil
	}
	sorted := make([]Demand, n)
	for i, d := range demands {
		sorted[i] = Demand{ID: d.ID, Percent: c.clamp(d.Percent)}
	}
	slices.SortFunc(sorted, func(a, b Demand) int {
		return cmp.Or(cmp.Compare(a.Percent, b.Percent), a.ID.Compare(b.ID))
	})
	grants := make([]Grant, n)
	remaining, last, i := total, min(c.MinimumPercent, total/float64(n)), 0
	for ; i < n && sorted[i].Percent <= remaining/float64(n-i); i++ {
		last = floorTo(sorted[i].Percent)
		grants[i] = Grant{ID: sorted[i].ID, Percent: last}
		remaining -= last
	}
	proportional(grants[i:], sorted[i:], remaining, last)
	if c.SpreadSlack && i == n {
		spread(grants, sorted, remaining)
	}
	slices.SortFunc(grants, func(a, b Grant) int { return a.ID.Compare(b.ID) })
	return grants
}

// proportional splits remaining in proportion to the demands, which ascend and
// exceed it in sum, none below least. Raising the small ones to least takes from
// the others, which may bring the next one below it: so the small ones are settled
// one after the other. No part exceeds its demand: it is smaller than the demand's
// part of a sum that is larger than what is split, or it is least, which was a
// grant to a smaller demand.
func proportional(grants []Grant, demands []Demand, remaining, least float64) {
	var weights float64
	for _, d := range demands {
		weights += d.Percent
	}
	for i, d := range demands {
		part := max(least, remaining*d.Percent/weights)
		// The last may be a rounding error above what is left.
		grants[i] = Grant{ID: d.ID, Percent: floorTo(min(part, remaining, d.Percent))}
		remaining -= grants[i].Percent
		weights -= d.Percent
	}
}

// spread adds what remains to the grants in proportion to the demands.
func spread(grants []Grant, demands []Demand, remaining float64) {
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
