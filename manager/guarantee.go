package manager

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/manager/policy/guarantee"
	"github.com/penstock/penstock/manager/policy/pair"
)

// The manager's part in guarantees:
//
//  1. A process's reports have what it spent and what a request costs (noteUse, noteSpending).
//  2. observeDemand adds the demand. When a rate rises, and every shares.interval, package
//     guarantee decides.
//  3. The desired processes carry the decisions (terms). On CPUs the orchestrator enforces them
//     (orchestrator/terms.go). On a GPU each process does, by the stream on which it launches a
//     batch (libml/account.go).

// entitlement is an instance's guarantee, with the measurements behind it. The control loop
// owns it. The zero value has no guarantee.
type entitlement struct {
	action guarantee.Action
	demand guarantee.Demand
	// A batch of n requests takes the device for fixed + n * cost; both are 0 if they are not
	// known. On CPUs cost is a smoothed mean, and fixed is 0.
	fixed, cost time.Duration
	// costed is the report up to which the cost is counted, workerRan the requests of all members of
	// the worker up to it.
	costed    control.Report
	workerRan int64

	spent   spending // by all processes since the instance was created
	counted spending // when use was computed
	// use is the part of the device's time that the instance used recently; demoted is the
	// part of it beyond the guarantee.
	use, demoted float64
	unprotected  control.Unprotected
}

// spending is device time.
type spending struct{ total, demoted time.Duration }

// noteUse records what the active process reports about its use of the device.
func (in *instance) noteUse(generation uint32, r *control.Report) {
	in.entitled.unprotected = r.Unprotected
	if in.m.onGPU() {
		in.noteSpending(generation, spending{time.Duration(r.DeviceNanos), time.Duration(r.DemotedNanos)})
	}
	in.noteCosts(r)
}

// noteSpending records how much device time a process has used so far. On a GPU the process reports
// that itself, on CPUs the orchestrator does (noteObservation).
func (in *instance) noteSpending(generation uint32, total spending) {
	p, e := in.processes.of(generation), &in.entitled
	e.spent.total += total.total - p.spent.total
	e.spent.demoted += total.demoted - p.spent.demoted
	p.spent = total
}

// noteCosts records the cost of the requests since the last report.
func (in *instance) noteCosts(r *control.Report) {
	last := &in.entitled.costed
	ran, cpu := r.Ran-last.Ran, time.Duration(r.CPUNanos-last.CPUNanos)
	switch {
	case r.Generation != last.Generation:
		in.ranBeside(0)
	case ran <= 0:
		return // in the middle of a batch, whose CPU time would be counted wrongly
	case in.m.onGPU():
		in.entitled.fixed, in.entitled.cost = time.Duration(r.FixedNanos), time.Duration(r.EachNanos)
		in.measured.noteCPU(cpu, ran)
	default:
		ran = in.ranBeside(ran)
		e := &in.entitled
		e.cost = smooth(e.cost, cpu/time.Duration(max(1, in.m.orchestrator.observed.CPUs))/time.Duration(ran))
		in.measured.noteCPU(cpu, ran)
	}
	*last = *r
}

// ranBeside returns how many requests the active process's worker ran since the last call, ran of
// them for this instance. CPU time is known only of the whole process, so members have a mean cost.
func (in *instance) ranBeside(ran int64) int64 {
	worker := in.f.setupFor(in.pair.Active().Card).worker
	if worker == "" {
		return ran
	}
	total := in.m.workers.count(worker, ran)
	ran, in.entitled.workerRan = total-in.entitled.workerRan, total
	return ran
}

// observeDemand follows the rates of requests. If one rose, the policy decides.
func (m *Manager) observeDemand() {
	now, rose := time.Since(m.started), false
	m.eachInstance(func(in *instance) {
		rose = in.entitled.demand.Observe(in.traffic.Arrivals(), now) || rose
	})
	if rose {
		m.guarantees()
	}
}

// renewGuarantees measures the use of the device in the last elapsed time, and lets the policy decide.
func (m *Manager) renewGuarantees(elapsed time.Duration) {
	all := 0.0
	m.eachInstance(func(in *instance) {
		in.entitled.observeUse(elapsed)
		all += in.entitled.use
	})
	// Processes report at other moments than these, so elapsed may hold the use of a longer time.
	if all > 1 {
		m.eachInstance(func(in *instance) {
			in.entitled.use /= all
			in.entitled.demoted /= all
		})
	}
	m.guarantees()
}

