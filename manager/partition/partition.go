// Package partition hands out a GPU's multiprocessors (SMs): which groups of them
// each instance of an inference function shall run on, so that no two instances
// ever run on the same. It is pure: no clock, no I/O, no memory but Ledger's.
//
// The device splits into groups of equal size and, where they do not go up, an odd
// last one; an index names the same physical multiprocessors in every process.
// Shares are percent of all multiprocessors.
//
//		shares ──Divide──> target of each ──> what can be ordered now ──> processes
//		                                             ^                        │
//		                                             └── Ledger: who may ─────┘
//		                                                 still be where
//
//	 1. How many: everyone at least one group, or as many as its model needs; the
//	    rest by share, whole groups, the largest remainders rounded up while there
//	    are groups.
//	 2. Which: those that it has; then free ones; then those that others are about
//	    to leave; of each the nearest to where it lives among the groups, so that one
//	    that grows and shrinks comes back to the same.
//	 3. Now: all of them when nobody else may still run on any; until then what it
//	    has of them. So cuts go first, and growth waits for a neighbour's leaving.
package partition

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/manager/share"
)

// ErrTooMany is returned when there are more claims than groups.
var ErrTooMany = errors.New("more instances than groups of multiprocessors")

// Claim is what an instance wants, and where its processes are.
type Claim struct {
	ID      share.ID
	Percent float64
	// Least is how many groups its model needs to run at all, whatever its share; 0 is 1.
	// Where there are not groups enough for all that need more than one, the first claims
	// have theirs and others get one at least.
	Least int
	// Ordered are the groups that it was last ordered, ascending; empty at first.
	Ordered []int
	// Busy are the groups that its processes may be running on, those that are
	// moving, ending or dead and not buried included. Claims share none of them.
	Busy []int
}

// Order is what an instance gets.
type Order struct {
	ID share.ID
	// Target are the groups that it shall have, Now those that it can be ordered at
	// once, ascending. Now differs from Target while others have to leave first; it
	// is empty for an instance that has nothing yet and must wait.
	Target, Now []int
}

// Waits reports whether others must leave before the target can be ordered.
func (o *Order) Waits() bool { return !slices.Equal(o.Target, o.Now) }

// A share is not worth a further group for less than trifle of one, and holding a
// group already counts as much as loyalty of one when what is left over is given
// out.
const (
	trifle  = 1.0 / 8
	loyalty = 1.0 / 4
)

// Divide says which groups each claim gets, in the order of the claims, whose IDs
// differ. groupSMs are the sizes of the groups by index, all equal but perhaps for
// the last. taken are groups that processes without a claim may still be running
// on: they are given out, and ordered when they are free. ErrTooMany is returned
// when there is not a group for everyone.
//
// It is called again whenever a share or what is Busy changed, with Ordered as it
// said Now the last time.
func Divide(groupSMs []int, claims []Claim, taken []int) ([]Order, error) {
	if len(claims) > len(groupSMs) {
		return nil, fmt.Errorf("%w: %d instances, %d groups", ErrTooMany, len(claims), len(groupSMs))
	}
	for i, n := range groupSMs {
		if n <= 0 || n != groupSMs[0] && i < len(groupSMs)-1 {
			return nil, fmt.Errorf("group %d has %d multiprocessors, the first %d: only the last may differ", i, n, groupSMs[0])
		}
	}
	if len(claims) == 0 {
		return nil, nil
	}
	d := newDivision(groupSMs, claims, taken)
	d.count()
	d.choose()
	return d.orders(), nil
}

// division is Divide's work sheet. Groups are marked by index.
type division struct {
	claims []Claim
	sms    []int
	unit   float64 // multiprocessors of an ordinary group
	odd    int     // the group of another size, -1 where there is none
	least  []int   // how many groups a claim gets at least
	ideals []float64
	owner  []int // who may be running on a group: a claim, nobody, or others

	units   []int // ordinary groups, by claim
	oddOf   int   // the claim that gets the odd group, -1 for none
	targets [][]int
}

