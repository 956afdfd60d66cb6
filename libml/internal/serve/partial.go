package serve

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/internal/loop"
)

// completeWarmUp completes the warm-up of a process that serves already. If no other process serves
// in its place, a process is ready with its smallest batch size. It gets the others while it
// serves:
//
//	mover, before its first move              loop
//	1 ConfigureBatch of the next size,        batches of the present sizes
//	  in the slots in use                     "
//	2 larger ───────────────────────────────> 3 between two batches: its rule has the size
//	4 report it; from 1 until all are done
//
// A member of a worker adds no size while another member is being started: clients wait for that one.
//
// New sizes are not warmed up: they share their tensors, and the framework's memory of
// the slot, with batches in flight. The rule learns the time of a size from its first
// batches, for which batching.Rule.Grown raises the limit on trial, and so does the account.
//
// An error ends the process as it would while linking, with the same line. If half of a
// model is wrong, the rest cannot be trusted. The manager lets the next process run all
// sizes before it serves. Only if the device runs out of memory, the process stays as it
// is and reports it. The shortage depends on other processes, and small batches are
// better than none.
func (m *mover) completeWarmUp() error {
	p := m.p
	if !p.sizes.missing() {
		return nil
	}
	m.warming.Store(true)
	defer m.warming.Store(false)

	began := time.Now()
	err := m.device.Bind()
	for err == nil && p.sizes.missing() {
		if p.worker.Starts() && !m.stopped() {
			time.Sleep(startPoll)
			continue
		}
		err = m.add(p.sizes.next())
	}
	switch {
	case loop.IsLost(err):
		return err
	case m.stopped():
		return errStopped
	case err == nil:
		p.log.Info("all batch sizes are ready", "batches", p.sizes.ladder, "took", time.Since(began))
		return nil
	case errors.Is(err, cuda.ErrOutOfMemory):
		p.log.Error("no memory for larger batches; serving without them", "error", err, "batches", p.sizes.ladder)
		reason := fmt.Sprintf("serves batches of at most %d: %v", p.sizes.ladder[len(p.sizes.ladder)-1], err)
		p.notices.keepReason(reason, control.Notice{Batches: p.sizes.ladder})
		return nil
	}
	return err
}

// startPoll is how often a member checks whether others still start.
const startPoll = 10 * time.Millisecond

// add adds the sizes of a longer ladder, one size more than now.
func (m *mover) add(ladder []int) error {
	p := m.p
	began := time.Now()
	n := ladder[len(ladder)-1]
	for i := range m.slots {
		if m.stopped() {
			return errStopped
		}
		slot := m.base + i
		bytes, err := p.configure(slot, n, p.memory.tensors[slot])
		if err != nil {
			return err
		}
		p.sizes.ephemeral[i] = max(p.sizes.ephemeral[i], bytes)
	}
	rule, err := p.newRule(ladder)
	if err != nil {
		return err
	}
	p.sizes.ladder = ladder
	m.loop.Extend(rule)
	p.log.Debug("batch size configured", "batch", n, "took", time.Since(began))
	p.notices.send(control.Notice{Batches: ladder, WarmingUp: p.sizes.missing(), EphemeralBytes: p.sizes.ephemeralBytes()})
	return nil
}

// stopped reports whether the loop has ended or should end.
func (m *mover) stopped() bool {
	select {
	case <-m.stop:
		return true
	default:
		return m.p.exit.requested()
	}
}
