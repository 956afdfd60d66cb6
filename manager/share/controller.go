package share

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Returned by Controller's methods.
var (
	// ErrKnown is returned when an IF is added that is there already.
	ErrKnown = errors.New("is there already")
	// ErrUnknown is returned when an IF is named that was never added, or removed.
	ErrUnknown = errors.New("is not there")
)

// Controller decides when shares change. It is a state machine without a clock:
// times are given to it, as durations since any fixed start. It is not safe for
// concurrent use.
//
// At each Step, in this order:
//
//  1. The demand of every IF that is past its hold-down is tuned anew. The others
//     keep theirs: what was observed so soon after a change is still of the share
//     before.
//  2. What is remembered bounds it: a raise goes to what lately was enough for the
//     load, a cut half the way to what lately was too little. So where the device
//     is not in proportion (a queue grows faster than the share shrinks), a share
//     closes in on what is needed instead of swinging about it, and where there is
//     not enough for all, demands do not follow the grants that follow them: one
//     that is not granted in full stands until the objective is met.
//  3. What may not change is pinned: IFs in their hold-down, and changes within
//     the threshold, but for cuts without which another IF would go short by more.
//     The rest is allocated among the others.
//
// An IF that gains nothing from its share lends what others lack of it (Lend).
//
// After an IF was added, replaced or removed, or when one that lent needs its share again,
// the next Step passes over hold-downs.
type Controller struct {
	cfg     Config
	members map[ID]*member
	forced  bool // an IF came, went or was replaced since the last Step
}

// member is one IF.
type member struct {
	id      ID
	percent float64 // its share; 0 until it has one
	// demand is what it wants, direction and why how that came about.
	demand    float64
	direction Direction
	why       string
	waiting   bool          // nobody serves it yet
	held      bool          // its share stays, at this step
	loan      Loan          // whether it lends
	had       float64       // what it had when it began to, or was to have
	changed   time.Duration // when percent last changed
	// The need lies between these two, as long as they last.
	tooLittle, enough mark
}

// mark is a share that proved too little, or enough, for an objective (in seconds)
// at an arrival rate.
type mark struct {
	percent, rate, slo float64
	until              time.Duration
}

func (m mark) lasts(now time.Duration) bool { return m.percent > 0 && now < m.until }

// reason is why its share is what it is.
func (m *member) reason() string {
	switch m.loan {
	case Silent:
		return whySilent
	case Vain:
		return whyVain
	}
	return m.why
}

// Change is one IF's new share.
type Change struct {
	ID ID
	// From is 0 for an IF that had no share.
	From, To float64
	Why      string
}

func (c Change) direction() Direction {
	if c.To < c.From {
		return Cut
	}
	return Raise
}

// Status is what an IF wants and has.
type Status struct {
	ID              ID
	Percent, Demand float64
	Why             string
}

// Plan is what a Step decided.
type Plan struct {
	// Changes are to be made in this order: cuts come first, so that at no time
	// more than 100 % are out. They count as made; Failed tells otherwise.
	Changes []Change
	// Status has every IF, sorted by ID.
	Status []Status
}

// NewController returns a controller of no IFs.
func NewController(c Config) (*Controller, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Controller{cfg: c, members: make(map[ID]*member)}, nil
}

// Add takes an IF in; it gets a share at the next Step, which reallocates at
// once. kneePercent is its demand until there are observations, 0 where it is not
// known.
func (c *Controller) Add(id ID, kneePercent float64) error {
	if _, ok := c.members[id]; ok {
		return fmt.Errorf("add %v: %w", id, ErrKnown)
	}
	c.members[id] = &member{id: id, demand: c.elastic(kneePercent), why: whyUnobserved}
	c.forced = true
	return nil
}

// Wait says that nobody serves an IF that was added, and that its share may change when
// somebody does: until Serves it wants no more than its neighbours leave, and the minimum
// at least, so that they keep what they use while its model is loaded.
func (c *Controller) Wait(id ID) error {
	m, ok := c.members[id]
	if !ok {
		return fmt.Errorf("let %v wait: %w", id, ErrUnknown)
	}
	m.waiting, c.forced = true, true
	return nil
}

