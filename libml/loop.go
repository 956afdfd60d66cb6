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

// loop is the batch loop. It owns the ring from Acquire to Release and belongs to one thread. A
// batch takes these steps:
//
//  1. Take the complete requests. When the batching rule allows a batch, pick it by priority
//     and deadline, as large as the rule allows. Answer `late` for requests that can no
//     longer meet their deadline.
//  2. Begin the batch: gather the fragments, infer, fetch the outputs (flight.go).
//  3. Look for new work while it runs, if the device can run a second batch next to it.
//     Begin that one when it is time (slab.NearEnd, slab.HalfFull).
//  4. Finish the batch: decode each image's outputs into its result, flush.
//  5. Tell the rule. If the process still owns the ring, continue with 1.
//
// On a CPU a batch is done when begin returns, so step 3 is empty. The loop moves to other
// multiprocessors between two batches or next to one (move.go).
//
// The loop allocates nothing once it runs.
type loop struct {
	p        *process
	m        *memory
	c        *shm.Consumer
	rule     *slab.Rule
	ruleOf   func(ladder []int) (*slab.Rule, error) // called from any goroutine
	state    slab.State
	governor governor

	account account

	pending  []slab.Request // taken, and not yet in a batch
	batch    []slab.Request // the next batch, a part of pending
	demoted  bool           // the batch is beyond the guarantee
	reserved int            // requests before the batch in pending, which wait for the guarantee
	late     int            // answered late in the dispatch of this batch
	waited   time.Duration  // by slab.WaitForRunning, before the batch
	expected func(n int) time.Duration
	busyPoll bool // poll, and never nap, while a batch is in flight
	streams  int  // maximum in flight, as configured; 0: overlap chooses
	overlap  slab.Overlap
	lead     time.Duration // from dispatch to gathered, also with other batches in flight
	// overslept is how much longer than requested a nap takes.
	overslept time.Duration
	taken     []uint32
	image     [][]byte

	// flights has a place for each batch that may be in flight. flying of them are, beginning at
	// first, in the order in which they began. Flight i runs in the device's slot base + i.
	flights             []flight
	first, flying, base int

	// The last batch, and the pause that the share requires after it.
	began, ended int64
	pause        time.Duration

	announced bool
	served    bool                      // a batch has begun
	acquired  int64                     // when this process got the ring
	larger    atomic.Pointer[slab.Rule] // the rule with more batch sizes, for grow
	next      atomic.Pointer[move]      // the move to make
	moved     *move                     // the move that was made and is not settled
	movedAt   int64
	movedIdle int64 // how long the ring was idle because of the move, or unknown

	standstill control.Report // hand-overs and moves, and the idle time of the last one
	report     atomic.Pointer[control.Report]
	limit      atomic.Uint64 // math.Float64bits
	fit        atomic.Uint32
	tail       atomic.Int64
	ran        atomic.Int64
}

// waitAtMost bounds how long an idle loop sleeps before it checks again.
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

// run waits for the ring and serves it until the epoch changes or a drain is ordered. Then it
// releases the ring. An error that wraps device.ErrLost means that the device failed: the requests
// in flight are answered, the others are left to the next owner.
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
	// The next owner has been woken, perhaps on this CPU, and has work to do. The rest here can
	// wait. Sleep in the kernel: Go's own sleep would first look for other goroutines to run.
	nap(afterYou)
	l.p.say(control.Notice{State: control.Draining})
	return nil
}

// take moves complete requests from the ring to pending.
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
		return true // the first batch after the move, next to the last one before it
	case !demoted && l.newest().demoted:
		return true // a demoted batch delays no other
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

// ready reports whether the rule allows a batch of the pending requests now.
func (l *loop) ready() bool {
	at := l.rule.ReadyAt(l.state, l.pending)
	return at == math.MinInt64 || at <= shm.Now()
}

// waitUntil is when a loop with nothing in flight checks again if no work arrives. It is at the
// latest when the pending requests may be a batch.
func (l *loop) waitUntil() int64 {
	until := shm.Now() + int64(waitAtMost)
	if len(l.pending) > 0 {
		until = min(until, max(l.rule.ReadyAt(l.state, l.pending), l.account.retry))
	}
	return until
}

// left is how long a batch in flight is expected to take from now. The time of a demoted one is
// unknown: the longer it has taken, the less often the loop checks it.
func (l *loop) left(f *flight, now int64) time.Duration {
	ran := time.Duration(now - f.dispatched)
	left := l.rule.Typical(l.state, f.padded) - ran
	if f.demoted {
		left = max(left, ran/8)
	}
	return left
}

