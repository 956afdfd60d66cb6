package sharing

import (
	"cmp"
	"fmt"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/gslice"
)

// of returns the members of a function that the last snapshot had.
func (d *Decider) of(function string) (list []*member) {
	for _, m := range d.members {
		if m.id.IF == function {
			list = append(list, m)
		}
	}
	return list
}

// Status adds to a function's status its part of the device. The instances must be there already, those on other
// devices too.
func (d *Decider) Status(s *control.FunctionStatus) {
	members := d.of(s.Name)
	if len(members) == 0 {
		return // no snapshot has it yet
	}
	s.Change = cmp.Or(s.Change, string(members[0].change))
	share := 0.0
	for _, m := range members {
		d.instanceStatus(m, &s.Instances[m.id.Instance])
		share += m.sharePercent()
		s.Limit = max(s.Limit, m.limit)
		// Requests are late with any share.
		if o, _ := m.measured.Observation(); o.AggregationBound && s.Bound == "" {
			s.Bound, s.BoundWhy = "aggregation", fmt.Sprintf("objective %v is missed before requests are complete: their fragments come too late, and no share helps", m.f.Objective)
		}
		if m.fit == control.FitUnder || s.Fit == control.FitUnknown {
			s.Fit = m.fit
		}
	}
	if members[0].whole() {
		share = wholePercent // all instances here use the same device, so it counts once
	}
	s.SharePercent += share
	if d.s.Config.Guarantees() {
		if s.Guarantee == nil {
			s.Guarantee = &control.GuaranteeStatus{}
		}
		d.addGuarantees(s.Guarantee, members)
		s.SharePercent = s.Guarantee.Percent
	}
}

// instanceStatus adds to an instance's status what its processes have of the device. While the instance moves, its
// share is that on the new device.
func (d *Decider) instanceStatus(m *member, s *control.InstanceStatus) {
	if s.Device == d.Device.Name {
		s.UsePercent, s.SharePercent, s.WholeDevice, s.SMGroups = round(100*m.entitled.use), m.sharePercent(), m.whole(), m.placement.groups
	}
	for i := range s.Processes {
		p := &s.Processes[i]
		if o := m.seen[p.Generation]; o != nil {
			p.Batches, p.WarmingUp, p.SMs, p.SMGroups = o.batches, o.growing, o.sms, o.groups
		}
	}
}

// addGuarantees adds the instances' guarantees.
func (d *Decider) addGuarantees(s *control.GuaranteeStatus, members []*member) {
	if d.onGPU() && !d.Device.MPS {
		s.Unprotected = control.UnprotectedByDevice
	}
	for _, m := range members {
		e, a := &m.entitled, d.guarantees.guaranteeOf(m, m.f.worker())
		s.Percent += round(100 * a.Guarantee)
		s.NeedPercent += round(100 * a.Need)
		s.UsePercent += round(100 * e.use)
		s.DemotedPercent += round(100 * e.demoted)
		s.UsedSeconds += e.spent.total.Seconds()
		s.DemotedSeconds += e.spent.demoted.Seconds()
		s.CostMillis = max(s.CostMillis, float64(d.costOf(m))/float64(time.Millisecond))
		level := int(d.level(m, a))
		s.Level = min(cmp.Or(s.Level, level), level)
		s.Infeasible, s.Unprotected = cmp.Or(s.Infeasible, a.Infeasible), cmp.Or(s.Unprotected, e.unprotected)
	}
	s.Unprotected = cmp.Or(s.Unprotected, d.unprotected())
}

// NeedsPercent is the sum of the needs of all functions, in percent of the device.
func (d *Decider) NeedsPercent() float64 { return round(100 * d.guarantees.needs) }

// Left is the part of the device, in percent, that the instances neither need nor have as a share.
func (d *Decider) Left() float64 {
	left := wholePercent - d.NeedsPercent()
	for _, m := range d.members {
		left -= m.Share
	}
	return left
}

// costOf is the device time per request of an instance.
func (d *Decider) costOf(m *member) time.Duration {
	e := &m.entitled
	return e.cost + time.Duration(float64(e.fixed)/d.batch(m))
}

// Members is the number of instances on the device.
func (d *Decider) Members() int { return len(d.members) }

// Use is an instance's guarantee and what it has used of the device.
type Use struct {
	Guarantee, Need float64 // parts of the device's time
	Infeasible      bool
	Behind          bool          // datapath.Window.Behind
	Cost            time.Duration // device time per request; 0: not known
	// Guaranteed and Demoted are device time within the guarantee, and beyond it.
	Guaranteed, Demoted time.Duration
}

// Use returns that of an instance; ok is false if the node has no guarantees.
func (d *Decider) Use(id gslice.ID) (u Use, ok bool) {
	m := find(d.members, id)
	if m == nil || !d.s.Config.Guarantees() {
		return u, false
	}
	e := &m.entitled
	return Use{e.action.Guarantee, e.action.Need, e.action.Infeasible != "", m.behind, d.costOf(m), e.spent.total - e.spent.demoted, e.spent.demoted}, true
}