// Serves says that an IF that waited is served: the next Step gives it what it wants, at
// once. It reports whether it had waited.
func (c *Controller) Serves(id ID) bool {
	m, ok := c.members[id]
	if !ok || !m.waiting {
		return false
	}
	m.waiting, c.forced = false, true
	return true
}

// Loan is whether an IF lends its share to those that lack it, and why.
type Loan int8

// The loans.
const (
	NoLoan Loan = iota
	// Silent: nothing comes to it any more, or yet. It keeps what nobody lacks, is not
	// judged, and what it wants stands until something comes.
	Silent
	// Vain: no share meets its objective. It wants an equal part at most.
	Vain
)

// Lend says whether an IF lends. While it does it wants no more than those that do not lend
// leave, and the minimum at least. Where nobody goes short nothing moves for it. One that
// is silent no more is given what it wanted before by the next Step, which passes over
// hold-downs if it had lent any: those of the others, too, since what they have of it is a
// loan.
func (c *Controller) Lend(id ID, loan Loan) error {
	m, ok := c.members[id]
	if !ok {
		return fmt.Errorf("lend the share of %v: %w", id, ErrUnknown)
	}
	switch {
	case loan == m.loan:
		return nil
	case m.loan == NoLoan && (m.waiting || m.percent == 0):
		m.had = max(m.percent, m.demand)
	case m.loan == NoLoan:
		m.had = m.percent
	case m.loan == Silent && loan == NoLoan && m.percent < m.had:
		m.why, c.forced = whyReturns, true
	}
	m.loan = loan
	return nil
}

// Replace says that an IF runs another model now: what was learned of the old one
// is forgotten, its share stays until the next Step, which reallocates at once.
func (c *Controller) Replace(id ID, kneePercent float64) error {
	m, ok := c.members[id]
	if !ok {
		return fmt.Errorf("replace %v: %w", id, ErrUnknown)
	}
	*m = member{id: id, percent: m.percent, changed: m.changed, waiting: m.waiting, loan: m.loan, demand: c.elastic(kneePercent), why: whyUnobserved}
	m.had = max(m.percent, m.demand)
	c.forced = true
	return nil
}

// Remove lets an IF go. The next Step gives its share to those that want it.
func (c *Controller) Remove(id ID) error {
	if _, ok := c.members[id]; !ok {
		return fmt.Errorf("remove %v: %w", id, ErrUnknown)
	}
	delete(c.members, id)
	c.forced = true
	return nil
}

// Failed says that a change could not be made and the IF still has that share.
func (c *Controller) Failed(id ID, percent float64) error {
	m, ok := c.members[id]
	if !ok {
		return fmt.Errorf("fail the change of %v: %w", id, ErrUnknown)
	}
	m.percent = floorTo(percent)
	return nil
}

// Set says that an IF was given a share by hand, and wants that much until it is tuned or
// replaced.
func (c *Controller) Set(id ID, percent float64) error {
	m, ok := c.members[id]
	if !ok {
		return fmt.Errorf("set the share of %v: %w", id, ErrUnknown)
	}
	m.percent = floorTo(percent)
	m.demand, m.direction, m.why = c.cfg.clamp(percent), Hold, whySet
	return nil
}

// elastic is the demand of an IF without observations: its knee (3.2.3).
func (c *Controller) elastic(kneePercent float64) float64 {
	if !(kneePercent > 0) {
		kneePercent = c.cfg.UnknownPercent
	}
	return c.cfg.clamp(kneePercent)
}

