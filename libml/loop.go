package libml

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/slab"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// loop is the batch loop: it owns the ring from Acquire to Release and belongs
// to one thread. The way of a batch, each step stamped:
//
//  1. Take what is whole; pick the next batch by priority and deadline, as many
//     as the batching rule allows; answer `late` what can no longer make it
//  2. gather the pieces into the batch tensor                      (dispatched -> gathered)
//  3. pad to the ladder's step, infer                              (gathered -> inferred)
//  4. decode each image's outputs into its result, flush
//  5. tell the rule; if the ring is still ours: 1
//
// It allocates nothing once it runs.
type loop struct {
	p        *process
	m        *memory
	c        *shm.Consumer
	rule     *slab.Rule
	state    slab.State
	governor governor

	pending  []slab.Request // taken, and not in a batch yet
	batch    []slab.Request // a part of pending
	late     int            // answered late in the dispatch of this batch
	waited   time.Duration  // as slab.WaitForRunning says, before it
	expected func(n int) time.Duration
	taken    []uint32
	slots    []uint32
	requests []device.Request
	refused  []bool
	image    [][]byte
	// The last batch, and the pause that the share asks for after it.
	began, ended int64
	pause        time.Duration

	announced bool
	acquired  int64 // when the ring became ours

	report atomic.Pointer[control.Report]
	limit  atomic.Uint64 // math.Float64bits
	fit    atomic.Uint32
	tail   atomic.Int64
	ran    atomic.Int64
}

// waitAtMost bounds how long an idle loop sleeps before it looks round.
const waitAtMost = 100 * time.Millisecond

func newLoop(p *process, attached control.Attached) (*loop, error) {
	rule, err := slab.New(attached.Batching, slab.Config{SLO: p.slo, Ladder: p.card.Batches})
	if err != nil {
		return nil, err
	}
	n := p.memory.slots
	l := &loop{
		p: p, m: p.memory, c: p.memory.consumer, rule: rule, state: rule.Start(),
		governor: newGovernor(p.start.CPUs, p.threads()),
		pending:  make([]slab.Request, 0, n),
		taken:    make([]uint32, n),
		slots:    make([]uint32, 0, n),
		requests: make([]device.Request, 0, p.card.MaxBatch()),
		refused:  make([]bool, p.card.MaxBatch()),
		image:    make([][]byte, len(p.card.Outputs)),
	}
	l.expected = func(n int) time.Duration { return l.rule.Expected(l.state, n) }
	for _, w := range p.warm {
		l.state = rule.Warm(l.state, w.size, w.elapsed)
	}
	return l, nil
}

// run waits for the ring, serves it until the epoch moves on or a drain is
// ordered, and gives it up.
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
			return nil
		}
	}
	done := make(chan struct{})
	defer close(done)
	for _, slot := range l.c.Recover(nil) {
		l.pend(slot)
	}
	first := true
	for l.c.Entitled() && !l.p.finished() {
		for _, slot := range l.taken[:l.c.Take(l.taken)] {
			l.pend(slot)
		}
		if len(l.pending) == 0 {
			l.announce(done)
			l.c.Wait(shm.Now() + int64(waitAtMost))
			continue
		}
		if l.pick(); len(l.batch) == 0 {
			continue
		}
		if first {
			first = false
			l.handedOver()
		}
		if err := l.runBatch(); err != nil {
			l.p.log.Error().Err(err).Int("batch", len(l.batch)).Msg("batch failed")
		}
		l.announce(done)
		l.rest(shm.Now() + int64(l.pause))
	}
	l.c.Release()
	// The next owner has been woken, perhaps on this CPU. It has work to do; what
	// is left here can wait: in the kernel, as Go's own sleep would first look for
	// other goroutines to run.
	nap := unix.NsecToTimespec(int64(afterYou))
	unix.Nanosleep(&nap, nil)
	l.p.child.Notify(control.Notice{State: control.Draining})
	return nil
}

