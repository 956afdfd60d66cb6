package sharesim

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/manager/policy/guarantee"
	"github.com/penstock/penstock/shm"
)

// places is how many batches of a function may be in flight.
const places = 2

// waiting is how many requests may wait.
const waiting = 1024

// lead is the time from a batch's dispatch to the end of its gather.
const lead = 100 * time.Microsecond

// handover is how long the turn of a level is not used before a batch of another function: its process notices the turn,
// gathers and launches. 0.15 ms were measured on an H200.
const handover = 150 * time.Microsecond

// function is a function that serves: libml's queue and account in virtual time, and what
// the manager knows of it.
type function struct {
	Function
	rules    Rules
	arrivals arrivals
	noise    *rand.Rand
	device   *device

	// The loop.
	serves  bool
	queue   *batching.Queue
	flights []*batch // in the order of queue.Running
	rank    shm.Rank
	slot    uint32

	account *gate.Account

	// The manager.
	action   guarantee.Action
	demand   guarantee.Demand
	arrived  int
	reported bool // its costs

	// The measurement.
	from    int64
	phase   int             // the next one
	need    float64         // the true one, at the present rate
	within  int64           // since when it has been within the guarantee; MaxInt64: it is not
	counted map[uint32]bool // requests within the guarantee that are not answered
	result  Result
}

func newFunction(f Function, c *Config, d *device, index int) (*function, error) {
	rule, err := batching.New(batching.SLAB, batching.Config{SLO: f.Objective, Ladder: ladder})
	if err != nil {
		return nil, err
	}
	s := &function{
		Function: f, rules: c.Rules, queue: batching.NewQueue(rule, waiting, places), device: d,
		noise:    rand.New(rand.NewPCG(c.Seed, uint64(2*index+1))),
		arrivals: newArrivals(f, rand.New(rand.NewPCG(c.Seed, uint64(2*index)))),
		counted:  map[uint32]bool{}, from: int64(c.Settle), within: math.MaxInt64,
	}
	s.result.Function = f
	s.queue.Lead = lead
	if d.sharing == Turns {
		s.queue.Places = 1
	}
	s.openAccount(0)
	for _, n := range ladder {
		s.queue.State = rule.Warm(s.queue.State, n, f.timeOn(n, d.part))
	}
	return s, nil
}

// guaranteed reports whether a batch that begins now is within the guarantee.
func (f *function) guaranteed(now int64) bool {
	if f.action.Level == budget.Demoted || f.rules.NoBalance {
		return true // alone on its part of the device
	}
	guaranteed, changed := f.account.Guaranteed(now, f.terms(), f.queue.Size())
	if changed {
		f.queue.Retry()
	}
	return guaranteed
}

func (f *function) terms() gate.Terms {
	return gate.Terms{Guarantee: f.action.Allowance, Level: f.action.Level}
}

// openAccount begins an account with a full balance. It knows the time of each batch, with the function's error.
func (f *function) openAccount(now int64) {
	times := make([]time.Duration, maxBatch+1)
	for n := range times[1:] {
		times[n+1] = time.Duration(float64(f.Time(n+1)) * f.costError())
	}
	f.account = gate.NewAccount(now, gate.Config{
		Level: budget.MaxLevel, Framework: demotable{}, Exclusive: f.device.sharing != Priorities,
		Objective: f.Objective, Terms: f.terms(), Times: times, Size: f.queue.Size(),
	})
}

// demotable is a framework whose batches all can be demoted.
type demotable struct{}

func (demotable) Demotable(int, int) bool { return true }

// act is what the manager has decided.
func (f *function) act(now int64, a guarantee.Action) {
	was := f.action
	if was.Level == a.Level && math.Abs(a.Allowance-was.Allowance) < 0.01 {
		a.Guarantee, a.Allowance, a.Saved = was.Guarantee, was.Allowance, was.Saved
	}
	f.action = a
	f.queue.Retry()
	w := f.wants()
	f.queue.MaxBatch = w.Requests(a.LongestBatch)
	if was.Level == budget.Demoted {
		f.openAccount(now)
	}
}

// wants is the manager's instance.wants. The costs are known when batches have run.
func (f *function) wants() guarantee.Function {
	w := guarantee.Function{
		Name: f.Name, Objective: f.Objective, Rate: f.demand.Rate(), Batch: guarantee.Batch(f.demand.Rate(), f.Objective, maxBatch),
		Kept: f.action.Kept,
	}
	if f.reported {
		figures := f.account.Figures()
		w.Cost, w.Fixed = figures.PerImage, figures.Fixed
		w.LongestBatch = f.account.Cost(f.queue.Rule.Size(f.queue.State))
	}
	return w
}

// receive takes a request in.
func (f *function) receive(at int64) {
	f.slot++
	f.arrived++
	f.queue.Add(batching.Request{Slot: f.slot, Whole: at, Deadline: at + int64(f.Objective)})
	if at < f.from {
		return
	}
	f.result.Requests++
	if at >= f.within {
		f.counted[f.slot] = true
		f.result.Within++
	}
}

