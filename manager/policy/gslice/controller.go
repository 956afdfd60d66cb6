package gslice

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
	errKnown   = errors.New("exists already")
	errUnknown = errors.New("does not exist")
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

// Status is the demand and the share of an IF.
type Status struct {
	ID              ID
	Percent, Demand float64
	Why             string
}

// Plan is the decision of a Step.
type Plan struct {
	// Changes must be made in this order. Cuts come first, so that shares never add up to more
	// than 100 %. Changes count as made unless Failed is called.
	Changes []Change
	// Status has every IF, sorted by ID.
	Status []Status
}

// NewController returns a controller without IFs.
func NewController(c Config) (*Controller, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Controller{cfg: c, members: make(map[ID]*member)}, nil
}

// Add adds an IF, which gets a share at the next Step. kneePercent is its demand until there
// are observations (3.2.3), 0 if it is not known.
func (c *Controller) Add(id ID, kneePercent float64) error {
	if _, ok := c.members[id]; ok {
		return fmt.Errorf("add %v: %w", id, errKnown)
	}
	c.members[id] = &member{id: id, demand: c.elastic(kneePercent), why: whyUnobserved}
	c.forced = true
	return nil
}

// Replace records that an IF runs another model. It forgets the demand of the old model. The
// share stays until the next Step.
func (c *Controller) Replace(id ID, kneePercent float64) error {
	m, err := c.member(id)
	if err != nil {
		return err
	}
	m.demand, m.why, c.forced = c.elastic(kneePercent), whyUnobserved, true
	return nil
}

// Remove removes an IF. The next Step gives its share to other IFs that need it.
func (c *Controller) Remove(id ID) error {
	if _, err := c.member(id); err != nil {
		return err
	}
	delete(c.members, id)
	c.forced = true
	return nil
}

// Failed records that a change could not be made, and that the IF still has this share.
func (c *Controller) Failed(id ID, percent float64) error {
	m, err := c.member(id)
	if err != nil {
		return err
	}
	m.percent = floorTo(percent)
	return nil
}

// Set records a share that was set by hand. It is the demand until the IF is tuned or replaced.
func (c *Controller) Set(id ID, percent float64) error {
	m, err := c.member(id)
	if err != nil {
		return err
	}
	m.percent, m.demand, m.why = floorTo(percent), c.cfg.clamp(percent), whySet
	return nil
}

// SetSteps sets the shares that an IF may have, ascending: percentages of a GPU at which its model
// answers correctly. If steps is empty, all are allowed. If they have changed, or the IF's present
// share is none of them, the next Step allocates all shares again.
func (c *Controller) SetSteps(id ID, steps []float64) error {
	m, err := c.member(id)
	if err != nil {
		return err
	}
	steps = slices.Clone(steps)
	for i, s := range steps {
		if steps[i] = floorTo(s); !(s > 0 && s <= 100) || i > 0 && s <= steps[i-1] {
			return fmt.Errorf("share steps of %v: %v do not ascend from above 0 to at most 100", id, steps)
		}
	}
	if !slices.Equal(steps, m.steps) {
		m.steps, c.forced = steps, true
	}
	c.forced = c.forced || !m.allows(m.percent)
	return nil
}

func (c *Controller) member(id ID) (*member, error) {
	m, ok := c.members[id]
	if !ok {
		return nil, fmt.Errorf("share of %v: %w", id, errUnknown)
	}
	return m, nil
}

// elastic returns the demand of an IF without observations: its knee (3.2.3).
func (c *Controller) elastic(kneePercent float64) float64 {
	if !(kneePercent > 0) {
		kneePercent = c.cfg.UnknownPercent
	}
	return c.cfg.clamp(kneePercent)
}

// Step decides. observed has the IFs that were observed since their share last changed.
func (c *Controller) Step(now time.Duration, observed map[ID]Observation) Plan {
	members := make([]*member, 0, len(c.members))
	for _, m := range c.members {
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b *member) int { return a.id.Compare(b.id) })

	total := 100.0
	var free []*member
	for _, m := range members {
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
	var p Plan
	for _, g := range c.allocate(max(0, total), free) {
		m := c.members[g.ID]
		if g.Percent == m.percent {
			continue
		}
		p.Changes = append(p.Changes, Change{ID: m.id, From: m.percent, To: g.Percent, Why: m.why})
		m.percent, m.changed = g.Percent, now
	}
	slices.SortStableFunc(p.Changes, func(a, b Change) int { // sorted by ID already
		return cmp.Compare(direction(a), direction(b))
	})
	for _, m := range members {
		p.Status = append(p.Status, Status{ID: m.id, Percent: m.percent, Demand: m.demand, Why: m.why})
	}
	c.forced = false
	return p
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
	return m.percent > 0 && math.Abs(to-m.percent) <= m.percent*c.cfg.ThresholdPercent/100
}

// allows reports whether the IF may have a share.
func (m *member) allows(percent float64) bool {
	return len(m.steps) == 0 || slices.Contains(m.steps, percent)
}
