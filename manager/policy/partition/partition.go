// Package partition hands out a GPU's multiprocessors (SMs): which groups of them
// each instance of an inference function shall run on, so that no two instances
// ever run on the same. It is pure: no clock, no I/O, no memory but Ledger's.
//
// The device splits into groups of equal size and, where they do not go up, an odd
// last one; an index names the same physical multiprocessors in every process.
// Shares are percent of all multiprocessors. An odd group that is smaller than the
// others is given beside one of them, and alone only where there are not enough.
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

	"github.com/penstock/penstock/manager/policy/gslice"
)

// ErrTooMany is returned when there are more claims than groups.
var ErrTooMany = errors.New("more instances than groups of multiprocessors")

// Claim is what an instance wants, and where its processes are.
type Claim struct {
	ID      gslice.ID
	Percent float64
	// Least is how many groups its model needs to run at all, whatever its share; 0 is 1.
	// Where there are not groups enough for all that need more than one, the first claims
	// have theirs and others get one at least.
	Least int
	// Unfit are groups that its model does not run on when it has one of them alone. It
	// is moved to another, as soon as one is free, and has a second one until then.
	Unfit []int
	// Ordered are the groups that it was last ordered, ascending; empty at first.
	Ordered []int
	// Busy are the groups that its processes may be running on, those that are
	// moving, ending or dead and not buried included. Claims share none of them.
	Busy []int
}

