package libml

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/slab"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// loop is the batch loop: it owns the ring from Acquire to Release and belongs
// to one thread. The way of a batch:
//
//  1. Take what is whole; when the batching rule says that there may be a batch, pick it
//     by priority and deadline, as many as the rule allows; answer `late` what can no
//     longer make it
//  2. begin it: gather the pieces, infer, fetch the outputs (flight.go)
//  3. look for new work while it runs, where the device lets a second one run beside
//     it; begin that, too, when it is time (slab.NearEnd, slab.HalfFull)
//  4. finish it: decode each image's outputs into its result, flush
//  5. tell the rule; if the ring is still ours: 1
//
// A batch on a CPU is done when it has begun, so there 3 is nothing. Between two
// batches, or beside one, the loop moves to other multiprocessors (move.go).
//
// It allocates nothing once it runs.
type loop struct {
	p        *process
	m        *memory
	c        *shm.Consumer
	rule     *slab.Rule
	ruleOf   func(ladder []int) (*slab.Rule, error) // any goroutine's
	state    slab.State
	governor governor

	account account

	pending  []slab.Request // taken, and not in a batch yet
	batch    []slab.Request // a part of pending: the next one
	demoted  bool           // it is beyond the guarantee
	reserved int            // before it in pending: they wait for the guarantee
	late     int            // answered late in the dispatch of this batch
	waited   time.Duration  // as slab.WaitForRunning says, before it
	expected func(n int) time.Duration
	busyPoll bool // look, and never nap, while a batch is in flight
	streams  int  // in flight, as configured; 0: overlap chooses
	overlap  slab.Overlap
	lead     time.Duration // from dispatch to gathered, beside others too
	// overslept is how much longer than asked for a nap takes.
	overslept time.Duration
	taken     []uint32
	image     [][]byte

	// flights has a place for each batch that may be in flight; flying of them are,
	// from first on, in the order in which they began. Flight i runs in the device's
	// slot base + i.
	flights             []flight
	first, flying, base int

	// The last batch, and the pause that the share asks for after it.
	began, ended int64
	pause        time.Duration

	announced bool
	served    bool                      // a batch has begun
	acquired  int64                     // when the ring became ours
	larger    atomic.Pointer[slab.Rule] // with more batch sizes, to be taken over
	next      atomic.Pointer[move]      // to be made
	moved     *move                     // made, and not settled
	movedAt   int64
	movedIdle int64 // how long the ring stood still for it, or unknown

	standstill control.Report // hand-overs and moves, and how long the last one took
	report     atomic.Pointer[control.Report]
	limit      atomic.Uint64 // math.Float64bits
	fit        atomic.Uint32
	tail       atomic.Int64
	ran        atomic.Int64
}

// waitAtMost bounds how long an idle loop sleeps before it looks round.
const waitAtMost = 100 * time.Millisecond

func newLoop(p *process, attached control.Attached) (*loop, error) {
	ruleOf := func(ladder []int) (*slab.Rule, error) {
		return slab.New(string(cmp.Or(attached.Batching.Rule, control.BatchSLAB)), slab.Config{
			SLO: p.slo, Ladder: ladder, RunLate: attached.RunLate,
			Fixed: attached.Batching.Size, Delay: attached.Batching.Delay,
		})
	}
	rule, err := ruleOf(p.ladder)
	if err != nil {
		return nil, err
	}
	n := p.memory.slots
	l := &loop{
		p: p, m: p.memory, c: p.memory.consumer, rule: rule, ruleOf: ruleOf, state: rule.Start(),
		governor: newGovernor(p.start.CPUs, p.threads()),
		busyPoll: attached.BusyPollNanos > 0,
		streams:  attached.Streams,
		lead:     firstLead,
		pending:  make([]slab.Request, 0, n),
		taken:    make([]uint32, n),
		image:    make([][]byte, len(p.card.Outputs)),
		flights:  make([]flight, p.inFlight),
	}
	for i := range l.flights {
		l.flights[i] = newFlight(p.card.MaxBatch())
	}
	l.expected = func(n int) time.Duration { return l.rule.Expected(l.state, n) }
	for _, w := range p.warm {
		l.state = rule.Warm(l.state, w.size, w.elapsed)
	}
	l.account.open(p, shm.Now())
	return l, nil
}

