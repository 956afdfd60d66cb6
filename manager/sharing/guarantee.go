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
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/guarantee"
)

// The manager's part in guarantees:
//
//  1. Reports have what a process spent and what a request costs: noteSpending, noteCosts.
//  2. When a rate rises, every shares.interval, and when functions change, package guarantee decides.
//  3. The desired processes carry the terms (orders.fill in manager/fleet). On CPUs the orchestrator enforces them
//     (orchestrator/terms.go). On a GPU each process does, by the stream on which it launches a
//     batch (libml/gate/account.go).

// guarantees is the policy of guarantees. All members of a worker have its guarantee, and the CPU
// time of its process is that of all members.
type guarantees struct {
	workers map[string]guarantee.Action
	ran     map[string]int64 // requests that the members of a worker ran
	needs   float64          // of all, parts of the device
	known   []claim          // that the last decision was about
	spare   []claim          // memory for the next ones
	due     bool
}

// claim is what a guarantee depends on besides measurements.
type claim struct {
	id        gslice.ID
	worker    string
	percent   float64
	priority  uint8
	removing  bool
	mps, turn bool
}

// entitlement is an instance's guarantee, with the measurements behind it. The zero value has no
// guarantee.
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
	terms        map[string]control.Terms // by worker, as last set
}

// spending is device time.
type spending struct{ total, demoted time.Duration }

// noteSpending records how much device time a process has used so far. On a GPU the process reports
// that itself, on CPUs the orchestrator does.
func (m *member) noteSpending(generation uint32, total spending) {
	if m.seen[generation] == nil {
		m.seen[generation] = &observation{}
	}
	o, e := m.seen[generation], &m.entitled
	e.spent.total += total.total - o.spent.total
	e.spent.demoted += total.demoted - o.spent.demoted
	o.spent = total
}

// noteCosts records the cost of the requests since the last report.
func (p *guarantees) noteCosts(d *Decider, m *member, worker string) {
	e, r := &m.entitled, &m.Report
	ran, cpu := r.Ran-e.costed.Ran, time.Duration(r.CPUNanos-e.costed.CPUNanos)
	switch {
	case r.Generation != e.costed.Generation:
		p.ranBeside(e, worker, 0)
	case ran <= 0:
		return // in the middle of a batch, whose CPU time would be counted wrongly
	case d.onGPU():
		e.fixed, e.cost = time.Duration(r.FixedNanos), time.Duration(r.EachNanos)
		m.measured.noteCPU(cpu, ran)
	default:
		ran = p.ranBeside(e, worker, ran)
		e.cost = smooth(e.cost, cpu/time.Duration(max(1, d.Device.cpus))/time.Duration(ran))
		m.measured.noteCPU(cpu, ran)
	}
	e.costed = *r
}

// ranBeside returns how many requests a worker ran since the instance's last call, ran of
// them for this instance. CPU time is known only of the whole process, so members have a mean cost.
func (p *guarantees) ranBeside(e *entitlement, worker string, ran int64) int64 {
	if worker == "" {
		return ran
	}
	p.ran[worker] += ran
	total := p.ran[worker]
	ran, e.workerRan = total-e.workerRan, total
	return ran
}

// measure measures the use of the device in the last elapsed time.
func (p *guarantees) measure(d *Decider, elapsed time.Duration) {
	all := 0.0
	for _, m := range d.members {
		e := &m.entitled
		e.use = (e.spent.total - e.counted.total).Seconds() / elapsed.Seconds()
		e.demoted = (e.spent.demoted - e.counted.demoted).Seconds() / elapsed.Seconds()
		e.counted = e.spent
		all += e.use
	}
	// Processes report at other moments than these, so elapsed may hold the use of a longer time.
	if all > 1 {
		for _, m := range d.members {
			m.entitled.use /= all
			m.entitled.demoted /= all
		}
	}
	p.due = true
}

