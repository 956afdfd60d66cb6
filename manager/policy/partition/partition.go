// Package partition divides a GPU's multiprocessors (SMs) among the instances of
// inference functions, so that no two instances ever run on the same one. It has no
// clock and no I/O.
//
// The device splits into groups of equal size. If they do not fill it, a last group of
// another size remains, the odd group. An index names the same physical multiprocessors
// in every process. Shares are percent of all multiprocessors.
//
//	shares ──Divide──> target of each instance ──> what can be ordered now ──> processes
//	  Minimum ──^             ^                                                   │
//	                          └──────── Allocator: where each may run <───────────┘
//
// divide decides:
//
//  1. How many: each instance gets one group, or as many as its model needs. The rest
//     goes by share: first whole groups, then one group for each of the largest
//     remainders.
//  2. Which: first the groups that the instance has, then free groups, then those that
//     other instances are about to leave. Nearer groups come first, so an instance that
//     grows and shrinks returns to the same ones.
//  3. When: an instance is ordered to its target once no other process may run there.
//     Until then it keeps the part of the target that it has. So an instance shrinks at
//     once, and grows when its neighbours have left.
//
// A process reports the groups on which its model does not run. Minimum learns from that
// how many groups the model needs, and which single groups are infeasible.
package partition

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/manager/policy/gslice"
)

// ErrTooMany is returned if there are more claims than groups.
var ErrTooMany = errors.New("more instances than groups of multiprocessors")

// Claim is what one instance wants, and where its processes are.
type Claim struct {
	ID      gslice.ID
	Percent float64
	// Min is the number of groups that the model needs with any share; 0 means 1. If there
	// are too few groups for all such models, the first claims get theirs, and each of the
	// others gets at least one.
	Min int
	// Infeasible are groups that the model does not run on if it has only one of them. The
	// instance moves to another group once one is free. Until then it also has a second one.
	Infeasible []int
	// Ordered are the groups of the instance's last order, ascending; empty before the first.
	Ordered []int
	// Busy are the groups that the instance's processes may be running on. That includes
	// processes that move, end, or have died without an observed end. Claims have no busy
	// group in common. Allocator sets it.
	Busy []int
}

// Order is what an instance gets.
type Order struct {
	ID gslice.ID
	// Target are the groups that the instance should have. Now are those that can be
	// ordered at once. Both ascend. They differ while other processes have to leave. Now is
	// empty if the instance has no group yet and must wait.
	Target, Now []int
}

// Waits reports whether other processes must leave before the target can be ordered.
func (o *Order) Waits() bool { return !slices.Equal(o.Target, o.Now) }

// A claim gets one more group only if it lacks at least minRemainder of a group. If claims
// compete for the last groups, one that already has the group lacks stickiness more.
const (
	minRemainder = 1.0 / 8
	stickiness   = 1.0 / 4
)

// Hysteresis: small groups could follow every change of a share, and each change is a move.
// A claim gets one more group only if it lacks more than lackSMs multiprocessors. It gives up
// a group that no other claim needs only if it has more than excessSMs too many.
const (
	lackSMs   = 1.5
	excessSMs = 2.0
)

// divide returns the groups of each claim, in the order of the claims. Their IDs must
// differ. groupSMs are the sizes of the groups by index; only the last may differ. taken are
// groups on which processes without a claim may still run. They can be in a target, and are
// ordered when they are free. divide returns ErrTooMany if there are fewer groups than
// claims.
//
// Call divide again after each change of a share or of a busy group. Ordered must then be
// what the last call returned as Now.
func divide(groupSMs []int, claims []Claim, taken []int) ([]Order, error) {
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
	d.applyHysteresis()
	d.choose()
	return d.orders(), nil
}