// Owners that are no claim.
const nobody, others = -1, -2

func newDivision(groupSMs []int, claims []Claim, taken []int) *division {
	d := &division{
		claims: claims, sms: groupSMs, unit: float64(groupSMs[0]), odd: -1, oddOf: -1,
		units: make([]int, len(claims)), targets: make([][]int, len(claims)),
	}
	if last := len(groupSMs) - 1; groupSMs[last] != groupSMs[0] {
		d.odd = last
	}
	total := 0
	for _, n := range groupSMs {
		total += n
	}
	d.least = leastOf(len(groupSMs), claims)
	d.ideals = idealsOf(float64(total), d.unit, claims, d.least)
	d.owner = slices.Repeat([]int{nobody}, len(groupSMs))
	own := func(i int, groups []int) {
		for _, g := range groups {
			if d.owner[g] == nobody {
				d.owner[g] = i
			} else if d.owner[g] != i {
				d.owner[g] = others
			}
		}
	}
	own(others, taken)
	for i, c := range claims {
		own(i, c.Ordered)
		own(i, c.Busy)
	}
	return d
}

// leastOf says how many of the groups each claim gets at least: one, and what it needs
// beyond it while there is as much for it, in the order of the claims.
func leastOf(groups int, claims []Claim) []int {
	out, left := make([]int, len(claims)), groups-len(claims)
	for i, c := range claims {
		out[i] = 1
		if more := c.Least - 1; more > 0 && more <= left {
			out[i] += more
			left -= more
		}
	}
	return out
}

// idealsOf says how many multiprocessors each claim would get if they could be cut
// anywhere: its part of total, but its least number of groups. What that takes from the
// others, and what they want beyond total, is shared by them in proportion.
func idealsOf(total, unit float64, claims []Claim, least []int) []float64 {
	out := make([]float64, len(claims))
	small := make([]bool, len(claims))
	for {
		left, wanted := total, 0.0
		for i, c := range claims {
			if small[i] {
				left -= unit * float64(least[i])
			} else {
				wanted += c.Percent / 100 * total
			}
		}
		scale := 1.0
		if wanted > left {
			scale = max(0, left/wanted)
		}
		again := false
		for i, c := range claims {
			if small[i] {
				continue
			}
			out[i] = c.Percent / 100 * total * scale
			if floor := unit * float64(least[i]); !(out[i] > floor) {
				out[i], small[i], again = floor, true, true
			}
		}
		if !again {
			return out
		}
	}
}

// count decides how many groups each claim gets.
func (d *division) count() {
	left, alone := len(d.sms), false
	if d.odd >= 0 {
		left--
		alone = d.giveOdd(left)
	}
	have := make([]float64, len(d.claims))
	had := make([]float64, len(d.claims))
	give := func(i int) {
		d.units[i]++
		have[i] += d.unit
		left--
	}
	for i, c := range d.claims {
		for _, g := range c.Ordered {
			had[i] += float64(d.sms[g])
		}
		if i == d.oddOf {
			have[i] = float64(d.sms[d.odd])
		} else {
			give(i)
		}
		for n := 1; n < d.least[i]; n++ {
			give(i)
		}
	}
	lacks := func(i int) float64 {
		if alone && i == d.oddOf {
			return 0
		}
		return d.ideals[i] - have[i]
	}
	// Whole groups first, then the remainders: one group a claim, the largest first.
	for left > 0 {
		i, lack := most(len(d.claims), lacks)
		if lack <= d.unit {
			break
		}
		give(i)
	}
	for left > 0 {
		i, lack := most(len(d.claims), func(i int) float64 {
			lack := lacks(i)
			if lack > trifle*d.unit && had[i] > have[i] {
				lack += loyalty * d.unit
			}
			return lack
		})
		if lack <= trifle*d.unit {
			break
		}
		give(i)
	}
}

// most finds the first of n with the most of something.
func most(n int, of func(i int) float64) (found int, value float64) {
	value = of(0)
	for i := range n {
		if v := of(i); v > value {
			found, value = i, v
		}
	}
	return found, value
}