// decide decides if an interval has ended, a rate rose, or the functions have changed. It then sets the
// terms.
func (p *guarantees) decide(d *Decider) {
	claims := p.spare[:0]
	for _, m := range d.members {
		if d.s.Counted {
			p.due = m.entitled.demand.Observe(m.Arrivals, d.s.Now) || p.due
		}
		c := claim{m.id, "", cmp.Or(m.f.ByHand, m.f.Config.SharePercent), m.f.Config.Priority, m.f.Removing, d.Device.MPS, d.takesTurns()}
		if m.runsIn("") {
			claims = append(claims, c)
		}
		for _, w := range d.s.Config.Workers {
			if m.runsIn(w.Name) {
				c.worker, c.percent = w.Name, w.SharePercent
				claims = append(claims, c)
			}
		}
	}
	if p.due || !slices.Equal(claims, p.known) {
		p.guarantee(d)
	}
	p.due, p.known, p.spare = false, claims, p.known
	for _, m := range d.members {
		d.setTerms(m)
	}
}

// guarantee lets package guarantee decide. While a function moves, its own processes and its worker each
// have a guarantee.
func (p *guarantees) guarantee(d *Decider) {
	var own []*member
	var functions []guarantee.Function
	members := map[string][]guarantee.Function{}
	for _, m := range d.members {
		if m.f.Removing {
			continue
		}
		if m.runsIn("") {
			own = append(own, m)
			functions = append(functions, d.wants(m))
		} else {
			m.entitled.action = guarantee.Action{}
		}
		for _, w := range d.s.Config.Workers {
			if m.runsIn(w.Name) {
				members[w.Name] = append(members[w.Name], d.wants(m))
			}
		}
	}
	hosts := slices.DeleteFunc(slices.Clone(d.s.Config.Workers), func(w configs.Worker) bool { return members[w.Name] == nil })
	for _, w := range hosts {
		f := guarantee.Worker(w.Name, w.SharePercent, members[w.Name])
		f.Kept = p.workers[w.Name].Kept
		functions = append(functions, f)
	}

	actions := guarantee.Decide(functions)
	if d.takesTurns() && !d.prioritized() {
		guarantee.CapBatches(functions, actions)
	}
	p.needs = 0
	for _, a := range actions {
		p.needs += a.Need
	}
	for i, m := range own {
		m.entitled.action = d.settle(m.id, nil, "function", m.f.Objective, m.entitled.action, actions[i])
	}
	// A worker that hosts no process any more has no guarantee, so that its next member gets a new one.
	maps.DeleteFunc(p.workers, func(name string, _ guarantee.Action) bool {
		return !slices.ContainsFunc(d.members, func(m *member) bool { return m.runsIn(name) })
	})
	for i, w := range hosts {
		n := len(own) + i
		p.workers[w.Name] = d.settle(gslice.ID{}, map[string]any{"worker": w.Name}, "worker", functions[n].Objective, p.workers[w.Name], actions[n])
	}
}

// guaranteeOf is the guarantee of the instance's processes in a worker; the empty name stands for
// its own processes.
func (p *guarantees) guaranteeOf(m *member, worker string) guarantee.Action {
	if worker == "" {
		return m.entitled.action
	}
	return p.workers[worker]
}

// forgetCosts drops the cost of a model that no longer serves.
func (e *entitlement) forgetCosts() { e.fixed, e.cost, e.costed = 0, 0, control.Report{} }

// wants describes an instance for package guarantee.
func (d *Decider) wants(m *member) guarantee.Function {
	e := &m.entitled
	f := guarantee.Function{
		Name: m.id.IF, Objective: d.within(m),
		Rate: e.demand.Rate(), Fixed: e.fixed, Cost: e.cost, Batch: d.batch(m),
		SharePercent: cmp.Or(m.f.ByHand, m.f.Config.SharePercent),
		Priority:     m.f.Config.Priority, Kept: e.action.Kept,
	}
	f.LongestBatch = f.Fixed + time.Duration(max(1, m.limit)*float64(f.Cost))
	return f
}

