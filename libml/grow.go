package libml

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
)

// A process is woken early (partial warm-up) if no other process serves in its place. It
// is then ready with its smallest batch size, and gets the others while it serves:
//
//	mover, before its first move              loop
//	1 ConfigureBatch of the next size,        batches of the present sizes
//	  in the slots in use                     "
//	2 larger ───────────────────────────────> 3 between two batches: its rule has the size
//	4 report it; from 1 until all are done
//
// New sizes are not warmed up: they share their tensors, and the framework's memory of
// the slot, with batches in flight. The rule learns the time of a size from its first
// batch, for which slab.Rule.Grown raises the limit on trial.
//
// An error ends the process as it would while linking, with the same line. If half of a
// model is wrong, the rest cannot be trusted. The manager lets the next process run all
// sizes before it serves. Only if the device runs out of memory, the process stays as it
// is and reports it. The shortage depends on other processes, and small batches are
// better than none.

// growing reports whether batch sizes are still missing.
func (p *process) growing() bool { return len(p.ladder) < len(p.card.Batches) }

// ephemeralBytes is the memory of the largest batch in all slots that may be in flight.
func (p *process) ephemeralBytes() (sum int64) {
	for _, bytes := range p.ephemeral {
		sum += bytes
	}
	return sum
}

// grow adds the missing batch sizes; it is the mover's first work. It returns false if
// the process ends.
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

// growBy adds one size.
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

// stopped reports whether the loop has ended or should end.
func (m *mover) stopped() bool {
	select {
	case <-m.stop:
		return true
	default:
		return m.p.finished()
	}
}

// grow switches to a rule with more sizes, if there is one.
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

// fail ends the process from a goroutine other than the loop's. The batches in flight
// end first, and the loop releases the ring.
func (p *process) fail(why error) {
	p.unfit.CompareAndSwap(nil, &why)
	p.draining.Store(true)
	p.memory.consumer.Interrupt()
}

// stay records that no more batch sizes will come. From now on every notice contains the
// reason.
func (p *process) stay(why string) {
	p.sayMu.Lock()
	p.standing = why
	p.sayMu.Unlock()
	p.say(control.Notice{Batches: p.ladder})
}