// giveOdd gives the odd group to who has it while that is of use, else to the
// largest claim; to nobody where ordinary groups serve everyone. It reports whether
// its new owner shall have nothing else: one that has only the odd group keeps it
// until an ordinary one is free, for it could only wait for one while others may
// wait for this.
func (d *division) giveOdd(units int) (alone bool) {
	one := d.unit * (1 + trifle) // up to here an ordinary group is enough
	free := slices.Contains(d.owner[:d.odd], nobody)
	largest, sum := 0, 0.0
	for i, c := range d.claims {
		if slices.Contains(c.Ordered, d.odd) {
			useful := d.ideals[i] > one
			if useful || len(c.Ordered) == 1 && !free {
				d.oddOf = i
				return !useful
			}
		}
		if d.ideals[i] > d.ideals[largest] {
			largest = i
		}
		sum += d.ideals[i]
	}
	if d.ideals[largest] > one || len(d.claims) > units || sum > float64(units)*d.unit {
		d.oddOf = largest
	}
	return false
}

// choose decides which groups they are.
func (d *division) choose() {
	given := make([]bool, len(d.sms))
	give := func(i, g int) {
		d.targets[i] = append(d.targets[i], g)
		given[g] = true
	}
	if d.oddOf >= 0 {
		give(d.oddOf, d.odd)
	}
	lacks := func(i int) bool {
		n := len(d.targets[i])
		if i == d.oddOf {
			n--
		}
		return n < d.units[i]
	}
	take := func(i int, from []int) {
		for _, g := range d.nearest(i, from) {
			if lacks(i) && !given[g] && g != d.odd {
				give(i, g)
			}
		}
	}
	for i, c := range d.claims {
		take(i, c.Ordered)
	}
	for i, c := range d.claims {
		take(i, c.Busy)
	}
	var free, leaving []int
	for g, owner := range d.owner {
		if owner == nobody {
			free = append(free, g)
		} else {
			leaving = append(leaving, g)
		}
	}
	// Free ones go first to who must leave all that it has, since others wait for
	// that; then to who has nothing, to start at once. The rest have something to run
	// on while they wait.
	order := make([]int, len(d.claims))
	urgency := make([]int, len(d.claims))
	for i, c := range d.claims {
		order[i] = i
		switch {
		case len(c.Ordered) == 0:
			urgency[i] = 1
		case len(d.targets[i]) == 0:
			urgency[i] = 2
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(urgency[b], urgency[a]) })
	for _, from := range [][]int{free, leaving} {
		for _, i := range order {
			take(i, from)
		}
	}
	for i := range d.targets {
		slices.Sort(d.targets[i])
	}
}

// nearest sorts groups by how near they are to a claim's home: the claims live in
// their order along the groups, the first at one end, the last at the other. A set
// of groups costs a process memory once (cuda.Context.Green): the fewer, the better.
func (d *division) nearest(i int, groups []int) []int {
	last := max(1, len(d.claims)-1)
	far := func(g int) int { // in parts of a group, last of them
		off := g*last - i*(len(d.sms)-1)
		return max(off, -off)
	}
	out := slices.Clone(groups)
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(far(a), far(b)) })
	return out
}

// orders say what of the targets can be ordered now.
func (d *division) orders() []Order {
	out := make([]Order, len(d.claims))
	for i, c := range d.claims {
		target := d.targets[i]
		var can, kept []int
		for _, g := range target {
			if d.owner[g] == nobody || d.owner[g] == i {
				can = append(can, g)
			}
			if slices.Contains(c.Ordered, g) {
				kept = append(kept, g)
			}
		}
		now := can
		if len(can) < len(target) && len(c.Ordered) > 0 {
			// One move when all is free, not one for each that leaves.
			if now = kept; len(kept) == 0 {
				now = slices.Clone(c.Ordered)
			}
		}
		out[i] = Order{ID: c.ID, Target: target, Now: now}
	}
	return out
}