// guarantees lets the policy decide from the measurements. The manager calls it every
// shares.interval, after an order, when a rate rose, and when an instance has no guarantee yet. While a
// function moves, its own processes and its worker each have a guarantee.
func (m *Manager) guarantees() {
	var own []*instance
	var functions []guarantee.Function
	members := map[string][]guarantee.Function{}
	m.eachInstance(func(in *instance) {
		if in.f.removing {
			return
		}
		if in.runsIn("") {
			own = append(own, in)
			functions = append(functions, in.wants())
		} else {
			in.entitled.action = guarantee.Action{}
		}
		for _, w := range m.cfg.Workers {
			if in.runsIn(w.Name) {
				members[w.Name] = append(members[w.Name], in.wants())
			}
		}
	})
	hosts := slices.DeleteFunc(slices.Clone(m.cfg.Workers), func(w configs.Worker) bool { return members[w.Name] == nil })
	for _, w := range hosts {
		functions = append(functions, guarantee.Worker(w.Name, w.SharePercent, members[w.Name]))
	}

	actions := m.decide(functions)
	for i, in := range own {
		e := &in.entitled
		e.action = settleGuarantee(in.log, "function", in.f.slo, e.action, actions[i])
	}
	m.workers.keepOnly(m.hosts)
	for i, w := range hosts {
		n := len(own) + i
		m.workers.settle(w.Name, functions[n].Objective, actions[n], m.log)
	}
}

// decide lets the policy decide about functions that share the device.
func (m *Manager) decide(functions []guarantee.Function) []guarantee.Action {
	actions := guarantee.Decide(functions)
	if m.takesTurns() {
		guarantee.CapBatches(functions, actions)
	}
	return actions
}

// hosts reports whether a worker has processes, or is going to.
func (m *Manager) hosts(worker string) (used bool) {
	m.eachInstance(func(in *instance) { used = used || in.runsIn(worker) })
	return used
}

// runsIn reports whether a worker hosts a process of the instance or is going to. The empty name
// stands for its own processes.
func (in *instance) runsIn(worker string) bool {
	return in.f.setupFor(in.pair.Card()).worker == worker ||
		slices.ContainsFunc(in.pair.Processes(), func(q *pair.Process) bool { return in.f.setupFor(q.Card).worker == worker })
}

// missesGuarantee reports whether an instance waits for its first guarantee, or for that of its
// worker.
func (m *Manager) missesGuarantee() bool {
	return slices.ContainsFunc(m.functions, func(f *function) bool {
		return !f.removing && slices.ContainsFunc(f.instances, func(in *instance) bool {
			return in.guaranteeOf(f.setupFor(in.pair.Card()).worker).Level == budget.Demoted
		})
	})
}

// guaranteeOf is the guarantee of the instance's processes in a worker; the empty name stands for
// its own processes.
func (in *instance) guaranteeOf(worker string) guarantee.Action {
	if worker == "" {
		return in.entitled.action
	}
	return in.m.workers.guarantees[worker]
}

// observeUse computes the use of the device in the last elapsed time.
func (e *entitlement) observeUse(elapsed time.Duration) {
	e.use = (e.spent.total - e.counted.total).Seconds() / elapsed.Seconds()
	e.demoted = (e.spent.demoted - e.counted.demoted).Seconds() / elapsed.Seconds()
	e.counted = e.spent
}

// forgetCosts drops the cost of a model that no longer serves.
func (e *entitlement) forgetCosts() { e.fixed, e.cost, e.costed = 0, 0, control.Report{} }

// wants describes the instance for the policy.
func (in *instance) wants() guarantee.Function {
	e := &in.entitled
	f := guarantee.Function{
		Name: in.f.name, Objective: in.f.within(),
		Rate: e.demand.Rate(), Fixed: e.fixed, Cost: e.cost, Batch: in.batch(),
		SharePercent: cmp.Or(in.f.byHand, in.f.config.SharePercent),
	}
	f.LongestBatch = f.Fixed + time.Duration(max(1, in.batching.Limit)*float64(f.Cost))
	return f
}