// Order is what an instance gets.
type Order struct {
	ID gslice.ID
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

// Where groups are finer than shares are exact, a claim keeps as many as it has: it
// moves for a group more when it lacks more than lackSMs multiprocessors, and gives
// one up that others do not want when it has more than excessSMs too many.
const (
	lackSMs   = 1.5
	excessSMs = 2.0
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
	d.steady()
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
	// refuges are the free groups that claims move to which have none that they can have
	// alone; nobody for the others.
	refuges []int

	units   []int // ordinary groups, by claim
	left    int   // ordinary groups that nobody gets
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
	d.least = leastOf(d.countable(), claims)
	left := d.countable()
	for _, n := range d.least {
		left -= n
	}
	d.refuges = slices.Repeat([]int{nobody}, len(claims))
	for i := range claims {
		if !d.stranded(i) {
			continue
		}
		if d.refuges[i] = d.refuge(i); d.refuges[i] == nobody && left > 0 {
			d.least[i]++ // until one is free that it can have alone
			left--
		}
	}
	d.ideals = idealsOf(float64(total), d.unit, claims, d.least)
	return d
}

// stranded reports whether a claim that could do with one group has none that it can
// have alone.
func (d *division) stranded(i int) bool {
	c := d.claims[i]
	return c.Least <= 1 && len(c.Unfit) > 0 && !slices.ContainsFunc(c.Ordered, func(g int) bool {
		return !slices.Contains(c.Unfit, g) && (g != d.odd || len(c.Ordered) == 1)
	})
}

// refuge is a free ordinary group that a claim can have alone, as far as is known, and
// that is nobody else's refuge; nobody where there is none.
func (d *division) refuge(i int) int {
	for _, g := range d.nearest(i, d.free()) {
		if g != d.odd && !slices.Contains(d.claims[i].Unfit, g) {
			return g
		}
	}
	return nobody
}

// free are the groups that nobody may be running on and that are nobody's refuge.
func (d *division) free() (groups []int) {
	for g, owner := range d.owner {
		if owner == nobody && !slices.Contains(d.refuges, g) {
			groups = append(groups, g)
		}
	}
	return groups
}

// countable is how many groups there are for what models need: a tiny one is none,
// but where there are not enough.
func (d *division) countable() int {
	if d.tiny() && len(d.claims) < len(d.sms) {
		return len(d.sms) - 1
	}
	return len(d.sms)
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
	d.left = len(d.sms)
	alone, spare := false, false // of the odd group: its owner has nothing else; nobody needs it
	if d.odd >= 0 {
		d.left--
		if spare = d.countable() == d.left; !spare {
			alone = d.giveOdd(d.left)
		}
	}
	have := make([]float64, len(d.claims))
	had := make([]float64, len(d.claims))
	give := func(i int) {
		d.units[i]++
		have[i] += d.unit
		d.left--
	}
	for i, c := range d.claims {
		if had[i] = d.had(c); spare && slices.Contains(c.Ordered, d.odd) {
			had[i] -= float64(d.sms[d.odd])
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
	loyal := func(i int) float64 {
		lack := lacks(i)
		if lack > trifle*d.unit && had[i] > have[i] {
			lack += loyalty * d.unit
		}
		return lack
	}
	// Whole groups first, then the remainders: one group a claim, the largest first.
	for d.left > 0 {
		i, lack := most(len(d.claims), lacks)
		if lack <= d.unit {
			break
		}
		give(i)
	}
	for d.left > 0 {
		i, lack := most(len(d.claims), loyal)
		if lack <= trifle*d.unit {
			break
		}
		give(i)
	}
	if spare {
		for i, c := range d.claims {
			if had[i] = have[i]; slices.Contains(c.Ordered, d.odd) {
				had[i]++
			}
		}
		if i, lack := most(len(d.claims), loyal); lack > trifle*d.unit {
			d.oddOf = i
		}
	}
}

// had is how many multiprocessors a claim was ordered last.
func (d *division) had(c Claim) (sms float64) {
	for _, g := range c.Ordered {
		sms += float64(d.sms[g])
	}
	return sms
}

// tiny reports whether the odd group is smaller than the others.
func (d *division) tiny() bool { return d.odd >= 0 && float64(d.sms[d.odd]) < d.unit }

// steady takes back what is a group more or less and not worth a move. Groups of 8 are
// never that.
func (d *division) steady() {
	change := func(i, by int) bool {
		n := 0
		for _, g := range d.claims[i].Ordered {
			if g != d.odd {
				n++
			} else if i != d.oddOf {
				return false
			}
		}
		return n > 0 && d.units[i]-n == by && (i != d.oddOf || slices.Contains(d.claims[i].Ordered, d.odd))
	}
	for i, c := range d.claims {
		if change(i, 1) && d.units[i] > d.least[i] && d.ideals[i]-d.had(c) <= min(lackSMs, d.unit) {
			d.units[i]--
			d.left++
		}
	}
	for i, c := range d.claims {
		if d.left > 0 && change(i, -1) && d.had(c)-d.ideals[i] <= min(excessSMs, d.unit) {
			d.units[i]++
			d.left--
		}
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

// giveOdd gives the odd group to who has it while its share asks for it, else to who
// wants most beyond what its model needs; to nobody where ordinary groups serve
// everyone. It reports whether its new owner shall have nothing else: one that cannot do
// without the odd group keeps it until ordinary ones are free, for it could only wait for
// one while others may wait for this.
func (d *division) giveOdd(units int) (alone bool) {
	// What a model needs is no share: ordinary groups are enough for it.
	beyond := func(i int) float64 { return d.ideals[i] - d.unit*float64(d.least[i]) }
	useful := func(i int) bool { return beyond(i) > d.unit*trifle && !d.unfitAlone(i) }
	best, holder, sum := 0, nobody, 0.0
	for i, c := range d.claims {
		if slices.Contains(c.Ordered, d.odd) {
			holder = i
			free := d.freeUnits()
			if d.refuges[i] != nobody {
				free++
			}
			if useful(i) || free < d.least[i]-len(c.Ordered)+1 {
				d.oddOf = i
				return !useful(i) && d.least[i] == 1
			}
		}
		if d.before(i, best, beyond) {
			best = i
		}
		sum += d.ideals[i]
	}
	switch short := len(d.claims) > units || sum > float64(units)*d.unit; {
	case useful(best):
		d.oddOf = best
	case short && holder != nobody && !d.unfitAlone(holder):
		d.oddOf = holder
	case short:
		d.oddOf = best
	}
	return false
}

// freeUnits is how many ordinary groups are free.
func (d *division) freeUnits() (n int) {
	for _, g := range d.free() {
		if g != d.odd {
			n++
		}
	}
	return n
}

// before reports whether the odd group is better given to one claim than to another.
func (d *division) before(i, other int, beyond func(int) float64) bool {
	if a, b := d.unfitAlone(i), d.unfitAlone(other); a != b {
		return b
	}
	return beyond(i) > beyond(other)
}

// unfitAlone reports whether a claim would have the odd group and nothing else, on which
// its model does not run.
func (d *division) unfitAlone(i int) bool {
	return d.least[i] == 1 && d.ideals[i]-float64(d.sms[d.odd]) <= trifle*d.unit && slices.Contains(d.claims[i].Unfit, d.odd)
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
	for i, g := range d.refuges {
		if g != nobody && lacks(i) {
			give(i, g)
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
	// Free ones go first to who must leave what it cannot do without, since others wait for
	// that; then to who has nothing, to start at once. The rest have something to run
	// on while they wait.
	order := make([]int, len(d.claims))
	urgency := make([]int, len(d.claims))
	for i, c := range d.claims {
		order[i] = i
		switch {
		case len(c.Ordered) == 0:
			urgency[i] = 1
		case len(d.targets[i]) < min(d.least[i], len(c.Ordered)):
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
// Those that its model does not run on alone are the last.
func (d *division) nearest(i int, groups []int) []int {
	last := max(1, len(d.claims)-1)
	far := func(g int) int { // in parts of a group, last of them
		off := g*last - i*(len(d.sms)-1)
		return max(off, -off)
	}
	unfit := func(g int) int {
		if slices.Contains(d.claims[i].Unfit, g) {
			return 1
		}
		return 0
	}
	out := slices.Clone(groups)
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Or(cmp.Compare(unfit(a), unfit(b)), cmp.Compare(far(a), far(b))) })
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
			switch now = kept; {
			case len(kept) >= min(d.least[i], len(c.Ordered)):
			case slices.Contains(can, d.refuges[i]):
				now = can // others may wait for what it leaves
			default:
				now = slices.Clone(c.Ordered)
			}
		} else if len(can) == 1 && len(target) > 1 && (can[0] == d.odd && d.tiny() || slices.Contains(c.Unfit, can[0])) {
			now = nil // a start there would fail
		}
		out[i] = Order{ID: c.ID, Target: target, Now: now}
	}
	return out
}