// run waits for the ring, serves it until the epoch moves on or a drain is
// ordered, and gives it up. An error that wraps device.ErrLost says that the device
// failed: what was in flight is answered, what was not is left to the next owner.
func (l *loop) run() error {
	for {
		owned, err := l.c.Acquire(shm.Now() + int64(waitAtMost))
		if err != nil {
			return fmt.Errorf("wait for the ring: %w", err)
		}
		if owned {
			l.acquired = shm.Now()
			break
		}
		if l.p.finished() {
			return l.p.deviceLost()
		}
		l.grow()
		l.moveOver()
		l.moveSeen(-1)
	}
	done := make(chan struct{})
	defer close(done)
	for _, slot := range l.c.Recover(l.taken[:0]) {
		l.pend(slot)
	}
	for l.c.Entitled() && !l.p.finished() {
		l.take()
		l.grow()
		l.moveOver()
		switch {
		case l.mayBegin():
			if l.pick(); len(l.batch) == 0 {
				continue
			}
			if err := l.begin(); lost(err) {
				return l.abandon(err)
			}
			if l.flying < len(l.flights) {
				continue
			}
		case l.flying == 0:
			l.c.Settle()
			l.announce(done)
			l.moveSeen(-1)
			l.c.Wait(l.waitUntil())
			continue
		}
		if !l.await() {
			continue
		}
		if err := l.finish(); lost(err) {
			return l.abandon(err)
		}
		l.announce(done)
		l.rest(shm.Now() + int64(l.pause))
	}
	l.c.Settle()
	if err := l.p.deviceLost(); err != nil {
		return l.abandon(err)
	}
	for l.flying > 0 {
		if err := l.finish(); lost(err) {
			return l.abandon(err)
		}
	}
	l.c.Release()
	// The next owner has been woken, perhaps on this CPU. It has work to do; what
	// is left here can wait: in the kernel, as Go's own sleep would first look for
	// other goroutines to run.
	nap(afterYou)
	l.p.say(control.Notice{State: control.Draining})
	return nil
}

// take moves what is whole from the ring to pending.
func (l *loop) take() {
	for _, slot := range l.taken[:l.c.Take(l.taken)] {
		l.pend(slot)
		l.account.retry = 0
	}
}

// mayBegin reports whether a batch may begin now.
func (l *loop) mayBegin() bool {
	switch {
	case len(l.pending) == 0 || l.flying == len(l.flights):
		return false
	case !l.ready():
		return false
	}
	now := shm.Now()
	demoted := !l.guaranteed(now)
	switch {
	case demoted && (now < l.account.retry || l.flying > 0 && l.newest().demoted):
		return false
	case l.flying == 0:
		return true
	case l.moved != nil && l.movedIdle == unknown:
		return true // its first batch there, beside the last one here
	case !demoted && l.newest().demoted:
		return true // a demoted batch keeps no other waiting
	case l.streams > 1 || l.overlap.HalfFull():
		return slab.HalfFull(len(l.pending), l.rule.Size(l.state))
	}
	f := l.oldestFlight()
	return slab.NearEnd(len(l.pending), l.left(f, now), min(l.lead, l.rule.Typical(l.state, f.padded)/2))
}

// guaranteed reports whether a batch that begins now is within the guarantee.
func (l *loop) guaranteed(now int64) bool {
	return l.account.guaranteed(now, l.p.share.Load(), l.rule.Size(l.state))
}

// ready reports whether the rule lets what is pending be a batch now.
func (l *loop) ready() bool {
	at := l.rule.ReadyAt(l.state, l.pending)
	return at == math.MinInt64 || at <= shm.Now()
}

// waitUntil is when a loop with nothing in flight looks again, if no work comes before:
// at the latest when what is pending may be a batch.
func (l *loop) waitUntil() int64 {
	until := shm.Now() + int64(waitAtMost)
	if len(l.pending) > 0 {
		until = min(until, max(l.rule.ReadyAt(l.state, l.pending), l.account.retry))
	}
	return until
}