// batch is how many requests share a batch when the device is short. The present batch limit says
// nothing about it: on an idle device it stays small.
func (in *instance) batch() float64 {
	return guarantee.Batch(in.entitled.demand.Rate(), in.f.within(), float64(in.pair.Card().MaxBatch()))
}

// minGuaranteeChange is the smallest change of a guarantee that is published, as a part of
// the device.
const minGuaranteeChange = 0.01

// settleGuarantee returns the guarantee to publish: a, or its predecessor was if they hardly differ.
// It logs the first guarantee of what, and whether its objective can be kept.
func settleGuarantee(log zerolog.Logger, what string, slo time.Duration, was, a guarantee.Action) guarantee.Action {
	near := func(a, b float64) bool { return math.Abs(a-b) < minGuaranteeChange && a > 0 == (b > 0) }
	if was.Level == a.Level && near(a.Guarantee, was.Guarantee) && near(a.Allowance, was.Allowance) {
		a.Guarantee, a.Allowance, a.Saved = was.Guarantee, was.Allowance, was.Saved
	}
	if was.Level == budget.Demoted {
		log.Info().Float64("guarantee_percent", round(100*a.Guarantee)).Int("priority", int(a.Level)).Msg(what + " has a guarantee")
	}
	if (a.Infeasible == "") != (was.Infeasible == "") {
		if a.Infeasible != "" {
			log.Warn().Dur("slo", slo).Str("why", a.Infeasible).Msg("objective is not guaranteed")
		} else {
			log.Info().Dur("slo", slo).Msg("objective is guaranteed")
		}
	}
	return a
}

// level is the level of the instance's batches within the guarantee a, its own or that of its worker.
// On a GPU each member of a worker has the level of its objective. On CPUs all have one, because the
// worker's process has one weight.
func (in *instance) level(a guarantee.Action) budget.Level {
	if !in.m.onGPU() {
		return a.Level
	}
	return min(a.Level, budget.LevelOf(in.f.within()))
}

// terms are the terms of a process in a role. All members of a worker have its guarantee. Outside workers,
// a process that does not serve has none: it loads its model in the time that the functions leave unused.
func (in *instance) terms(q *pair.Process, role control.Role) control.Terms {
	t := control.Terms{SharePercent: q.SharePercent}
	if !in.m.cfg.Guarantees() {
		return t
	}
	worker := in.f.setupFor(q.Card).worker
	a := in.guaranteeOf(worker)
	t.Level, t.MaxBatch = in.level(a), in.maxBatch(a)
	if worker != "" || role == control.Serve || role == control.Drain {
		t.GuaranteePercent, t.BalanceNanos = round(100*a.Allowance), int64(a.Saved)
	}
	return t
}

// maxBatch is how many requests a batch may have, given how long it may take: one of the card's sizes,
// or 0 if there is no limit.
func (in *instance) maxBatch(a guarantee.Action) int {
	f := in.wants()
	limit := f.Requests(a.LongestBatch)
	sizes := in.pair.Card().Batches
	if limit == 0 || len(sizes) == 0 || limit >= sizes[len(sizes)-1] {
		return 0
	}
	fit := sizes[0]
	for _, n := range sizes {
		if n <= limit {
			fit = n
		}
	}
	return fit
}

// guaranteeStatus sums up the instances; nil if the node has no guarantees.
func (f *function) guaranteeStatus() *control.GuaranteeStatus {
	if !f.m.cfg.Guarantees() {
		return nil
	}
	s := &control.GuaranteeStatus{}
	for _, in := range f.instances {
		e, a := &in.entitled, in.guaranteeOf(f.worker)
		s.Percent += round(100 * a.Guarantee)
		s.NeedPercent += round(100 * a.Need)
		s.UsePercent += round(100 * e.use)
		s.DemotedPercent += round(100 * e.demoted)
		s.UsedSeconds += e.spent.total.Seconds()
		s.DemotedSeconds += e.spent.demoted.Seconds()
		s.CostMillis = (float64(e.fixed)/in.batch() + float64(e.cost)) / float64(time.Millisecond)
		s.Level, s.Infeasible, s.Unprotected = int(in.level(a)), a.Infeasible, e.unprotected
	}
	if f.m.onGPU() && !f.m.device.mps {
		s.Unprotected = control.UnprotectedByDevice
	}
	return s
}
