package serve

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/shm"
)

// move switches the loop to another set of slots, which are ready on other groups of
// multiprocessors:
//
//	mover, on a goroutine of its own          loop
//	1 receive an order; the last one counts   batches, in the slots in use
//	2 Repartition of the standby slots        "
//	3 ConfigureBatch there, its sizes         "
//	4 move ────────────────────────────────>  5 at most one in flight: startMove
//	                                          6 begin the next batch there, next to the last one here
//	8 <───────────────────────────── settle ─ 7 nothing left in flight here
//	9 report the groups that it holds now; the others are free
//
// So the device always has work of this process. While the process uses both sets of groups, it
// holds both.
type move struct {
	base    int           // the first slot of the set
	settled chan struct{} // closed at 8
}

// standby is the first slot of the other set than base's: slots 0 and 1, or 2 and 3.
func standby(base int) int { return device.Slots/2 - base }

// idleUnknown is the value of moves.idle until a batch has begun, or none waits.
const idleUnknown = math.MinInt64

// moves is the loop's part in moves. A move that the loop has made is current until it is settled.
type moves struct {
	next    atomic.Pointer[move] // the move to make
	current *move                // nil: none
	begun   int64                // when it was made
	idle    int64                // how long the ring was idle because of the move, or unknown
}

// ordered reports whether there is a move to make.
func (m *moves) ordered() bool { return m.next.Load() != nil }

// begin makes the ordered move: the next batches run in the other slots.
func (m *moves) begin(f *flights, now int64) {
	if next := m.next.Swap(nil); next != nil {
		f.base, m.current, m.begun, m.idle = next.base, next, now, idleUnknown
	}
}

// made reports whether a move is not settled.
func (m *moves) made() bool { return m.current != nil }

// incomplete reports whether no batch has begun since the move was made.
func (m *moves) incomplete() bool { return m.made() && m.idle == idleUnknown }

// complete records how long the ring was idle for a move: until the first batch after it began, or
// -1 if no request was pending.
func (m *moves) complete(idle int64) {
	if m.incomplete() {
		m.idle = idle
	}
}

// settle ends a move if the first batch after it has begun and none is left in flight in the old
// place.
func (m *moves) settle(f *flights) (idleNanos int64, settled bool) {
	if !m.made() || m.idle == idleUnknown || !f.moved() {
		return 0, false
	}
	close(m.current.settled)
	m.current = nil
	return m.idle, true
}

// startMove makes an ordered move if there is a place for a batch next to the one in flight: slots
// of different lanes share nothing. If requests are pending and nothing is in flight, one more
// batch begins in the old place first. Next to that batch, the move leaves no gap.
func (l *loop) startMove() {
	// Check before the swap in begin: this runs before every batch.
	if l.flights.full() || !l.moves.ordered() {
		return
	}
	if l.flights.count == 0 && len(l.queue.Pending) > 0 && len(l.flights.places) > 1 {
		return
	}
	l.moves.begin(&l.flights, shm.Now())
}

// completeMove records how long the ring was idle for a move (moves.complete).
func (l *loop) completeMove(idle int64) {
	if l.moves.incomplete() {
		l.moves.complete(idle)
		l.settleMove()
	}
}

// settleMove reports a move that has ended.
func (l *loop) settleMove() {
	if idle, settled := l.moves.settle(&l.flights); settled {
		l.reporter.addHandover(idle)
	}
}

// mover completes a partial warm-up and then moves the process to other multiprocessors, while the
// process serves. Apart from the loop's, its goroutine is the only one that calls the device and
// the framework.
type mover struct {
	p      *process
	device device.Partitioned
	moves  *moves        // of the loop
	slots  int           // that may be in flight
	base   int           // of the loop
	held   []int         // groups that the loop's slots run on
	sms    int           // their number of multiprocessors
	warmUp partialWarmUp // until the first move
	stop   chan struct{} // closed when the loop has ended
	ended  chan struct{}
}

// startMover starts the goroutine. The process must be ready, and run on the groups in the notice
// ready.
func (p *process) startMover(l *loop, d device.Partitioned, ready control.Notice) *mover {
	m := &mover{
		p: p, device: d, moves: &l.moves, slots: len(l.flights.places), base: l.flights.base,
		held: ready.SMGroups, sms: ready.SMs,
		stop: make(chan struct{}), ended: make(chan struct{}),
	}
	m.warmUp = partialWarmUp{p: p, device: d, rules: &l.rules, base: m.base, slots: m.slots, stop: m.stop}
	go m.run()
	return m
}