// batch is how many requests share a batch when the device is short. The present batch limit says
// nothing about it: on an idle device it stays small.
func (d *Decider) batch(m *member) float64 {
	sizes := m.Card.BatchesOn(d.Device.MemoryBytes())
	return guarantee.Batch(m.entitled.demand.Rate(), d.within(m), float64(sizes[len(sizes)-1]))
}

// minGuaranteeChange is the smallest change of a guarantee that is published, as a part of
// the device.
const minGuaranteeChange = 0.01

// settle returns the guarantee to publish: a, or its predecessor was if they hardly differ.
// It logs the first guarantee of what, and whether its objective can be kept.
func (d *Decider) settle(id gslice.ID, fields map[string]any, what string, slo time.Duration, was, a guarantee.Action) guarantee.Action {
	near := func(a, b float64) bool { return math.Abs(a-b) < minGuaranteeChange && a > 0 == (b > 0) }
	if was.Level == a.Level && near(a.Guarantee, was.Guarantee) && near(a.Allowance, was.Allowance) {
		a.Guarantee, a.Allowance, a.Saved = was.Guarantee, was.Allowance, was.Saved
	}
	log := func(level zerolog.Level, message string, more map[string]any) {
		maps.Copy(more, fields)
		d.log(id, level, message, more)
	}
	if was.Level == budget.Demoted {
		log(zerolog.InfoLevel, what+" has a guarantee", map[string]any{"guarantee_percent": round(100 * a.Guarantee), "priority": int(a.Level)})
	}
	switch {
	case (a.Infeasible == "") == (was.Infeasible == ""):
	case a.Infeasible != "":
		log(zerolog.WarnLevel, "objective is not guaranteed", map[string]any{"slo": slo, "why": a.Infeasible})
	default:
		log(zerolog.InfoLevel, "objective is guaranteed", map[string]any{"slo": slo})
	}
	return a
}

// level is the level of the instance's batches within the guarantee a, its own or that of its worker.
// On a GPU each member of a worker has the level of its objective. On CPUs all have one, because the
// worker's process has one weight.
func (d *Decider) level(m *member, a guarantee.Action) budget.Level {
	if !d.onGPU() {
		return a.Level
	}
	return min(a.Level, budget.LevelOf(d.within(m)))
}

// setTerms sets the terms of the instance's processes, alone and in each worker. All members of a
// worker have its guarantee.
func (d *Decider) setTerms(m *member) {
	terms := m.entitled.terms
	set := func(worker string) {
		a := d.guarantees.guaranteeOf(m, worker)
		t := control.Terms{
			Level: d.level(m, a), MaxBatch: d.maxBatch(m, a), GuaranteePercent: round(100 * a.Allowance), BalanceNanos: int64(a.Saved),
		}
		if was, known := terms[worker]; !known || was != t {
			terms[worker] = t
			d.do(SetTerms{m.id, worker, t})
		}
	}
	set(m.Worker)
	for _, q := range m.Processes {
		if q.Worker != m.Worker {
			set(q.Worker)
		}
	}
	maps.DeleteFunc(terms, func(worker string, _ control.Terms) bool { return !m.runsIn(worker) })
}

// maxBatch is how many requests a batch may have, given how long it may take: one of the card's sizes,
// or 0 if there is no limit.
func (d *Decider) maxBatch(m *member, a guarantee.Action) int {
	f := d.wants(m)
	limit := f.Requests(a.LongestBatch)
	sizes := m.Card.BatchesOn(d.Device.MemoryBytes())
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

// takesTurns reports whether processes take turns: functions with guarantees do on a GPU.
// With the driver's time slices as a baseline to compare with, they do not.
func (d *Decider) takesTurns() bool {
	return d.onGPU() && d.s.Config.Guarantees() && !d.s.Config.Lab.TimeSlicing
}

// prioritized reports whether stream priorities hold between processes. Then each level has its own turns.
func (d *Decider) prioritized() bool { return d.Device.MPS && !d.Device.GPU.PrioritiesFail() }