// answer counts an answer.
func (f *function) answer(r batching.Request, at int64) {
	good := at <= r.Deadline
	if r.Whole >= f.from && good {
		f.result.Good++
	}
	if f.counted[r.Slot] {
		delete(f.counted, r.Slot)
		if good {
			f.result.WithinGood++
		}
	}
}

// takeTurns begins the batches that go first: one of each level that runs none, or only one of the same function. If batches use the whole device, all levels have one turn.
func takeTurns(functions []*function, now int64) {
	for {
		var best *function
		var ranks [budget.MaxLevel + 1]*function // the first of each level
		for _, f := range functions {
			if !f.mayBegin(now) {
				continue
			}
			f.rank = f.rankNow(now)
			if of := &ranks[f.rank.Level]; *of == nil || f.rank.Before((*of).rank) {
				*of = f
			}
		}
		for _, f := range ranks {
			if f != nil && !f.device.runs(budget.Level(f.rank.Level), f) && (best == nil || f.rank.Before(best.rank)) {
				best = f
			}
		}
		if best == nil {
			return
		}
		if !best.begin(now) && best.guaranteed(now) {
			return
		}
	}
}

// rankNow is the rank of the next batch.
func (f *function) rankNow(now int64) (r shm.Rank) {
	r.Deadline = f.queue.Pending[0].Deadline
	if f.guaranteed(now) {
		r.Level = uint32(f.action.Level)
	}
	return r
}

// step lets the loop do what it can do now.
func (f *function) step(now int64) {
	for f.mayBegin(now) {
		if !f.begin(now) {
			return
		}
	}
}

// mayBegin reports whether a batch may begin.
func (f *function) mayBegin(now int64) bool {
	return f.serves && f.queue.MayBegin(now, !f.guaranteed(now))
}

// samples is when mayBegin may become true as time passes.
func (f *function) samples(now int64) int64 {
	if len(f.queue.Pending) == 0 || len(f.flights) == f.queue.Places || !f.serves {
		return math.MaxInt64
	}
	at := int64(math.MaxInt64)
	if !f.guaranteed(now) {
		at = max(now+1, f.account.Refilled(now))
	}
	if near, ok := f.queue.OverlapAt(now); ok {
		at = min(at, max(near, now+int64(20*time.Microsecond)))
	}
	return at
}

// begin dispatches a batch. It returns false if there was none to begin.
func (f *function) begin(now int64) bool {
	demoted := !f.guaranteed(now)
	c, late := f.queue.Pick(now, demoted, f.account.Refilled(now))
	for _, r := range late {
		f.answer(r, math.MaxInt64)
	}
	if c.Batch == 0 {
		return len(late) > 0
	}
	b := &batch{
		of: f, full: c.Full, level: f.action.Level, demoted: demoted, padded: c.Padded, dispatched: now, waited: c.Waited, late: c.Late,
		requests: slices.Clone(f.queue.Pending[:c.Batch]),
	}
	f.queue.Begin(now, c, demoted)
	b.width = f.width(b.padded)
	b.work = float64(f.Time(b.padded)) * math.Exp(sigma*f.noise.NormFloat64())
	b.kernel = b.work / float64(f.Kernels)
	switch {
	case demoted:
		b.level = budget.Demoted
	case f.rules.InvertLevels:
		b.level = budget.MaxLevel + budget.MinLevel - b.level
	}
	if last := &f.device.tenants[b.level]; *last != f && !f.rules.NoTurns {
		*last = f
		b.work += float64(handover)
	}
	if !demoted {
		f.account.Balance().Charge(now, f.account.Cost(b.padded))
	}
	f.flights = append(f.flights, b)
	f.device.add(b)
	return true
}

// finish answers a batch that has run.
func (f *function) finish(b *batch, now int64) {
	for _, r := range b.requests {
		f.answer(r, now)
	}
	i := slices.Index(f.flights, b)
	f.flights = slices.Delete(f.flights, i, i+1)
	f.reported = true
	f.queue.Remove(i, now)
	f.queue.End(batching.Observation{
		Batch: len(b.requests), Padded: b.padded, Demoted: b.demoted, Elapsed: time.Duration(now - b.dispatched),
		Ended: now, Waited: b.waited, Late: b.late, Full: b.full,
	}, 0, false)
	if b.demoted {
		f.result.Demoted += f.uses(b.padded)
		return
	}
	f.result.Guaranteed += f.uses(b.padded)
}

// phaseEnds returns when the rate changes next.
func (f *function) phaseEnds() int64 {
	if f.phase == len(f.Phases) {
		return math.MaxInt64
	}
	return int64(f.Phases[f.phase].At)
}

// follow keeps the true need, and since when it has been within the guarantee.
func (f *function) follow(now int64) {
	for f.phaseEnds() <= now {
		f.need = f.Need(f.Phases[f.phase].Rate)
		f.phase++
	}
	switch {
	case f.action.Level == budget.Demoted, f.need > f.action.Guarantee:
		f.within = math.MaxInt64
	case f.within == math.MaxInt64:
		f.within = now + int64(f.Objective)
	}
}

// unanswered returns the requests that wait or run.
func (f *function) unanswered() []batching.Request {
	all := slices.Clone(f.queue.Pending)
	for _, b := range f.flights {
		all = append(all, b.requests...)
	}
	return all
}
