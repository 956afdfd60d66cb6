package sharesim

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/manager/policy/guarantee"
	"github.com/penstock/penstock/shm"
)

// lanes is how many batches of a function may be in flight.
const lanes = 2

// lead is the time from a batch's dispatch to the end of its gather.
const lead = 100 * time.Microsecond

// function is a function that serves: libml's loop and account in virtual time, and what
// the manager knows of it.
type function struct {
	Function
	rules    Rules
	arrivals arrivals
	noise    *rand.Rand
	device   *device

	// The loop.
	serves       bool
	rule         *batching.Rule
	state        batching.State
	overlap      batching.Overlap
	expected     func(n int) time.Duration
	pending      []batching.Request
	flights      []*batch // in the order in which they began
	slot         uint32
	began, ended int64 // of the last guaranteed batch

	// The account.
	balance budget.Balance
	size    int   // the largest batch that the balance holds
	retry   int64 // when a demoted batch is tried again

	// The manager.
	action   guarantee.Action
	maxBatch int // 0: no limit
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
		Function: f, rules: c.Rules, rule: rule, state: rule.Start(), device: d,
		noise:    rand.New(rand.NewPCG(c.Seed, uint64(2*index+1))),
		arrivals: newArrivals(f, rand.New(rand.NewPCG(c.Seed, uint64(2*index)))),
		counted:  map[uint32]bool{}, from: int64(c.Settle), within: math.MaxInt64,
	}
	s.result.Function = f
	s.expected = func(n int) time.Duration { return s.rule.Expected(s.state, n) }
	for _, n := range ladder {
		s.state = rule.Warm(s.state, n, f.timeOn(n, d.part))
	}
	return s, nil
}

// guaranteed follows libml's account.
func (f *function) guaranteed(now int64) bool {
	if f.action.Level == budget.Demoted || f.rules.NoBalance {
		return true // alone on its part of the device
	}
	if size := f.rule.Size(f.state); size != f.size {
		f.size = size
		f.retry = 0
		f.setBalance(now)
	}
	return f.balance.Guaranteed(now)
}

func (f *function) setBalance(now int64) {
	f.balance.Set(now, f.action.Allowance, budget.Capacity(f.action.Allowance, f.Objective, f.estimate(f.size)))
}

// estimate is what libml believes a batch to cost.
func (f *function) estimate(n int) time.Duration {
	narrow := narrow
	if f.device.sharing != Priorities {
		narrow = 1
	}
	return time.Duration((narrow*float64(f.Fixed) + float64(n)*float64(f.PerImage)) * f.costError())
}

// act is what the manager has decided.
func (f *function) act(now int64, a guarantee.Action) {
	was := f.action
	if was.Level == a.Level && math.Abs(a.Allowance-was.Allowance) < 0.01 {
		a.Guarantee, a.Allowance, a.Saved = was.Guarantee, was.Allowance, was.Saved
	}
	f.action, f.retry = a, 0
	w := f.wants()
	f.maxBatch = w.Requests(a.LongestBatch)
	if was.Level == budget.Demoted {
		f.size = f.rule.Size(f.state)
		f.balance = budget.NewBalance(now, a.Allowance, budget.Capacity(a.Allowance, f.Objective, f.estimate(f.size)))
	} else {
		f.setBalance(now)
	}
}

// wants is the manager's instance.wants. The costs are known when batches have run.
func (f *function) wants() guarantee.Function {
	w := guarantee.Function{
		Name: f.Name, Objective: f.Objective, Rate: f.demand.Rate(), Batch: guarantee.Batch(f.demand.Rate(), f.Objective, maxBatch),
	}
	if f.reported {
		each := (f.estimate(maxBatch) - f.estimate(1)) / (maxBatch - 1)
		w.Cost, w.Fixed = each, f.estimate(1)-each
		w.LongestBatch = f.estimate(f.rule.Size(f.state))
	}
	return w
}

