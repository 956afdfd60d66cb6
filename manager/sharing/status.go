package sharing

import (
	"cmp"
	"time"

	"github.com/penstock/penstock/control"
)

// wholePercent is the limit of an instance without a share.
const wholePercent = 100

// Status adds to a function's status its part of the device. The instances must be there already.
func (f *Function) Status(s *control.FunctionStatus) {
	s.Change = string(f.Change)
	for i, in := range f.instances {
		in.status(&s.Instances[i])
		s.SharePercent += in.SharePercent()
		s.Limit = max(s.Limit, in.Limit)
		if bound, why := in.boundBy(); s.Bound == "" {
			s.Bound, s.BoundWhy = bound, why
		}
		if in.Fit == control.FitUnder || s.Fit == control.FitUnknown {
			s.Fit = in.Fit
		}
	}
	if f.whole() {
		s.SharePercent = wholePercent // all instances use the same device, so it counts once
	}
	if f.s.cfg.Guarantees() {
		s.Guarantee = f.guaranteeStatus()
		s.SharePercent = s.Guarantee.Percent
	}
}

// status adds to an instance's status what its processes have of the device.
func (in *Instance) status(s *control.InstanceStatus) {
	s.SharePercent, s.WholeDevice, s.SMGroups = in.SharePercent(), in.f.whole(), in.Placement.Groups
	for i := range s.Processes {
		p := &s.Processes[i]
		known := in.processes.known(p.Generation)
		p.Batches, p.WarmingUp, p.SMs, p.SMGroups = known.batches, known.growing, known.sms, known.groups
	}
}

// guaranteeStatus sums up the instances' guarantees.
func (f *Function) guaranteeStatus() *control.GuaranteeStatus {
	s := &control.GuaranteeStatus{}
	for _, in := range f.instances {
		e, a := &in.Entitled, in.guaranteeOf(f.WorkerOf(nil))
		s.Percent += round(100 * a.Guarantee)
		s.NeedPercent += round(100 * a.Need)
		s.UsePercent += round(100 * e.use)
		s.DemotedPercent += round(100 * e.demoted)
		s.UsedSeconds += e.spent.total.Seconds()
		s.DemotedSeconds += e.spent.demoted.Seconds()
		s.CostMillis = (float64(e.fixed)/in.batch() + float64(e.Cost)) / float64(time.Millisecond)
		s.Level, s.Infeasible, s.Unprotected = int(in.level(a)), a.Infeasible, e.unprotected
	}
	if f.s.onGPU() && !f.s.Device.MPS {
		s.Unprotected = control.UnprotectedByDevice
	}
	s.Unprotected = cmp.Or(s.Unprotected, f.s.unprotected())
	return s
}

// Use is an instance's guarantee and what it has used of the device.
type Use struct {
	Guarantee, Need float64 // parts of the device's time
	Infeasible      bool
	// Guaranteed and Demoted are device time within the guarantee, and beyond it.
	Guaranteed, Demoted time.Duration
}

// Uses returns those of the instances; nil if the node has no guarantees.
func (f *Function) Uses() (list []Use) {
	if !f.s.cfg.Guarantees() {
		return nil
	}
	for _, in := range f.instances {
		e := &in.Entitled
		list = append(list, Use{e.Action.Guarantee, e.Action.Need, e.Action.Infeasible != "", e.spent.total - e.spent.demoted, e.spent.demoted})
	}
	return list
}
