package manager

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/manager/policy/guarantee"
)

// The manager's part in guarantees: it measures demand and cost, package guarantee decides,
// and the desired processes carry the decisions. On CPUs the orchestrator enforces them. On
// a GPU each process does, by the stream on which it launches a batch.

// entitlement is an instance's guarantee, with the measurements behind it. The control loop
// owns it. The zero value has no guarantee.
type entitlement struct {
	action  guarantee.Action
	demand  guarantee.Demand
	arrived int // requests up to the last measurement of demand
	// A batch of n requests takes the device for fixed + n * cost; cost is 0 if it is not
	// known. On CPUs cost is a smoothed mean, and fixed is 0.
	fixed, cost time.Duration

	spent   spending // by all processes since the instance was created
	counted spending // when use was computed
	// use is the part of the device's time that the instance used recently; demoted is the
	// part of it beyond the guarantee.
	use, demoted float64
	unprotected  control.Unprotected
}

// spending is device time.
type spending struct{ total, demoted time.Duration }

// guarantees lets the policy decide from the measurements. The manager calls it every
// shares.interval, after an order, and when an instance has no guarantee yet.
func (m *Manager) guarantees() {
	var instances []*instance
	var functions []guarantee.Function
	m.eachInstance(func(in *instance) {
		if in.f.removing {
			return
		}
		instances = append(instances, in)
		functions = append(functions, in.wants())
	})
	for i, a := range guarantee.Decide(functions) {
		instances[i].guarantee(a)
	}
}

// missesGuarantee reports whether an instance waits for its first guarantee.
func (m *Manager) missesGuarantee() bool {
	return slices.ContainsFunc(m.functions, func(f *function) bool {
		return !f.removing && slices.ContainsFunc(f.instances, func(in *instance) bool { return in.entitled.action.Level == budget.Demoted })
	})
}

// observeDemand records the arrivals and the spending of the last elapsed time.
func (in *instance) observeDemand(elapsed time.Duration) {
	arrived := in.traffic.Arrivals()
	e := &in.entitled
	e.demand.Observe(arrived-e.arrived, elapsed)
	e.arrived = arrived
	e.use = (e.spent.total - e.counted.total).Seconds() / elapsed.Seconds()
	e.demoted = (e.spent.demoted - e.counted.demoted).Seconds() / elapsed.Seconds()
	e.counted = e.spent
}

// wants describes the instance for the policy.
func (in *instance) wants() guarantee.Function {
	e := &in.entitled
	return guarantee.Function{
		Name: in.f.name, Objective: in.f.within(),
		Rate: e.demand.Rate(), Fixed: e.fixed, Cost: e.cost, Batch: in.batch(),
		SharePercent: cmp.Or(in.f.byHand, in.f.config.SharePercent),
	}
}

// batch is how many requests share a batch when the device is short.
func (in *instance) batch() float64 {
	return guarantee.Batch(in.entitled.demand.Rate(), in.f.within(), in.batching.Limit)
}

// minGuaranteeChange is the smallest change of a guarantee that is published, as a part of
// the device.
const minGuaranteeChange = 0.01

// guarantee applies the policy's decision to the instance.
func (in *instance) guarantee(a guarantee.Action) {
	was := in.entitled.action
	near := func(a, b float64) bool { return math.Abs(a-b) < minGuaranteeChange && a > 0 == (b > 0) }
	if was.Level == a.Level && near(a.Guarantee, was.Guarantee) && near(a.Allowance, was.Allowance) {
		a.Guarantee, a.Allowance, a.Saved = was.Guarantee, was.Allowance, was.Saved
	}
	if in.entitled.action = a; was.Level == budget.Demoted {
		in.log.Info().Float64("guarantee_percent", round(100*a.Guarantee)).Int("level", int(a.Level)).Msg("function has a guarantee")
	}
	if (a.Infeasible == "") != (was.Infeasible == "") {
		if a.Infeasible != "" {
			in.log.Warn().Dur("slo", in.f.slo).Str("why", a.Infeasible).Msg("objective is not guaranteed")
		} else {
			in.log.Info().Dur("slo", in.f.slo).Msg("objective is guaranteed")
		}
	}
}

// terms completes a desired process. A process that does not serve has no guarantee: it
// loads its model in the time that the functions leave unused.
func (in *instance) terms(p *control.DesiredProcess) {
	a := &in.entitled.action
	p.Level = a.Level
	if p.Role == control.Serve || p.Role == control.Drain {
		p.GuaranteePercent, p.BalanceNanos = round(100*a.Allowance), int64(a.Saved)
	}
}

// noteCost records the device time that a process spent on that many requests.
func (e *entitlement) noteCost(spent time.Duration, requests int64) {
	e.cost = smooth(e.cost, spent/time.Duration(requests))
}

// noteSpending adds a process's spending between two of its totals, was and is.
func (e *entitlement) noteSpending(was, is spending) {
	e.spent.total += is.total - was.total
	e.spent.demoted += is.demoted - was.demoted
}

// guaranteeStatus sums up the instances; nil if the node has no guarantees.
func (f *function) guaranteeStatus() *control.GuaranteeStatus {
	if !f.m.cfg.Guarantees() {
		return nil
	}
	s := &control.GuaranteeStatus{}
	for _, in := range f.instances {
		e := &in.entitled
		s.Percent += round(100 * e.action.Guarantee)
		s.NeedPercent += round(100 * e.action.Need)
		s.UsePercent += round(100 * e.use)
		s.DemotedPercent += round(100 * e.demoted)
		s.UsedSeconds += e.spent.total.Seconds()
		s.DemotedSeconds += e.spent.demoted.Seconds()
		s.CostMillis = (float64(e.fixed)/in.batch() + float64(e.cost)) / float64(time.Millisecond)
		s.Level, s.Infeasible, s.Unprotected = int(e.action.Level), e.action.Infeasible, e.unprotected
	}
	if f.m.onGPU() && !f.m.device.mps {
		s.Unprotected = control.UnprotectedByDevice
	}
	return s
}