// receive takes a request in.
func (f *function) receive(at int64) {
	f.slot++
	f.arrived++
	f.retry = 0
	f.pending = append(f.pending, batching.Request{Slot: f.slot, Whole: at, Deadline: at + int64(f.Objective)})
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

// takeTurns begins the batch that goes first, if none runs.
func takeTurns(functions []*function, now int64) {
	for len(functions[0].device.batches) == 0 {
		var best *function
		var first shm.Rank
		for _, f := range functions {
			if !f.mayBegin(now) {
				continue
			}
			rank := shm.Rank{Deadline: f.pending[0].Deadline}
			if f.guaranteed(now) {
				rank.Level = uint32(f.action.Level)
			}
			if best == nil || rank.Before(first) {
				best, first = f, rank
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

// step lets the loop do what it can do now.
func (f *function) step(now int64) {
	for f.mayBegin(now) {
		if !f.begin(now) {
			return
		}
	}
}

func (f *function) newest() *batch { return f.flights[len(f.flights)-1] }

// lanes is how many batches of the function may be in flight.
func (f *function) lanes() int {
	if f.device.sharing == Turns {
		return 1
	}
	return lanes
}

// mayBegin is libml's.
func (f *function) mayBegin(now int64) bool {
	if len(f.pending) == 0 || len(f.flights) == f.lanes() || !f.serves {
		return false
	}
	demoted := !f.guaranteed(now)
	switch {
	case demoted && (now < f.retry || len(f.flights) > 0 && f.newest().demoted):
		return false
	case len(f.flights) == 0:
		return true
	case !demoted && f.newest().demoted:
		return true
	}
	if f.overlap.HalfFull() {
		return batching.HalfFull(len(f.pending), f.rule.Size(f.state))
	}
	oldest := f.flights[0]
	return batching.NearEnd(len(f.pending), f.left(oldest, now), f.leadOf(oldest))
}

func (f *function) leadOf(b *batch) time.Duration {
	return min(lead, f.rule.Typical(f.state, b.padded)/2)
}

func (f *function) left(b *batch, now int64) time.Duration {
	ran := time.Duration(now - b.dispatched)
	left := f.rule.Typical(f.state, b.padded) - ran
	if b.demoted {
		left = max(left, ran/8)
	}
	return left
}

// samples is when mayBegin may become true as time passes.
func (f *function) samples(now int64) int64 {
	if len(f.pending) == 0 || len(f.flights) == f.lanes() || !f.serves {
		return math.MaxInt64
	}
	at := int64(math.MaxInt64)
	if !f.guaranteed(now) {
		if wait := f.balance.Wait(now); wait < math.MaxInt64/2 {
			at = now + max(1, int64(wait))
		}
	}
	if len(f.flights) == 1 && !f.overlap.HalfFull() {
		b := f.flights[0]
		left := f.left(b, now) - f.leadOf(b)
		at = min(at, now+max(int64(left), int64(20*time.Microsecond)))
	}
	return at
}

// refill is when batches within the guarantee can begin.
func (f *function) refill(now int64) batching.Refill {
	wait := f.balance.Wait(now)
	if f.action.Allowance <= 0 || wait == math.MaxInt64 {
		return batching.Refill{Wait: -1}
	}
	return batching.Refill{Wait: wait, Every: time.Duration(float64(f.estimate(f.size)) / f.action.Allowance)}
}

// begin dispatches a batch. It returns false if there was none to begin.
func (f *function) begin(now int64) bool {
	demoted := !f.guaranteed(now)
	began, ended := f.began, f.ended
	if len(f.flights) > 0 && !f.newest().demoted {
		began, ended = f.newest().dispatched, now
	}
	waited := batching.WaitForRunning(f.pending, began, ended)
	reserved := 0
	if demoted && !f.rules.NeverWait {
		reserved = f.rule.Reserve(f.state, f.pending, now, f.refill(now), f.expected)
	}
	n, late := f.rule.Pick(f.state, f.pending[reserved:], now, demoted, f.expected)
	on := len(f.pending) - late
	for _, r := range f.pending[on:] {
		f.answer(r, math.MaxInt64)
	}
	f.pending = f.pending[:on]
	if n == 0 {
		if late > 0 {
			f.state = f.rule.Next(f.state, batching.Observation{Late: late})
		}
		if demoted {
			f.retry = math.MaxInt64
			if wait := f.balance.Wait(now); wait < math.MaxInt64/2 {
				f.retry = now + int64(wait)
			}
		}
		return late > 0
	}
	size := f.rule.Size(f.state)
	if f.maxBatch > 0 {
		size = min(size, f.fit(f.maxBatch))
	}
	n = min(n, size)
	b := &batch{
		of: f, full: n == size, level: f.action.Level, demoted: demoted, padded: f.rule.Pad(n), dispatched: now, waited: waited, late: late,
		requests: slices.Clone(f.pending[reserved : reserved+n]),
	}
	f.pending = slices.Delete(f.pending, reserved, reserved+n)
	b.width = f.width(b.padded)
	b.work = float64(f.Time(b.padded)) * math.Exp(sigma*f.noise.NormFloat64())
	b.kernel = b.work / float64(f.Kernels)
	switch {
	case demoted:
		b.level = budget.Demoted
	case f.rules.InvertLevels:
		b.level = budget.MaxLevel + budget.MinLevel - b.level
	}
	if !demoted || f.rules.ChargeDemoted {
		f.balance.Charge(now, f.estimate(b.padded))
	}
	f.flights = append(f.flights, b)
	f.device.add(b)
	return true
}

// fit returns the largest batch size that does not exceed n.
func (f *function) fit(n int) int {
	fit := ladder[0]
	for _, size := range ladder {
		if size <= n {
			fit = size
		}
	}
	return fit
}

// finish answers a batch that has run.
func (f *function) finish(b *batch, now int64) {
	for _, r := range b.requests {
		f.answer(r, now)
	}
	f.flights = slices.DeleteFunc(f.flights, func(other *batch) bool { return other == b })
	f.reported = true
	o := batching.Observation{
		Batch: len(b.requests), Padded: b.padded, Demoted: b.demoted, Elapsed: time.Duration(now - b.dispatched),
		Ended: now, Waited: b.waited, Late: b.late, Full: b.full,
	}
	f.state = f.rule.Next(f.state, o)
	f.overlap = f.overlap.Next(o)
	if b.demoted {
		f.result.Demoted += f.uses(b.padded)
		return
	}
	f.result.Guaranteed += f.uses(b.padded)
	f.began, f.ended = b.dispatched, now
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
	all := slices.Clone(f.pending)
	for _, b := range f.flights {
		all = append(all, b.requests...)
	}
	return all
}