// Step decides. observed has the IFs of which something was observed since their
// share last changed; averages over a longer time would judge the new share by
// the old one.
func (c *Controller) Step(now time.Duration, observed map[ID]Observation) Plan {
	members := make([]*member, 0, len(c.members))
	for _, m := range c.members {
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b *member) int { return a.id.Compare(b.id) })

	var held, free []*member
	for _, m := range members {
		settled := m.percent > 0 && now-m.changed >= c.cfg.HoldDown
		if o, ok := observed[m.id]; ok && settled && m.loan != Silent {
			c.tune(m, o, now)
		}
		if m.held = !c.forced && !settled && m.percent > 0; !m.held {
			free = append(free, m)
		} else {
			held = append(held, m)
		}
	}
	var p Plan
	for _, g := range c.allocate(held, free) {
		m := c.members[g.ID]
		if g.Percent == m.percent {
			continue
		}
		p.Changes = append(p.Changes, Change{ID: m.id, From: m.percent, To: g.Percent, Why: m.reason()})
		m.percent, m.changed = g.Percent, now
	}
	slices.SortStableFunc(p.Changes, func(a, b Change) int { // sorted by ID already
		return cmp.Compare(a.direction(), b.direction())
	})
	for _, m := range members {
		p.Status = append(p.Status, Status{ID: m.id, Percent: m.percent, Demand: m.demand, Why: m.reason()})
	}
	c.forced = false
	return p
}

// tune brings an IF's demand up to date, and what is known of its need.
func (c *Controller) tune(m *member, o Observation, now time.Duration) {
	d := Tune(m.percent, o, c.cfg)
	// What was too little for a load is so for a heavier one and a tighter
	// objective; what was enough, for a lighter one and a looser objective.
	below, above := 1-c.cfg.ThresholdPercent/100, 1+c.cfg.ThresholdPercent/100
	tooLittle := m.tooLittle.lasts(now) && o.ArrivalRate >= m.tooLittle.rate*below && o.SLO.Seconds() <= m.tooLittle.slo*above
	enough := m.enough.lasts(now) && o.ArrivalRate <= m.enough.rate*above && o.SLO.Seconds() >= m.enough.slo*below
	here := mark{percent: m.percent, rate: o.ArrivalRate, slo: o.SLO.Seconds(), until: now + c.cfg.Memory}
	switch {
	case d.Why == whyEnough && tooLittle && m.direction == Raise && m.percent < m.demand && !o.met():
		// It got less than it wanted, and the objective is missed by less than it
		// takes to want more. Were that enough, the next tremble of the latency
		// would be too little again, and a demand that falls to the grant and rises
		// from it moves the shares of all.
		return
	case d.Direction == Raise:
		if tooLittle {
			here.percent = max(here.percent, m.tooLittle.percent)
			if m.direction == Raise {
				// It got less than it wanted and is short still: it wants no less.
				d.Percent = max(d.Percent, m.demand)
			}
		}
		if enough && m.percent < m.enough.percent {
			d.Percent = min(d.Percent, m.enough.percent)
		} else {
			m.enough = mark{}
		}
		m.tooLittle = here
	case d.Direction == Cut || d.Why == whyEnough:
		if tooLittle && m.percent > m.tooLittle.percent {
			d.Percent = max(d.Percent, min(m.percent, ceilTo((m.tooLittle.percent+m.percent)/2)))
		} else {
			m.tooLittle = mark{}
		}
		if enough {
			here.percent = min(here.percent, m.enough.percent)
		}
		m.enough = here
	}
	m.demand, m.why, m.direction = d.Percent, d.Why, d.Direction
}

// allocate gives the new shares of those free IFs whose share is worth changing.
// held ones keep theirs.
func (c *Controller) allocate(held, free []*member) []Grant {
	total := 100.0
	for _, m := range held {
		total -= m.percent
	}
	total = max(0, total) // a change that failed may leave more than 100 out
	fair := c.fair(total, free)
	if c.cfg.SpreadSlack && !slices.ContainsFunc(fair, c.owed) {
		return nil // what could change is slack alone
	}
	grants := c.worthwhile(total, free, true)
	gets := make(map[ID]float64)
	for _, m := range free {
		gets[m.id] = m.percent
	}
	for _, g := range grants {
		gets[g.ID] = g.Percent
	}
	// Small cuts are not worth a swap, but for an IF that would go short by them: a little
	// of a large share is a good part of a small one.
	for _, g := range fair {
		if got := gets[g.ID]; got < g.Percent && !c.small(g.Percent, got) {
			return c.worthwhile(total, free, false)
		}
	}
	return grants
}