func (m *mover) run() {
	defer close(m.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := m.warmUp.run(); err != nil {
		m.endProcess(err)
		return
	}
	for {
		select {
		case <-m.stop:
			return
		case groups := <-m.p.orders.groups:
			if slices.Equal(groups, m.held) {
				m.report(nil) // ordered back from a move that failed
				continue
			}
			err := markUnfit(groups, m.move(groups))
			if isLost(err) || errors.Is(err, errStopped) {
				m.endProcess(err)
				return
			}
			m.report(err)
		}
	}
}

// endProcess ends the process for an error that the mover cannot recover from.
func (m *mover) endProcess(err error) {
	switch {
	case errors.Is(err, errStopped):
	case isLost(err):
		m.p.exit.loseDevice(err)
	default:
		m.p.exit.fail(markUnfit(m.held, err))
	}
}

// errStopped is returned by steps that the end of the process has cut short.
var errStopped = errors.New("process ends")

// move brings the process to these groups. On an error the process stays on its groups and begins
// nothing on the new ones.
func (m *mover) move(groups []int) error {
	to, slots := standby(m.base), []int(nil)
	for i := range m.slots {
		slots = append(slots, to+i)
	}
	if err := m.device.Bind(); err != nil {
		return fmt.Errorf("move to groups %v: %w", groups, err)
	}
	began := time.Now()
	if err := m.device.Repartition(slots, groups); err != nil {
		return fmt.Errorf("move to groups %v: %w", groups, err)
	}
	parted := time.Now()
	sms, err := m.p.countSMs(m.device, to, groups)
	if err != nil {
		return fmt.Errorf("move to groups %v: %w", groups, err)
	}
	for _, slot := range slots {
		if _, err := m.p.configureSlot(slot); err != nil {
			return fmt.Errorf("move to groups %v: %w", groups, err)
		}
	}
	order := &move{base: to, settled: make(chan struct{})}
	prepared := time.Now()
	m.moves.next.Store(order)
	m.p.memory.consumer.Interrupt()
	select {
	case <-order.settled:
		m.base, m.held, m.sms = to, groups, sms
		m.p.log.Debug("moved to other multiprocessors", "groups", groups, "partition", parted.Sub(began), "prepare", prepared.Sub(parted), "move", time.Since(prepared))
		return nil
	case <-m.stop:
		return errStopped
	}
}

// report reports the groups of the process after an order. If they are not the ordered ones, it
// gives the reason.
func (m *mover) report(err error) {
	n := control.Notice{SMGroups: m.held, SMs: m.sms}
	if err != nil {
		m.p.log.Error("cannot move to other multiprocessors; staying", "error", err, "groups", m.held)
		n.Reason, n.InfeasibleGroups = err.Error(), unfitGroups(err)
	}
	m.p.notices.send(n)
}

// unfitError is the error of a model that cannot run on groups of multiprocessors.
type unfitError struct {
	groups []int
	error
}

func (e *unfitError) Unwrap() error { return e.error }

// markUnfit marks an error that the groups of the work caused. It returns other errors unchanged.
func markUnfit(groups []int, err error) error {
	if len(groups) > 0 && errors.Is(err, cuda.ErrTooFewSMs) {
		return &unfitError{groups, err}
	}
	return err
}

// unfitGroups returns the groups of an error that markUnfit marked; nil for any other.
func unfitGroups(err error) []int {
	var unfit *unfitError
	if errors.As(err, &unfit) {
		return unfit.groups
	}
	return nil
}

// moverPatience is how long a drain waits for the mover's present work: a move takes tens of
// milliseconds if the device answers.
const moverPatience = 3 * time.Second

// end waits for the goroutine after the loop has ended with err. It returns why the process ends.
func (m *mover) end(err error) error {
	p := m.p
	close(m.stop)
	if isLost(err) {
		return err
	}
	select {
	case <-m.ended:
		// The mover's last work may have found that the device is lost.
		err = cmp.Or(err, p.exit.lostDevice())
	case <-time.After(moverPatience):
		if !m.warmUp.running.Load() {
			return cmp.Or(err, fmt.Errorf("%w: a move did not end within %v of the drain", device.ErrLost, moverPatience))
		}
		// A framework that links may take seconds more. Do not wait: the exit of the process frees
		// its memory.
		p.exit.abandoned = true
		p.log.Warn("process ends during its warm-up; the kernel frees its memory")
	}
	return cmp.Or(err, p.exit.failure())
}