// division is the state of one call of divide. A claim and a group are named by their indices.
type division struct {
	claims []Claim
	sms    []int
	unit   float64 // multiprocessors of an ordinary group
	odd    int     // the odd group; none if there is none
	owner  []int   // by group: the claim whose processes may run on it, none, or several
	// fallbacks has, by claim, a free group for a claim without a feasible group; none for
	// the other claims.
	fallbacks []int

	minimum    []int     // groups, by claim
	ideals     []float64 // multiprocessors, by claim
	had, given []float64 // multiprocessors of the last order and of this division, by claim
	units      []int     // ordinary groups, by claim
	left       int       // ordinary groups of no claim
	oddOf      int       // the claim that gets the odd group; none if no claim does
	oddAlone   bool      // that claim gets no other group

	targets  [][]int
	assigned []bool // by group
}

// Values of division's indices that are no claim or group.
const (
	none    = -1
	several = -2 // more than one claim, or processes without a claim
)

func newDivision(groupSMs []int, claims []Claim, taken []int) *division {
	d := &division{
		claims: claims, sms: groupSMs, unit: float64(groupSMs[0]), odd: none, oddOf: none,
		had: make([]float64, len(claims)), given: make([]float64, len(claims)),
		units: make([]int, len(claims)), targets: make([][]int, len(claims)), assigned: make([]bool, len(groupSMs)),
	}
	if last := len(groupSMs) - 1; groupSMs[last] != groupSMs[0] {
		d.odd = last
	}
	d.findOwners(taken)

	d.minimum = minimums(d.countable(), claims)
	left := d.countable()
	for _, n := range d.minimum {
		left -= n
	}
	d.fallbacks = slices.Repeat([]int{none}, len(claims))
	for i := range claims {
		if !d.unplaced(i) {
			continue
		}
		if d.fallbacks[i] = d.fallback(i); d.fallbacks[i] == none && left > 0 {
			d.minimum[i]++ // until a feasible group is free
			left--
		}
	}

	total := 0
	for _, n := range groupSMs {
		total += n
	}
	d.ideals = idealsOf(float64(total), d.unit, claims, d.minimum)
	return d
}

// findOwners finds the claim whose processes may run on each group.
func (d *division) findOwners(taken []int) {
	d.owner = slices.Repeat([]int{none}, len(d.sms))
	own := func(i int, groups []int) {
		for _, g := range groups {
			if d.owner[g] == none {
				d.owner[g] = i
			} else if d.owner[g] != i {
				d.owner[g] = several
			}
		}
	}
	own(several, taken)
	for i, c := range d.claims {
		own(i, c.Ordered)
		own(i, c.Busy)
	}
}

// unplaced reports whether one group would be enough for a claim, and it has none that is
// feasible alone.
func (d *division) unplaced(i int) bool {
	c := d.claims[i]
	return c.Min <= 1 && len(c.Infeasible) > 0 && !slices.ContainsFunc(c.Ordered, func(g int) bool {
		return !slices.Contains(c.Infeasible, g) && (g != d.odd || len(c.Ordered) == 1)
	})
}

// fallback returns a free ordinary group that is not known to be infeasible and is no other
// claim's fallback. It returns none if there is no such group.
func (d *division) fallback(i int) int {
	for _, g := range d.nearest(i, d.free()) {
		if g != d.odd && !slices.Contains(d.claims[i].Infeasible, g) {
			return g
		}
	}
	return none
}

// free returns the groups that no process may run on and that are no fallback.
func (d *division) free() (groups []int) {
	for g, owner := range d.owner {
		if owner == none && !slices.Contains(d.fallbacks, g) {
			groups = append(groups, g)
		}
	}
	return groups
}

// countable returns the number of groups for what models need. It leaves out a tiny odd
// group unless there are too few groups without it.
func (d *division) countable() int {
	if d.tiny() && len(d.claims) < len(d.sms) {
		return len(d.sms) - 1
	}
	return len(d.sms)
}

// minimums returns the minimum number of groups of each claim. It is one, and more for a model
// that needs more, while there are enough groups, in the order of the claims.
func minimums(groups int, claims []Claim) []int {
	out, left := make([]int, len(claims)), groups-len(claims)
	for i, c := range claims {
		out[i] = 1
		if more := c.Min - 1; more > 0 && more <= left {
			out[i] += more
			left -= more
		}
	}
	return out
}