// firstLead is the estimate until a lead has been measured.
const firstLead = 100 * time.Microsecond

// await returns true when it is time to finish a batch in flight. It returns false when another
// batch may begin next to it, or when a move should be made. If none may begin, await returns at
// once and finish waits, unless either of two batches may end first. Otherwise await checks the
// device and the ring, and naps between two checks. The naps get shorter as the expected end comes
// nearer; at last it polls.
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

// napABit naps for a part of the time until the batch in flight ends. If requests are pending, the
// limit is the time at which another batch may begin next to it. The nap is shortened by the time
// that naps are known to oversleep.
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

// oversleep updates the estimate of how much longer naps take, after a nap of d took that long. A
// stall counts as longestNap: with a larger estimate the loop would never nap again, and so could
// not correct it.
func oversleep(estimate, d, took time.Duration) time.Duration {
	return estimate + (min(took-d, longestNap)-estimate)/8
}

const (
	// looks is how often await checks the device between two checks of the ring.
	looks = 64
	// longestNap bounds how late await notices new work. shortestNap is the shortest nap that is
	// worth the system call.
	longestNap  = 100 * time.Microsecond
	shortestNap = 10 * time.Microsecond
)

func nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	unix.Nanosleep(&t, nil)
}

// abandon ends the loop on a lost device. It answers the requests in flight as failed and releases
// the ring; the next owner finds the pending requests there. It returns why.
func (l *loop) abandon(why error) error {
	for l.flying > 0 {
		f := l.oldestFlight()
		f.err = why
		l.complete(f, shm.Now())
	}
	l.c.Release()
	return why
}

// rest waits for the share's pause. It ends early when the ring must be released.
func (l *loop) rest(until int64) {
	for l.pause > 0 && l.c.Entitled() && !l.p.finished() {
		now := shm.Now()
		if now >= until {
			return
		}
		nap(min(time.Duration(until-now), restStep))
	}
}

// restStep bounds how late a resting loop notices that it must release its ring.
const restStep = 200 * time.Microsecond

// afterYou is the time of a few batches.
const afterYou = 5 * time.Millisecond

// announce tells the orchestrator, and starts to tell the manager, that this process serves. If
// work was waiting, the loop calls it after the first batch, so that the ring is not idle for
// longer.
func (l *loop) announce(done <-chan struct{}) {
	if l.announced {
		return
	}
	l.announced = true
	l.p.say(control.Notice{State: control.Active})
	go l.reportWhile(done)
}

// pend adds a taken request to the pending ones.
func (l *loop) pend(slot uint32) {
	r := l.c.Request(slot)
	l.pending = append(l.pending, slab.Request{
		Slot: slot, Whole: r.Whole, Deadline: r.Deadline, Priority: r.Priority,
	})
}

// pick chooses the next batch and answers requests that are late. The batch stays in pending until
// it begins.
func (l *loop) pick() {
	now := shm.Now()
	l.demoted = !l.guaranteed(now)
	began, ended := l.began, l.ended
	if l.flying > 0 && !l.newest().demoted {
		// For this batch the newest one in flight is the batch before: it has run until now.
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

// handedOver records how long the ring was idle in the hand-over to this process.
func (l *loop) handedOver() { l.stoodStill(l.idle(l.acquired)) }

// idle returns how long the ring has been idle: since the last batch's end, or since the next batch
// could have begun if that was later. It returns -1, not idle, if no work had arrived by the time
// at which it could have been taken.
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

// publish stores the rule's state for the reporting goroutine.
func (l *loop) publish() {
	l.limit.Store(math.Float64bits(l.state.Limit))
	l.fit.Store(uint32(l.state.Fit))
	l.tail.Store(int64(l.rule.Expected(l.state, l.rule.Size(l.state))))
}

// cpuTime is the CPU time that this process has used, in nanoseconds (getrusage(2)).
func cpuTime() int64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

// wait waits for a tick or for done.
func wait(done <-chan struct{}, tick <-chan time.Time) {
	select {
	case <-done:
	case <-tick:
	}
}

// reportWhile reports the batching to the manager, at once and then every ReportEvery, until done
// is closed.
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
			last = control.Report{} // report it again at the next tick
		case err != nil:
			return // the manager is gone; the watch goroutine has noticed, too
		}
	}
}
