package serve

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/internal/loop"
)

// standby is the first slot of the other set than base's: slots 0 and 1, or 2 and 3.
func standby(base int) int { return device.Slots/2 - base }

// mover completes a partial warm-up and then moves the process to other multiprocessors, while the
// process serves. Apart from the loop's, its goroutine is the only one that calls the device and
// the framework.
type mover struct {
	p       *process
	device  device.Partitioned
	loop    *loop.Loop
	slots   int           // that may be in flight
	base    int           // of the loop
	held    []int         // groups that the loop's slots run on
	sms     int           // their number of multiprocessors
	warming atomic.Bool   // completeWarmUp runs
	stop    chan struct{} // closed when the loop has ended
	ended   chan struct{}
}

// startMover starts the goroutine. The process must be ready, and run on the groups in the notice
// ready.
func (p *process) startMover(l *loop.Loop, d device.Partitioned, ready control.Notice) *mover {
	m := &mover{
		p: p, device: d, loop: l, slots: p.memory.inFlight,
		held: ready.SMGroups, sms: ready.SMs,
		stop: make(chan struct{}), ended: make(chan struct{}),
	}
	go m.run()
	return m
}

func (m *mover) run() {
	defer close(m.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := m.completeWarmUp(); err != nil {
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
			if loop.IsLost(err) || errors.Is(err, errStopped) {
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
	case loop.IsLost(err):
		m.p.exit.end(&m.p.exit.deviceLost, err)
	default:
		m.p.exit.end(&m.p.exit.failed, markUnfit(m.held, err))
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
	prepared := time.Now()
	select {
	case <-m.loop.Move(to):
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
	if loop.IsLost(err) {
		return err
	}
	select {
	case <-m.ended:
		// The mover's last work may have found that the device is lost.
		err = cmp.Or(err, p.exit.deviceLost.get())
	case <-time.After(moverPatience):
		if !m.warming.Load() {
			return cmp.Or(err, fmt.Errorf("%w: a move did not end within %v of the drain", device.ErrLost, moverPatience))
		}
		// A framework that links may take seconds more. Do not wait: the exit of the process frees
		// its memory.
		p.exit.abandoned = true
		p.log.Warn("process ends during its warm-up; the kernel frees its memory")
	}
	return cmp.Or(err, p.exit.failed.get())
}