// worthwhile divides total among those of free whose share changes by more than
// the threshold; the others keep theirs, and what they keep is not divided. Small
// cuts are kept from only if sparing.
func (c *Controller) worthwhile(total float64, free []*member, sparing bool) []Grant {
	rest, granted := slices.Clone(free), 0.0
	for {
		kept, most := len(rest), granted
		grants := c.cfg.divide(total, granted, c.demands(rest))
		for _, g := range grants {
			m := c.members[g.ID]
			if c.small(m.percent, g.Percent) && m.percent <= total && (sparing || g.Percent >= m.percent) {
				total -= m.percent
				if g.Percent >= floorTo(m.demand) {
					most = max(most, g.Percent)
				}
				rest = slices.DeleteFunc(rest, func(r *member) bool { return r == m })
			}
		}
		if len(rest) == kept {
			return grants
		}
		granted = most
	}
}

// fair is what those of free would get if no change were too small, slack left aside.
func (c *Controller) fair(total float64, free []*member) []Grant {
	frugal := c.cfg
	frugal.SpreadSlack = false
	return frugal.divide(total, 0, c.demands(free))
}

// owed reports whether an IF would get more than it has by a grant, by more than the
// threshold.
func (c *Controller) owed(g Grant) bool {
	has := c.members[g.ID].percent
	return g.Percent > has && !c.small(has, g.Percent)
}

// small reports whether a change of share is within the threshold.
func (c *Controller) small(from, to float64) bool {
	return from > 0 && math.Abs(to-from) <= from*c.cfg.ThresholdPercent/100
}

// demands are what IFs want, as far as those that wait or lend may have it.
func (c *Controller) demands(members []*member) []Demand {
	kept := c.kept()
	left, waiting := 100.0, 0
	for _, m := range c.members {
		switch keeps, lends := kept[m.id]; {
		case m.waiting:
			waiting++
		case lends:
			left -= keeps
		default:
			left -= ceilTo(c.cfg.stepAbove(m.demand))
		}
	}
	var ds []Demand
	for _, m := range members {
		d := Demand{ID: m.id, Percent: m.demand}
		if keeps, lends := kept[m.id]; lends {
			d.Percent = keeps
		}
		if m.waiting {
			d.Percent = min(m.demand, max(c.cfg.MinimumPercent, c.cfg.stepBelow(left/float64(waiting))))
		}
		ds = append(ds, d)
	}
	return ds
}

// kept are the demands of IFs that lend: together they have no more than the others leave.
func (c *Controller) kept() map[ID]float64 {
	left := 100.0
	var lenders []Demand
	for _, m := range c.members {
		switch {
		case m.waiting:
			left -= c.cfg.MinimumPercent
		case m.loan == Silent:
			// A raise would be a swap for nothing.
			lenders = append(lenders, Demand{ID: m.id, Percent: min(m.demand, m.percent)})
		case m.loan == Vain:
			lenders = append(lenders, Demand{ID: m.id, Percent: min(m.demand, 100/float64(len(c.members)))})
		default:
			left -= c.claim(m)
		}
	}
	frugal := c.cfg
	frugal.SpreadSlack = false
	kept := make(map[ID]float64)
	for _, g := range frugal.divide(max(0, left), 0, lenders) {
		kept[g.ID] = max(c.cfg.MinimumPercent, g.Percent)
	}
	return kept
}

// claim is the share that an IF would have now if there were enough for all.
func (c *Controller) claim(m *member) float64 {
	if wants := ceilTo(c.cfg.stepAbove(m.demand)); !m.held && !c.small(m.percent, wants) {
		return wants
	}
	return m.percent
}