// left is how long a batch in flight is expected to take from now. A demoted one may take
// any time: it is looked at less often, the longer it has taken.
func (l *loop) left(f *flight, now int64) time.Duration {
	ran := time.Duration(now - f.dispatched)
	left := l.rule.Typical(l.state, f.padded) - ran
	if f.demoted {
		left = max(left, ran/8)
	}
	return left
}

// firstLead is believed until a lead was measured.
const firstLead = 100 * time.Microsecond

// await returns true when it is time to finish a batch in flight, or false when another
// may begin beside it or a move is to be made. If none may, finish waits, unless either of
// two batches may be done first. Else it looks at the device and at the ring, and naps between two looks, the
// shorter the nearer the end is expected; at last it looks without pause.
func (l *loop) await() bool {
	if l.flying == len(l.flights) && !l.mixed() {
		return true
	}
	for {
		for range looks {
			if l.done() != nil {
				return true
			}
		}
		if !l.c.Entitled() || l.p.finished() {
			return true // none may begin any more
		}
		if l.take(); l.flying < len(l.flights) && l.next.Load() != nil || l.mayBegin() {
			return false
		}
		l.napABit()
	}
}

// napABit naps for a part of the time until the batch in flight ends or, where work
// waits, until another may begin beside it: so long that it is awake again then, as far
// as naps have been known to end when they should.
func (l *loop) napABit() {
	now := shm.Now()
	left := l.left(l.oldestFlight(), now)
	if l.mixed() {
		left = min(left, l.left(l.newest(), now))
	}
	if len(l.pending) > 0 {
		left -= l.lead
	}
	d := min(left/2-l.overslept, longestNap)
	if l.busyPoll || d < shortestNap {
		return
	}
	nap(d)
	l.overslept = oversleep(l.overslept, d, time.Duration(shm.Now()-now))
}

// oversleep is the estimate of how much longer naps take after one of d took that long.
// A stall counts as longestNap: with a larger estimate the loop would never nap again, so
// nothing would correct it.
func oversleep(estimate, d, took time.Duration) time.Duration {
	return estimate + (min(took-d, longestNap)-estimate)/8
}

const (
	// looks is how often await looks at the device between two looks at the ring.
	looks = 64
	// longestNap bounds how late await sees that work has come, shortestNap is one that
	// is worth the system call.
	longestNap  = 100 * time.Microsecond
	shortestNap = 10 * time.Microsecond
)

func nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	unix.Nanosleep(&t, nil)
}

// abandon is the end on a device that is lost: what is in flight is answered as
// failed, and the ring is free for the next owner, who finds what is pending. It
// returns why.
func (l *loop) abandon(why error) error {
	for l.flying > 0 {
		f := l.oldestFlight()
		f.err = why
		l.complete(f, shm.Now())
	}
	l.c.Release()
	return why
}

// rest lets the share's pause pass; it ends early when the ring is to be given up.
func (l *loop) rest(until int64) {
	for l.pause > 0 && l.c.Entitled() && !l.p.finished() {
		now := shm.Now()
		if now >= until {
			return
		}
		nap(min(time.Duration(until-now), restStep))
	}
}

// restStep bounds how late a resting loop sees that its ring is wanted.
const restStep = 200 * time.Microsecond

// afterYou is a few batches' time.
const afterYou = 5 * time.Millisecond

// announce tells the orchestrator, and starts to tell the manager, that this
// process serves. It waits for the first batch to be over: the ring has stood
// still for long enough.
func (l *loop) announce(done <-chan struct{}) {
	if l.announced {
		return
	}
	l.announced = true
	l.p.say(control.Notice{State: control.Active})
	go l.reportWhile(done)
}

// pend adds a taken request to those that wait for a batch.
func (l *loop) pend(slot uint32) {
	r := l.c.Request(slot)
	l.pending = append(l.pending, slab.Request{
		Slot: slot, Whole: r.Whole, Deadline: r.Deadline, Priority: r.Priority,
	})
}

