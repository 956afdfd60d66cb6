package libml

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
)

// A process that is woken early, since nobody serves in its place, is ready with its
// smallest batch size. The others come while it serves:
//
//	mover, before its first move              loop
//	1 ConfigureBatch of the next size,        batches of the sizes that there are
//	  in the slots in use                     "
//	2 larger ───────────────────────────────> 3 between two batches: its rule has the size
//	4 says so; from 1 until it has all of them
//
// No new size is warmed up: its tensors, and the framework's memory of its slot, are
// those of batches in flight. The rule learns what a batch of it takes from the first
// that runs, for which slab.Rule.Grown raises the limit on trial.
//
// What goes wrong ends the process as it would have when linking, with the same line:
// a model of which half is wrong is not to be believed, and the manager has the next
// process show all of its sizes before it serves. Only where the device's memory is
// short the process stays as it is, and says so: that comes and goes with other
// processes, and small batches are better than none.

// growing reports whether there are batch sizes still to come.
func (p *process) growing() bool { return len(p.ladder) < len(p.card.Batches) }

// ephemeralBytes is what the largest batch takes in all slots that may be in flight.
func (p *process) ephemeralBytes() (sum int64) {
	for _, bytes := range p.ephemeral {
		sum += bytes
	}
	return sum
}

// grow gets the process the batch sizes that it began without; it is the mover's first
// work. It returns false where the process ends.
func (m *mover) grow() (goesOn bool) {
	p := m.p
	if !p.growing() {
		return true
	}
	m.grows.Store(true)
	defer m.grows.Store(false)
	began := time.Now()
	err := m.device.Bind()
	for err == nil && p.growing() {
		err = m.growBy(p.card.Batches[len(p.ladder)])
	}
	switch {
	case lost(err):
		p.loseDevice(err)
		return false
	case errors.Is(err, errStopped), m.stopped():
		return false
	case err == nil:
		p.log.Info().Ints("batches", p.ladder).Dur("took", time.Since(began)).Msg("all batch sizes are there")
		return true
	case errors.Is(err, cuda.ErrOutOfMemory):
		p.log.Error().Err(err).Ints("batches", p.ladder).Msg("no memory for larger batches: serves without them")
		p.stay(fmt.Sprintf("serves batches of %d at most: %v", p.ladder[len(p.ladder)-1], err))
		return true
	}
	p.fail(unfitOn(m.held, err))
	return false
}

// growBy gets one size.
func (m *mover) growBy(n int) error {
	p := m.p
	began := time.Now()
	for i := range m.l.flights {
		if m.stopped() {
			return errStopped
		}
		slot := m.base + i
		bytes, err := p.configure(slot, n, p.memory.tensors[slot])
		if err != nil {
			return err
		}
		p.ephemeral[i] = max(p.ephemeral[i], bytes)
	}
	ladder := p.card.Batches[:len(p.ladder)+1]
	rule, err := m.l.ruleOf(ladder)
	if err != nil {
		return err
	}
	p.ladder = ladder
	m.l.larger.Store(rule)
	p.log.Debug().Int("batch", n).Dur("took", time.Since(began)).Msg("batch size is configured")
	p.say(control.Notice{Batches: ladder, Growing: p.growing(), EphemeralBytes: p.ephemeralBytes()})
	return nil
}

// stopped reports whether the loop has ended, or is to end.
func (m *mover) stopped() bool {
	select {
	case <-m.stop:
		return true
	default:
		return m.p.finished()
	}
}

// grow takes over a rule with more sizes, if there is one.
func (l *loop) grow() {
	if l.larger.Load() == nil {
		return
	}
	if rule := l.larger.Swap(nil); rule != nil {
		l.state = rule.Grown(l.state, l.rule)
		l.rule = rule
		l.publish()
	}
}

// fail ends the process from another goroutine than the loop's, when the batches in
// flight are done and the ring is given up.
func (p *process) fail(why error) {
	p.unfit.CompareAndSwap(nil, &why)
	p.draining.Store(true)
	p.memory.consumer.Interrupt()
}

// stay says that no batch sizes will come any more, and why, from now on with every
// notice.
func (p *process) stay(why string) {
	p.sayMu.Lock()
	p.standing = why
	p.sayMu.Unlock()
	p.say(control.Notice{Batches: p.ladder})
}
