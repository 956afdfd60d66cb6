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

// move switches the loop to another set of slots, which are ready on other groups of
// multiprocessors:
//
//	mover, on a goroutine of its own          loop
//	1 receive an order; the last one counts   batches, in the slots in use
//	2 Repartition of the standby slots        "
//	3 ConfigureBatch there, its sizes         "
//	4 move ────────────────────────────────>  5 at most one in flight: moveOver
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

// moveOver makes an ordered move if there is a place for a batch next to the one in flight: slots
// of different lanes share nothing. If requests are pending and nothing is in flight, one more
// batch begins in the old place first. Next to that batch, the move leaves no gap.
func (l *loop) moveOver() {
	// Check before the swap: this runs before every batch.
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

// unknown is the value of movedIdle until a batch has begun, or none waits.
const unknown = math.MinInt64

// moveSeen records how long the ring was idle for a move: until the first batch after it began, or
// -1 if no request was pending.
func (l *loop) moveSeen(idle int64) {
	if l.moved != nil && l.movedIdle == unknown {
		l.movedIdle = idle
		l.settle()
	}
}

// settle ends a move when the first batch after it has begun and none is left in flight in the old
// place.
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

// mover adds the missing batch sizes (grow.go) and moves the process to other multiprocessors,
// while the process serves. Apart from the loop's, its goroutine is the only one that calls the
// device and the framework.
type mover struct {
	p      *process
	l      *loop
	device device.Partitioned
	held   []int         // groups that the loop's slots run on
	sms    int           // their number of multiprocessors
	base   int           // of the loop
	grows  atomic.Bool   // it is in grow
	stop   chan struct{} // closed when the loop has ended
	ended  chan struct{}
}

// startMover starts the goroutine. The process is ready and runs on the groups that it reported.
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
				m.report(nil) // ordered back from a move that failed
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

// errStopped is returned by move if the process ends before the move is made.
var errStopped = errors.New("process ends")

// move brings the process to these groups. On an error the process stays on its groups and begins
// nothing on the new ones.
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

// report reports the groups of the process after an order. If they are not the ordered ones, it
// gives the reason.
func (m *mover) report(err error) {
	n := control.Notice{SMGroups: m.held, SMs: m.sms}
	if err != nil {
		m.p.log.Error().Err(err).Ints("groups", m.held).Msg("stays on its multiprocessors")
		n.Reason, n.GroupsUnfit = err.Error(), unfitGroups(err)
	}
	m.p.say(n)
}

// unfitError is the error of a model that cannot run on groups of multiprocessors.
type unfitError struct {
	groups []int
	error
}

func (e *unfitError) Unwrap() error { return e.error }

// unfitOn marks an error that the groups of the work caused. It returns other errors unchanged.
func unfitOn(groups []int, err error) error {
	if len(groups) > 0 && errors.Is(err, cuda.ErrTooFewSMs) {
		return &unfitError{groups, err}
	}
	return err
}

// unfitGroups returns the groups of an error that unfitOn marked; nil for any other.
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
	if lost(err) {
		return err
	}
	select {
	case <-m.ended:
		// The mover's last work may have found that the device is lost.
		err = cmp.Or(err, p.deviceLost())
	case <-time.After(moverPatience):
		if !m.grows.Load() {
			return cmp.Or(err, fmt.Errorf("%w: a move did not end within %v of the drain", device.ErrLost, moverPatience))
		}
		// A framework that links may take seconds more. Do not wait: the exit of the process frees
		// its memory.
		p.abandoned = true
		p.log.Warn().Msg("ends while it gets its batch sizes: nothing is given back")
	}
	if why := p.unfit.Load(); why != nil {
		err = cmp.Or(err, *why)
	}
	return err
}
