package gslice

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Controller decides when shares change. It is a state machine without a clock: times are
// parameters, as durations since any fixed start. It is not safe for concurrent use.
//
// At each Step Algorithm 1 tunes the demand of each IF whose hold-down has passed. Earlier
// observations are of the share before the change. Then shares are allocated among these IFs.
// The others keep their shares, and so do IFs whose share would change by at most the
// threshold.
//
// After an IF was added, replaced or removed, or the steps changed, the next Step ignores
// hold-downs and the threshold.
type Controller struct {
	cfg     Config
	members map[ID]*member
	forced  bool // since the last Step, an IF was added, removed or replaced, or the steps changed
}

// member is one IF.
type member struct {
	id      ID
	percent float64       // its share; 0 until it has one
	demand  float64       // the share that it needs
	why     string        // the reason of the demand
	changed time.Duration // when percent last changed
	steps   []float64     // the allowed shares, ascending; empty: all
}

// Change is one IF's new share.
type Change struct {
	ID ID
	// From is 0 for an IF that had no share.
	From, To float64
	Why      string
}

// NewController returns a controller without IFs.
func NewController(c Config) *Controller {
	return &Controller{cfg: c, members: make(map[ID]*member)}
}

// Members are the IDs of the IFs, sorted.
func (c *Controller) Members() []ID { return slices.SortedFunc(maps.Keys(c.members), ID.Compare) }

// Adopt adds an IF, which gets a share at the next Step. kneePercent is its demand until there
// are observations (3.2.3), 0 if it is not known. If the IF exists, Adopt records which share it has:
// another one than the last Step's if that change could not be made, or was overridden.
func (c *Controller) Adopt(id ID, percent, kneePercent float64) (added bool) {
	if m := c.members[id]; m != nil {
		m.percent = floorTo(percent)
		return false
	}
	c.members[id] = &member{id: id, demand: c.elastic(kneePercent), why: whyUnobserved}
	c.forced = true
	return true
}

// Replace records that an IF runs another model. It forgets the demand of the old model. The
// share stays until the next Step.
func (c *Controller) Replace(id ID, kneePercent float64) {
	if m := c.members[id]; m != nil {
		m.demand, m.why, c.forced = c.elastic(kneePercent), whyUnobserved, true
	}
}

// Remove removes an IF. The next Step gives its share to other IFs that need it.
func (c *Controller) Remove(id ID) {
	delete(c.members, id)
	c.forced = true
}

// Set records a share that was set by hand. It is the demand until the IF is tuned or replaced.
func (c *Controller) Set(id ID, percent float64) {
	if m := c.members[id]; m != nil {
		m.percent, m.demand, m.why = floorTo(percent), c.cfg.clamp(percent), whySet
	}
}

// SetSteps sets the shares that an IF may have, ascending: percentages of a GPU at which its model
// answers correctly. If steps is empty, all are allowed. If they have changed, or the IF's present
// share is none of them, the next Step allocates all shares again.
func (c *Controller) SetSteps(id ID, steps []float64) {
	m := c.members[id]
	if m == nil {
		return
	}
	steps = slices.Clone(steps)
	for i, s := range steps {
		steps[i] = floorTo(s)
	}
	if !slices.Equal(steps, m.steps) {
		m.steps, c.forced = steps, true
	}
	c.forced = c.forced || !m.allows(m.percent)
}

// elastic returns the demand of an IF without observations: its knee (3.2.3).
func (c *Controller) elastic(kneePercent float64) float64 {
	if !(kneePercent > 0) {
		kneePercent = unknownPercent
	}
	return c.cfg.clamp(kneePercent)
}

// Step decides. observed has the IFs that were observed since their share last changed. The changes must be made in
// this order. Cuts come first, so that shares never add up to more than 100 %. Changes count as made unless
// Adopt records another share.
func (c *Controller) Step(now time.Duration, observed map[ID]Observation) (changes []Change) {
	total := 100.0
	var free []*member
	for _, id := range c.Members() {
		m := c.members[id]
		settled := m.percent > 0 && now-m.changed >= c.cfg.HoldDown
		if o, ok := observed[m.id]; ok && settled {
			d := tune(m.percent, o, c.cfg)
			m.demand, m.why = d.percent, d.why
		}
		if c.forced || settled || m.percent == 0 {
			free = append(free, m)
		} else {
			total -= m.percent
		}
	}
	for _, g := range c.allocate(max(0, total), free) {
		m := c.members[g.ID]
		if g.Percent == m.percent {
			continue
		}
		changes = append(changes, Change{ID: m.id, From: m.percent, To: g.Percent, Why: m.why})
		m.percent, m.changed = g.Percent, now
	}
	slices.SortStableFunc(changes, func(a, b Change) int { // sorted by ID already
		return cmp.Compare(direction(a), direction(b))
	})
	c.forced = false
	return changes
}

// direction is -1 for a cut.
func direction(c Change) int {
	if c.To < c.From {
		return -1
	}
	return 1
}

// allocate divides total among those of free whose share changes by more than the threshold.
// The others keep their shares, and total is less by them.
func (c *Controller) allocate(total float64, free []*member) []grant {
	rest := slices.Clone(free)
	for {
		demands := make([]shareDemand, len(rest))
		for i, m := range rest {
			demands[i] = shareDemand{ID: m.id, Percent: m.demand, Steps: m.steps}
		}
		grants, kept := c.cfg.divide(total, demands), len(rest)
		for _, g := range grants {
			if m := c.members[g.ID]; !c.forced && c.small(m, g.Percent) && m.percent <= total {
				total -= m.percent
				rest = slices.DeleteFunc(rest, func(r *member) bool { return r == m })
			}
		}
		if len(rest) == kept {
			return grants
		}
	}
}

// small reports whether a change of an IF's share is within the threshold. A change from a share
// that is no step to a step never is.
func (c *Controller) small(m *member, to float64) bool {
	if m.allows(to) && !m.allows(m.percent) {
		return false
	}
	return m.percent > 0 && math.Abs(to-m.percent) <= m.percent*thresholdPercent/100
}

// allows reports whether the IF may have a share.
func (m *member) allows(percent float64) bool {
	return len(m.steps) == 0 || slices.Contains(m.steps, percent)
}