// idealsOf returns the multiprocessors of each claim if groups had no size: its part of
// total, and at least its minimum. If that is more than total, claims above their minimum
// shrink in proportion.
func idealsOf(total, unit float64, claims []Claim, minimum []int) []float64 {
	out := make([]float64, len(claims))
	raised := make([]bool, len(claims)) // to the minimum
	for {
		left, wanted := total, 0.0
		for i, c := range claims {
			if raised[i] {
				left -= unit * float64(minimum[i])
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
			if raised[i] {
				continue
			}
			out[i] = c.Percent / 100 * total * scale
			if lowest := unit * float64(minimum[i]); !(out[i] > lowest) {
				out[i], raised[i], again = lowest, true, true
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
	spare := false // no model needs the odd group
	if d.odd != none {
		d.left--
		if spare = d.countable() == d.left; !spare {
			d.giveOdd(d.left)
		}
	}
	for i, c := range d.claims {
		if d.had[i] = d.orderedSMs(c); spare && slices.Contains(c.Ordered, d.odd) {
			d.had[i] -= float64(d.sms[d.odd])
		}
	}
	d.giveMinimums()
	d.giveByShare()
	if spare {
		d.giveSpareOdd()
	}
}

// giveUnit gives a claim one ordinary group.
func (d *division) giveUnit(i int) {
	d.units[i]++
	d.given[i] += d.unit
	d.left--
}

// giveMinimums gives each claim its minimum number of groups.
func (d *division) giveMinimums() {
	for i := range d.claims {
		if i == d.oddOf {
			d.given[i] = float64(d.sms[d.odd])
		} else {
			d.giveUnit(i)
		}
		for n := 1; n < d.minimum[i]; n++ {
			d.giveUnit(i)
		}
	}
}

// giveByShare gives the remaining groups to the claims that lack most: first whole groups,
// then one group for each of the largest remainders.
func (d *division) giveByShare() {
	for d.left > 0 {
		i, lack := largest(len(d.claims), d.lack)
		if lack <= d.unit {
			break
		}
		d.giveUnit(i)
	}
	for d.left > 0 {
		i, lack := largest(len(d.claims), d.stickyLack)
		if lack <= minRemainder*d.unit {
			break
		}
		d.giveUnit(i)
	}
}

// giveSpareOdd gives the odd group to the claim that lacks most.
func (d *division) giveSpareOdd() {
	for i, c := range d.claims {
		if d.had[i] = d.given[i]; slices.Contains(c.Ordered, d.odd) {
			d.had[i]++
		}
	}
	if i, lack := largest(len(d.claims), d.stickyLack); lack > minRemainder*d.unit {
		d.oddOf = i
	}
}

// lack returns how many multiprocessors a claim lacks.
func (d *division) lack(i int) float64 {
	if d.oddAlone && i == d.oddOf {
		return 0
	}
	return d.ideals[i] - d.given[i]
}

// stickyLack is lack with stickiness.
func (d *division) stickyLack(i int) float64 {
	lack := d.lack(i)
	if lack > minRemainder*d.unit && d.had[i] > d.given[i] {
		lack += stickiness * d.unit
	}
	return lack
}

// orderedSMs counts the multiprocessors of a claim's last order.
func (d *division) orderedSMs(c Claim) (sms float64) {
	for _, g := range c.Ordered {
		sms += float64(d.sms[g])
	}
	return sms
}

// tiny reports whether the odd group is smaller than the others.
func (d *division) tiny() bool { return d.odd != none && float64(d.sms[d.odd]) < d.unit }

// applyHysteresis cancels changes by one group that are not worth a move. It has no effect on
// groups of 8 multiprocessors.
func (d *division) applyHysteresis() {
	for i, c := range d.claims {
		if d.changesBy(i, 1) && d.units[i] > d.minimum[i] && d.ideals[i]-d.orderedSMs(c) <= min(lackSMs, d.unit) {
			d.units[i]--
			d.left++
		}
	}
	for i, c := range d.claims {
		if d.left > 0 && d.changesBy(i, -1) && d.orderedSMs(c)-d.ideals[i] <= min(excessSMs, d.unit) {
			d.units[i]++
			d.left--
		}
	}
}

// changesBy reports whether a claim gets that many more ordinary groups than it was ordered,
// and nothing else changes for it.
func (d *division) changesBy(i, more int) bool {
	n := 0
	for _, g := range d.claims[i].Ordered {
		if g != d.odd {
			n++
		} else if i != d.oddOf {
			return false
		}
	}
	return n > 0 && d.units[i]-n == more && (i != d.oddOf || slices.Contains(d.claims[i].Ordered, d.odd))
}

// largest finds the first index below n with the largest value.
func largest(n int, valueOf func(i int) float64) (found int, value float64) {
	value = valueOf(0)
	for i := range n {
		if v := valueOf(i); v > value {
			found, value = i, v
		}
	}
	return found, value
}

// giveOdd gives the odd group to the claim that has it, if its share is large enough. Else it
// goes to the claim whose share exceeds its minimum most. If ordinary groups are enough for
// all, no claim gets it.
//
// A claim that needs the odd group keeps it until ordinary groups are free. Otherwise it would
// have to wait, and other claims may wait for the odd group. giveOdd sets oddAlone in this
// case.
func (d *division) giveOdd(units int) {
	best, holder, sum := 0, none, 0.0
	for i, c := range d.claims {
		if slices.Contains(c.Ordered, d.odd) {
			holder = i
			free := d.freeUnits()
			if d.fallbacks[i] != none {
				free++
			}
			if useful := d.usesOdd(i); useful || free < d.minimum[i]-len(c.Ordered)+1 {
				d.oddOf, d.oddAlone = i, !useful && d.minimum[i] == 1
				return
			}
		}
		if d.prefersOdd(i, best) {
			best = i
		}
		sum += d.ideals[i]
	}
	switch short := len(d.claims) > units || sum > float64(units)*d.unit; {
	case d.usesOdd(best):
		d.oddOf = best
	case short && holder != none && !d.infeasibleAlone(holder):
		d.oddOf = holder
	case short:
		d.oddOf = best
	}
}

// beyondMin returns how many multiprocessors of a claim's share exceed its minimum, for which
// ordinary groups are enough.
func (d *division) beyondMin(i int) float64 { return d.ideals[i] - d.unit*float64(d.minimum[i]) }

// usesOdd reports whether a claim's share is large enough for the odd group.
func (d *division) usesOdd(i int) bool {
	return d.beyondMin(i) > d.unit*minRemainder && !d.infeasibleAlone(i)
}

// freeUnits counts the free ordinary groups.
func (d *division) freeUnits() (n int) {
	for _, g := range d.free() {
		if g != d.odd {
			n++
		}
	}
	return n
}

// prefersOdd reports whether claim i should rather get the odd group than another claim.
func (d *division) prefersOdd(i, other int) bool {
	if a, b := d.infeasibleAlone(i), d.infeasibleAlone(other); a != b {
		return b
	}
	return d.beyondMin(i) > d.beyondMin(other)
}

// infeasibleAlone reports whether a claim would have only the odd group, on which its model
// does not run.
func (d *division) infeasibleAlone(i int) bool {
	return d.minimum[i] == 1 && d.ideals[i]-float64(d.sms[d.odd]) <= minRemainder*d.unit && slices.Contains(d.claims[i].Infeasible, d.odd)
}

// choose decides which groups each claim gets.
func (d *division) choose() {
	if d.oddOf != none {
		d.assign(d.oddOf, d.odd)
	}
	for i, g := range d.fallbacks {
		if g != none && d.lacksUnits(i) {
			d.assign(i, g)
		}
	}
	for i, c := range d.claims {
		d.take(i, c.Ordered)
	}
	for i, c := range d.claims {
		d.take(i, c.Busy)
	}

	var free, leaving []int
	for g, owner := range d.owner {
		if owner == none {
			free = append(free, g)
		} else {
			leaving = append(leaving, g)
		}
	}
	order := d.byUrgency()
	for _, from := range [][]int{free, leaving} {
		for _, i := range order {
			d.take(i, from)
		}
	}
	for i := range d.targets {
		slices.Sort(d.targets[i])
	}
}

func (d *division) assign(i, group int) {
	d.targets[i] = append(d.targets[i], group)
	d.assigned[group] = true
}

// lacksUnits reports whether a claim's target lacks ordinary groups.
func (d *division) lacksUnits(i int) bool {
	n := len(d.targets[i])
	if i == d.oddOf {
		n--
	}
	return n < d.units[i]
}

// take assigns ordinary groups to a claim that lacks some, the nearest first.
func (d *division) take(i int, from []int) {
	for _, g := range d.nearest(i, from) {
		if d.lacksUnits(i) && !d.assigned[g] && g != d.odd {
			d.assign(i, g)
		}
	}
}

// byUrgency sorts the claims for free groups. First come those that must leave a group that
// they need, since other claims wait for that group. Those without a group come next, to start
// at once. The others run while they wait.
func (d *division) byUrgency() []int {
	order := make([]int, len(d.claims))
	urgency := make([]int, len(d.claims))
	for i, c := range d.claims {
		order[i] = i
		switch {
		case len(c.Ordered) == 0:
			urgency[i] = 1
		case len(d.targets[i]) < min(d.minimum[i], len(c.Ordered)):
			urgency[i] = 2
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(urgency[b], urgency[a]) })
	return order
}

// nearest sorts groups by their distance from a claim's home. The homes lie along the groups in
// the order of the claims. A process pays memory for each set of groups that it used
// (cuda.Context.Green), so it should return to the same sets. Infeasible groups come last.
func (d *division) nearest(i int, groups []int) []int {
	last := max(1, len(d.claims)-1)
	distance := func(g int) int { // in units of 1/last of a group
		off := g*last - i*(len(d.sms)-1)
		return max(off, -off)
	}
	infeasible := func(g int) int {
		if slices.Contains(d.claims[i].Infeasible, g) {
			return 1
		}
		return 0
	}
	out := slices.Clone(groups)
	slices.SortStableFunc(out, func(a, b int) int {
		return cmp.Or(cmp.Compare(infeasible(a), infeasible(b)), cmp.Compare(distance(a), distance(b)))
	})
	return out
}

// orders returns the targets, and what of them can be ordered now.
func (d *division) orders() []Order {
	out := make([]Order, len(d.claims))
	for i, c := range d.claims {
		out[i] = Order{ID: c.ID, Target: d.targets[i], Now: d.orderNow(i)}
	}
	return out
}

// orderNow returns the groups that a claim can be ordered now.
func (d *division) orderNow(i int) []int {
	c, target := d.claims[i], d.targets[i]
	var possible, kept []int
	for _, g := range target {
		if d.owner[g] == none || d.owner[g] == i {
			possible = append(possible, g)
		}
		if slices.Contains(c.Ordered, g) {
			kept = append(kept, g)
		}
	}
	if len(possible) < len(target) && len(c.Ordered) > 0 {
		// Move once when all groups are free, not once for each.
		switch {
		case len(kept) >= min(d.minimum[i], len(c.Ordered)):
			return kept
		case slices.Contains(possible, d.fallbacks[i]):
			return possible // other claims may wait for what it leaves
		}
		return slices.Clone(c.Ordered)
	}
	if len(possible) == 1 && len(target) > 1 && (possible[0] == d.odd && d.tiny() || slices.Contains(c.Infeasible, possible[0])) {
		return nil // a start there would fail
	}
	return possible
}
