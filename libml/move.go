package libml

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

// move takes the loop to another set of slots, which are ready on other groups of
// multiprocessors:
//
//	mover, on a goroutine of its own          loop
//	1 is ordered to groups; the last counts   batches, in the slots in use
//	2 Repartition of the slots standing by    "
//	3 ConfigureBatch there, its sizes         "
//	4 move ────────────────────────────────>  5 at most one in flight: moveOver
//	                                          6 begins the next batch there, beside the last one here
//	8 <───────────────────────────── settle ─ 7 nothing in flight here any more
//	9 says which groups it holds now; the others are free
//
// So the device has work of this process all the time, and the process holds both
// sets of groups for as long as it uses them.
type move struct {
	base    int           // the first slot of the set
	settled chan struct{} // closed at 8
}

// standby is the first slot of the set that is not base's: slots 0 and 1, or 2 and 3.
func standby(base int) int { return device.Slots/2 - base }

// moveOver makes the move that is ordered, if one is and there is a place for a
// batch beside what is in flight: slots of different lanes have nothing in common.
// Where work waits and nothing is in flight, one more batch begins here first: beside
// that, the move leaves no gap.
func (l *loop) moveOver() {
	// Looked at before it is taken: this is asked before every batch.
	if l.flying == len(l.flights) || l.next.Load() == nil {
		return
	}
	if l.flying == 0 && len(l.pending) > 0 && len(l.flights) > 1 {
		return
	}
	if m := l.next.Swap(nil); m != nil {
		l.base, l.moved, l.movedAt, l.movedIdle = m.base, m, shm.Now(), unknown
	}
}

// unknown is movedIdle until a batch has begun, or none waits.
const unknown = math.MinInt64

// moveSeen notes how long the ring stood still for a move: until the first batch after
// it began, or -1 where no work waited.
func (l *loop) moveSeen(idle int64) {
	if l.moved != nil && l.movedIdle == unknown {
		l.movedIdle = idle
		l.settle()
	}
}

// settle ends a move when the first batch after it has begun and none is in flight
// any more where the loop was before.
func (l *loop) settle() {
	if l.moved == nil || l.movedIdle == unknown {
		return
	}
	for i := range l.flying {
		if slot := l.flights[(l.first+i)%len(l.flights)].slot; slot < l.base || slot >= l.base+len(l.flights) {
			return
		}
	}
	l.stoodStill(l.movedIdle)
	close(l.moved.settled)
	l.moved = nil
}

// mover gets the process the batch sizes that it began without (grow.go), and moves it to
// other multiprocessors, while it serves. Its goroutine is the only one but the loop's
// that calls the device and the framework.
type mover struct {
	p      *process
	l      *loop
	device device.Partitioned
	held   []int         // groups that the loop's slots run on
	sms    int           // and how many multiprocessors these have
	base   int           // the loop's
	grows  atomic.Bool   // it is in grow
	stop   chan struct{} // closed when the loop has ended
	ended  chan struct{}
}

// startMover starts the goroutine; the process is ready and runs where it said.
func (p *process) startMover(l *loop, d device.Partitioned, ready control.Notice) *mover {
	m := &mover{p: p, l: l, device: d, held: ready.SMGroups, sms: ready.SMs, base: l.base, stop: make(chan struct{}), ended: make(chan struct{})}
	go m.run()
	return m
}

func (m *mover) run() {
	defer close(m.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if !m.grow() {
		return
	}
	for {
		select {
		case <-m.stop:
			return
		case groups := <-m.p.groups:
			if slices.Equal(groups, m.held) {
				m.report(nil) // ordered back from a move that could not be made
				continue
			}
			err := unfitOn(groups, m.move(groups))
			if errors.Is(err, errStopped) {
				return
			}
			if lost(err) {
				m.p.loseDevice(err)
				return
			}
			m.report(err)
		}
	}
}

// errStopped is returned by move when the process ends before it was made.
var errStopped = errors.New("process ends")

// move brings the process to these groups. On an error it stays where it is, and begins
// nothing on them.
func (m *mover) move(groups []int) error {
	to, slots := standby(m.base), []int(nil)
	for i := range m.l.flights {
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
	m.l.next.Store(order)
	m.l.c.Interrupt()
	select {
	case <-order.settled:
		m.base, m.held, m.sms = to, groups, sms
		m.p.log.Debug().Ints("groups", groups).Dur("partition", parted.Sub(began)).Dur("prepare", prepared.Sub(parted)).
			Dur("move", time.Since(prepared)).Msg("runs on other multiprocessors")
		return nil
	case <-m.stop:
		return errStopped
	}
}

// report says where the process is after an order, and why it is not where it was
// ordered to, if it is not.
func (m *mover) report(err error) {
	n := control.Notice{SMGroups: m.held, SMs: m.sms}
	if err != nil {
		m.p.log.Error().Err(err).Ints("groups", m.held).Msg("stays on its multiprocessors")
		n.Reason, n.GroupsUnfit = err.Error(), unfitGroups(err)
	}
	m.p.say(n)
}

// unfitError is an error of a model that cannot run on groups of multiprocessors.
type unfitError struct {
	groups []int
	error
}

func (e *unfitError) Unwrap() error { return e.error }

// unfitOn marks an error that comes of the groups that the work was to run on; others it
// returns as they are.
func unfitOn(groups []int, err error) error {
	if len(groups) > 0 && errors.Is(err, cuda.ErrTooFewSMs) {
		return &unfitError{groups, err}
	}
	return err
}

// unfitGroups are the groups of an error that unfitOn marked; nil of any other.
func unfitGroups(err error) []int {
	var unfit *unfitError
	if errors.As(err, &unfit) {
		return unfit.groups
	}
	return nil
}

// moverPatience is how long a drain waits for what the mover is at: a move is tens of
// milliseconds, where the device answers.
const moverPatience = 3 * time.Second

// end waits for the goroutine after the loop has ended with err, and returns why the
// process ends.
func (m *mover) end(err error) error {
	p := m.p
	close(m.stop)
	if lost(err) {
		return err
	}
	select {
	case <-m.ended:
		// In its last work the device may have been lost.
		err = cmp.Or(err, p.deviceLost())
	case <-time.After(moverPatience):
		if !m.grows.Load() {
			return cmp.Or(err, fmt.Errorf("%w: a move did not end within %v of the drain", device.ErrLost, moverPatience))
		}
		// A framework that links may take seconds more, which nobody waits for: what it
		// holds is freed with the process.
		p.abandoned = true
		p.log.Warn().Msg("ends while it gets its batch sizes: nothing is given back")
	}
	if why := p.unfit.Load(); why != nil {
		err = cmp.Or(err, *why)
	}
	return err
}