// rest lets the share's pause pass; it ends early when the ring is to be given up.
func (l *loop) rest(until int64) {
	for l.pause > 0 && l.c.Entitled() && !l.p.finished() {
		now := shm.Now()
		if now >= until {
			return
		}
		nap := unix.NsecToTimespec(min(until-now, int64(restStep)))
		unix.Nanosleep(&nap, nil)
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
	l.p.child.Notify(control.Notice{State: control.Active})
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
// pending until runBatch has answered it.
func (l *loop) pick() {
	l.waited = slab.WaitForRunning(l.pending, l.began, l.ended)
	now := shm.Now()
	batch, late := slab.Pick(l.pending, now, l.rule.Size(l.state), l.expected)
	l.batch, l.late = l.pending[:batch], late
	if late == 0 {
		return
	}
	on := len(l.pending) - late
	left := int64(math.MinInt64)
	for _, r := range l.pending[on:] {
		left = max(left, r.Deadline-now)
		l.c.Complete(r.Slot, shm.Result{Status: uint8(wire.StatusLate), ModelVersion: l.p.card.Version})
	}
	l.pending = l.pending[:on]
	l.c.Flush()
	if batch == 0 {
		l.state = l.rule.Next(l.state, slab.Observation{Late: late, Left: time.Duration(left)})
		l.publish()
	}
}

// runBatch runs l.batch and answers each of its requests. The error, if any, has
// cost them an honest answer and nothing else.
func (l *loop) runBatch() error {
	n := len(l.batch)
	padded := l.rule.Pad(n)
	defer l.unpend(n)
	l.slots, l.requests = l.slots[:0], l.requests[:0]
	for _, r := range l.batch {
		l.slots = append(l.slots, r.Slot)
		l.requests = append(l.requests, device.Request{Pieces: l.c.Pieces(r.Slot), Bytes: l.c.Request(r.Slot).Bytes})
	}
	l.c.Start(l.slots)
	oldest := l.c.Request(l.oldest().Slot)
	dispatched := shm.Now()
	gatherErr := l.gather(n, padded)
	gathered := shm.Now()
	inferErr := error(nil)
	if unusable(gatherErr) {
		inferErr = gatherErr
	} else {
		inferErr = l.infer(n, padded)
	}
	inferred := shm.Now()

	var firstErr error
	for i, r := range l.batch {
		result := shm.Result{
			Status: uint8(wire.StatusFailed), Batch: uint16(n), ModelVersion: l.p.card.Version,
			Dispatched: dispatched, Gathered: gathered, Inferred: inferred,
		}
		err := inferErr
		if err == nil && l.refused[i] {
			err = gatherErr
		}
		if err == nil {
			err = l.decode(i, r.Slot, &result)
		}
		if err != nil && firstErr == nil {
			firstErr = err
		}
		l.c.Complete(r.Slot, result)
	}
	ended := shm.Now()
	l.c.BatchEnded(ended)
	l.c.Flush()

	l.pause = l.governor.spend(l.p.share.Load(), dispatched, ended)
	l.state = l.rule.Next(l.state, slab.Observation{
		Batch: n, Padded: padded,
		Elapsed:    time.Duration(ended-dispatched) + l.pause,
		Aggregated: time.Duration(oldest.Whole - oldest.FirstPiece),
		Waited:     l.waited,
		Late:       l.late,
	})
	l.ran.Add(int64(n))
	l.began, l.ended = dispatched, ended+int64(l.pause)
	l.publish()
	return firstErr
}

// oldest is the request of the batch that was whole first.
func (l *loop) oldest() *slab.Request {
	oldest := &l.batch[0]
	for i := range l.batch {
		if l.batch[i].Whole < oldest.Whole {
			oldest = &l.batch[i]
		}
	}
	return oldest
}

// unpend takes the first n, which were answered, off pending.
func (l *loop) unpend(n int) {
	l.batch = nil
	l.pending = l.pending[:copy(l.pending, l.pending[n:])]
}

// unusable reports whether an error of Gather spoilt the whole batch, not just
// single requests.
func unusable(err error) bool {
	if err == nil {
		return false
	}
	var request *device.RequestError
	return !errors.As(err, &request)
}

// gather fills the batch tensor and blanks its padding.
func (l *loop) gather(n, padded int) error {
	input := l.m.tensors[0].input(padded)
	err := l.m.device.Gather(0, input, l.requests, l.refused[:n])
	if unusable(err) {
		return err
	}
	if padErr := l.m.device.Pad(0, input, n, padded); padErr != nil {
		return padErr
	}
	return err
}

// infer runs the framework and brings back what it made of the first n images.
func (l *loop) infer(n, padded int) error {
	if err := l.p.framework.InferBatch(0, padded); err != nil {
		return err
	}
	if err := l.m.device.Fetch(0, n); err != nil {
		return err
	}
	_, err := l.m.device.Wait(0)
	return err
}

// decode turns image i's outputs into its result.
func (l *loop) decode(i int, slot uint32, result *shm.Result) error {
	l.m.tensors[0].image(l.image, i)
	payload, kind, err := l.m.decoder.Append(l.c.ResultBuffer(slot)[:0], l.image)
	if err != nil {
		return fmt.Errorf("decode outputs of %s: %w", l.p.card.Name, err)
	}
	result.Status, result.Kind, result.Length = uint8(wire.StatusOK), uint8(kind), uint32(len(payload))
	return nil
}

// handedOver notes how long the ring stood still in the hand-over that made it
// ours: from the old owner's last batch, or from when the first work came if that
// was later, to now. Where no work came before the ring was ours, nothing stood
// still.
func (l *loop) handedOver() {
	idle := int64(-1)
	if last, oldest := l.c.LastBatchEnd(), l.oldest().Whole; last != 0 && oldest <= l.acquired {
		idle = shm.Now() - max(last, oldest)
	}
	l.report.Store(&control.Report{Handovers: 1, IdleNanos: idle})
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
