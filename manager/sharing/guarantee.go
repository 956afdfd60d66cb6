package sharing

import (
	"cmp"
	"maps"
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
//  1. A process's reports have what it spent and what a request costs (Report, Observe).
//  2. observeDemand adds the demand. When a rate rises, and every shares.interval, package
//     guarantee decides.
//  3. The desired processes carry the decisions (Fill). On CPUs the orchestrator enforces them
//     (orchestrator/terms.go). On a GPU each process does, by the stream on which it launches a
//     batch (libml/gate/account.go).

// entitlement is an instance's guarantee, with the measurements behind it. The control loop
// owns it. The zero value has no guarantee.
type entitlement struct {
	Action guarantee.Action
	Demand guarantee.Demand
	// A batch of n requests takes the device for fixed + n * Cost; both are 0 if they are not
	// known. On CPUs Cost is a smoothed mean, and fixed is 0.
	fixed, Cost time.Duration
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

// noteSpending records how much device time a process has used so far. On a GPU the process reports
// that itself, on CPUs the orchestrator does (Observe).
func (in *Instance) noteSpending(generation uint32, total spending) {
	p, e := in.processes.of(generation), &in.Entitled
	e.spent.total += total.total - p.spent.total
	e.spent.demoted += total.demoted - p.spent.demoted
	p.spent = total
}

// noteCosts records the cost of the requests since the last report.
func (in *Instance) noteCosts(r *control.Report) {
	last := &in.Entitled.costed
	ran, cpu := r.Ran-last.Ran, time.Duration(r.CPUNanos-last.CPUNanos)
	switch {
	case r.Generation != last.Generation:
		in.ranBeside(0)
	case ran <= 0:
		return // in the middle of a batch, whose CPU time would be counted wrongly
	case in.f.s.onGPU():
		in.Entitled.fixed, in.Entitled.Cost = time.Duration(r.FixedNanos), time.Duration(r.EachNanos)
		in.Measured.noteCPU(cpu, ran)
	default:
		ran = in.ranBeside(ran)
		e := &in.Entitled
		e.Cost = smooth(e.Cost, cpu/time.Duration(max(1, in.f.s.cpus))/time.Duration(ran))
		in.Measured.noteCPU(cpu, ran)
	}
	*last = *r
}

// ranBeside returns how many requests the active process's worker ran since the last call, ran of
// them for this instance. CPU time is known only of the whole process, so members have a mean cost.
func (in *Instance) ranBeside(ran int64) int64 {
	worker := in.f.WorkerOf(in.pair.Active().Card)
	if worker == "" {
		return ran
	}
	total := in.f.s.workers.count(worker, ran)
	ran, in.Entitled.workerRan = total-in.Entitled.workerRan, total
	return ran
}

// observeDemand follows the rates of requests. If one rose, the policy decides.
func (s *Sharing) observeDemand(now time.Duration) {
	rose := false
	s.eachInstance(func(in *Instance) {
		rose = in.Entitled.Demand.Observe(in.Traffic.Arrivals(), now) || rose
	})
	if rose {
		s.Guarantee()
	}
}

// renewGuarantees measures the use of the device in the last elapsed time, and lets the policy decide.
func (s *Sharing) renewGuarantees(elapsed time.Duration) {
	all := 0.0
	s.eachInstance(func(in *Instance) {
		in.Entitled.observeUse(elapsed)
		all += in.Entitled.use
	})
	// Processes report at other moments than these, so elapsed may hold the use of a longer time.
	if all > 1 {
		s.eachInstance(func(in *Instance) {
			in.Entitled.use /= all
			in.Entitled.demoted /= all
		})
	}
	s.Guarantee()
}

// Guarantee lets the policy decide from the measurements. The manager calls it every
// shares.interval, after an order, when a rate rose, and when an instance has no guarantee yet. While a
// function moves, its own processes and its worker each have a guarantee.
func (s *Sharing) Guarantee() {
	var own []*Instance
	var functions []guarantee.Function
	members := map[string][]guarantee.Function{}
	s.eachInstance(func(in *Instance) {
		if in.f.leaving {
			return
		}
		if in.runsIn("") {
			own = append(own, in)
			functions = append(functions, in.wants())
		} else {
			in.Entitled.Action = guarantee.Action{}
		}
		for _, w := range s.cfg.Workers {
			if in.runsIn(w.Name) {
				members[w.Name] = append(members[w.Name], in.wants())
			}
		}
	})
	hosts := slices.DeleteFunc(slices.Clone(s.cfg.Workers), func(w configs.Worker) bool { return members[w.Name] == nil })
	for _, w := range hosts {
		functions = append(functions, guarantee.Worker(w.Name, w.SharePercent, members[w.Name]))
	}

	actions := s.decide(functions)
	for i, in := range own {
		e := &in.Entitled
		e.Action = settleGuarantee(in.log, "function", in.f.Objective(), e.Action, actions[i])
	}
	s.workers.keepOnly(s.Hosts)
	for i, w := range hosts {
		n := len(own) + i
		s.workers.settle(w.Name, functions[n].Objective, actions[n], s.log)
	}
}

// decide lets the policy decide about functions that share the device.
func (s *Sharing) decide(functions []guarantee.Function) []guarantee.Action {
	actions := guarantee.Decide(functions)
	if s.takesTurns() {
		guarantee.CapBatches(functions, actions)
	}
	return actions
}

// Hosts reports whether a worker has processes, or is going to.
func (s *Sharing) Hosts(worker string) (used bool) {
	s.eachInstance(func(in *Instance) { used = used || in.runsIn(worker) })
	return used
}

// runsIn reports whether a worker hosts a process of the instance or is going to. The empty name
// stands for its own processes.
func (in *Instance) runsIn(worker string) bool {
	return in.f.WorkerOf(in.pair.Card()) == worker ||
		slices.ContainsFunc(in.pair.Processes(), func(q *pair.Process) bool { return in.f.WorkerOf(q.Card) == worker })
}

// missesGuarantee reports whether an instance waits for its first guarantee, or for that of its
// worker.
func (s *Sharing) missesGuarantee() bool {
	return slices.ContainsFunc(s.functions, func(f *Function) bool {
		return !f.leaving && slices.ContainsFunc(f.instances, func(in *Instance) bool {
			return in.guaranteeOf(f.WorkerOf(in.pair.Card())).Level == budget.Demoted
		})
	})
}

// guaranteeOf is the guarantee of the instance's processes in a worker; the empty name stands for
// its own processes.
func (in *Instance) guaranteeOf(worker string) guarantee.Action {
	if worker == "" {
		return in.Entitled.Action
	}
	return in.f.s.workers.guarantees[worker]
}

// observeUse computes the use of the device in the last elapsed time.
func (e *entitlement) observeUse(elapsed time.Duration) {
	e.use = (e.spent.total - e.counted.total).Seconds() / elapsed.Seconds()
	e.demoted = (e.spent.demoted - e.counted.demoted).Seconds() / elapsed.Seconds()
	e.counted = e.spent
}

// forgetCosts drops the cost of a model that no longer serves.
func (e *entitlement) forgetCosts() { e.fixed, e.Cost, e.costed = 0, 0, control.Report{} }

// wants describes the instance for the policy.
func (in *Instance) wants() guarantee.Function {
	e := &in.Entitled
	f := guarantee.Function{
		Name: in.f.name, Objective: in.f.within(),
		Rate: e.Demand.Rate(), Fixed: e.fixed, Cost: e.Cost, Batch: in.batch(),
		SharePercent: cmp.Or(in.f.ByHand, in.f.Configuration().SharePercent),
	}
	f.LongestBatch = f.Fixed + time.Duration(max(1, in.Limit)*float64(f.Cost))
	return f
}

// batch is how many requests share a batch when the device is short. The present batch limit says
// nothing about it: on an idle device it stays small.
func (in *Instance) batch() float64 {
	return guarantee.Batch(in.Entitled.Demand.Rate(), in.f.within(), float64(in.pair.Card().MaxBatch()))
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
func (in *Instance) level(a guarantee.Action) budget.Level {
	if !in.f.s.onGPU() {
		return a.Level
	}
	return min(a.Level, budget.LevelOf(in.f.within()))
}

// terms are the terms of a process in a role. All members of a worker have its guarantee. Outside workers,
// a process that does not serve has none: it loads its model in the time that the functions leave unused.
func (in *Instance) terms(q *pair.Process, role control.Role) control.Terms {
	t := control.Terms{SharePercent: q.SharePercent}
	if !in.f.s.cfg.Guarantees() {
		return t
	}
	worker := in.f.WorkerOf(q.Card)
	a := in.guaranteeOf(worker)
	t.Level, t.MaxBatch = in.level(a), in.maxBatch(a)
	if worker != "" || role == control.Serve || role == control.Drain {
		t.GuaranteePercent, t.BalanceNanos = round(100*a.Allowance), int64(a.Saved)
	}
	return t
}

// maxBatch is how many requests a batch may have, given how long it may take: one of the card's sizes,
// or 0 if there is no limit.
func (in *Instance) maxBatch(a guarantee.Action) int {
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

// workers are the workers that host processes. All members of a worker have its guarantee, and the
// CPU time of its process is that of all members. The control loop owns it.
type workers struct {
	guarantees map[string]guarantee.Action
	ran        map[string]int64 // requests that the members ran
}

func newWorkers() workers {
	return workers{guarantees: map[string]guarantee.Action{}, ran: map[string]int64{}}
}

// settle publishes a worker's guarantee.
func (w *workers) settle(name string, objective time.Duration, a guarantee.Action, log zerolog.Logger) {
	w.guarantees[name] = settleGuarantee(log.With().Str("worker", name).Logger(), "worker", objective, w.guarantees[name], a)
}

// keepOnly drops the guarantees of workers without processes.
func (w *workers) keepOnly(used func(name string) bool) {
	maps.DeleteFunc(w.guarantees, func(name string, _ guarantee.Action) bool { return !used(name) })
}

// count adds requests that a member ran, and returns those of all members so far.
func (w *workers) count(name string, ran int64) (total int64) {
	w.ran[name] += ran
	return w.ran[name]
}