// pick chooses the next batch and answers what is late. The batch stays in
// pending until it begins.
func (l *loop) pick() {
	now := shm.Now()
	l.demoted = !l.guaranteed(now)
	began, ended := l.began, l.ended
	if l.flying > 0 && !l.newest().demoted {
		// The batch that the newest in flight is to this one: it runs until now.
		began, ended = l.newest().dispatched, now
	}
	l.waited = slab.WaitForRunning(l.pending, began, ended)
	l.reserved = 0
	if l.demoted {
		l.reserved = l.rule.Reserve(l.state, l.pending, now, l.account.refill(now), l.expected)
	}
	batch, late := l.rule.Pick(l.state, l.pending[l.reserved:], now, l.demoted, l.expected)
	l.batch, l.late = l.pending[l.reserved:][:batch], late
	if l.demoted && batch == 0 {
		l.account.waits(now)
	}
	if late == 0 {
		return
	}
	on := len(l.pending) - late
	for _, r := range l.pending[on:] {
		l.c.Complete(r.Slot, shm.Result{Status: uint8(wire.StatusLate), ModelVersion: l.p.card.Version})
	}
	l.pending = l.pending[:on]
	l.c.Flush()
	if batch == 0 {
		l.state = l.rule.Next(l.state, slab.Observation{Late: late})
		l.publish()
	}
}

// handedOver notes how long the ring stood still in the hand-over that made it
// ours.
func (l *loop) handedOver() { l.stoodStill(l.idle(l.acquired)) }

// idle is how long the ring stood still until now: from the last batch's end, or
// from when the next one could begin if that was later. It is -1, nothing
// stood still, where no work had come by the time at which it could be taken.
func (l *loop) idle(ready int64) int64 {
	last, since := l.c.LastBatchEnd(), l.rule.Since(l.state, l.batch)
	if last == 0 || since > ready {
		return -1
	}
	return shm.Now() - max(last, since)
}

// stoodStill counts a hand-over or a move for the report.
func (l *loop) stoodStill(nanos int64) {
	l.standstill.Handovers++
	l.standstill.IdleNanos = nanos
	over := l.standstill
	l.report.Store(&over)
}

// publish leaves the rule's state for the reporting goroutine.
func (l *loop) publish() {
	l.limit.Store(math.Float64bits(l.state.Limit))
	l.fit.Store(uint32(l.state.Fit))
	l.tail.Store(int64(l.rule.Expected(l.state, l.rule.Size(l.state))))
}

// cpuTime is what this process has used, in nanoseconds (getrusage(2)).
func cpuTime() int64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

// wait waits for a tick, or done.
func wait(done <-chan struct{}, tick <-chan time.Time) {
	select {
	case <-done:
	case <-tick:
	}
}

// reportWhile tells the manager how batching goes, at once and then every
// ReportEvery, until done is closed.
func (l *loop) reportWhile(done <-chan struct{}) {
	tick := time.NewTicker(control.ReportEvery)
	defer tick.Stop()
	var last control.Report
	began := cpuTime()
	for ; ; wait(done, tick.C) {
		select {
		case <-done:
			return
		default:
		}
		r := control.Report{
			Generation: l.p.start.Generation,
			Limit:      math.Float64frombits(l.limit.Load()),
			TailNanos:  l.tail.Load(),
			Fit:        control.Fit(slab.Fit(l.fit.Load()).String()),
			CPUNanos:   cpuTime() - began,
			Ran:        l.ran.Load(),

			DeviceNanos: l.account.charged.Load(), DemotedNanos: l.account.demoted.Load(),
			Unprotected: l.unprotected(),
			FixedNanos:  l.account.fixed.Load(), EachNanos: l.account.each.Load(),
		}
		if over := l.report.Load(); over != nil {
			r.Handovers, r.IdleNanos = over.Handovers, over.IdleNanos
		}
		if r == last {
			continue
		}
		last = r
		switch err := l.p.conn.Report(r); {
		case errors.Is(err, control.ErrBehind):
			last = control.Report{} // said again at the next tick
		case err != nil:
			return // the manager is gone; the watch goroutine has seen it too
		}
	}
}
