package manager

import (
	"fmt"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/models"
)

// add opens a function's port and requests its processes. The function serves as soon as one is
// ready. Adding reallocates the shares at once.
func (m *Manager) add(c configs.Function) error {
	if m.draining {
		return errStopped
	}
	card, err := m.checked(c)
	if err != nil {
		return err
	}
	if m.functions.find(c.Name) != nil {
		return fmt.Errorf("add function: function %q exists already", c.Name)
	}
	if n := len(m.functions); n >= configs.MaxFunctions {
		return fmt.Errorf("add function %s: the node has %d functions, want at most %d", c.Name, n, configs.MaxFunctions)
	}
	if err := m.sharing.Fits(c); err != nil {
		return fmt.Errorf("add function %s: %w", c.Name, err)
	}
	if other := m.functions.portHolder(c.Port); other != "" {
		return fmt.Errorf("add function %s: port %d belongs to function %q; choose another, or 0 for any free one", c.Name, c.Port, other)
	}
	f, err := newFunction(m, c, card)
	if err != nil {
		return err
	}
	m.functions = append(m.functions, f)
	m.sharing.Add(f.sharing)
	f.port.Start(m.metrics.Of(f.name))
	f.log.Info().Stringer("port", f.port.LocalAddr()).Str("model", card.Name).Dur("slo", f.slo).
		Int("request_bytes", wireCard(c.Format, card).Input.WireBytes()).Str("change", string(f.sharing.Configured)).Msg("function added")
	if m.sharing.Device.GPU == nil {
		warnIfCrowded(len(f.instances), m.orchestrator.observed.CPUs, f.log)
	}
	return nil
}

// warnIfCrowded warns of more instances than CPUs, once the number of CPUs is known.
func warnIfCrowded(instances, cpus int, log zerolog.Logger) {
	if cpus > 0 && instances > cpus {
		log.Warn().Int("instances", instances).Int("cpus", cpus).Msg("more instances than CPUs; they do not make the function faster")
	}
}

// checked finds the card of a function to add. It checks what can be checked while other functions
// still occupy its place.
func (m *Manager) checked(c configs.Function) (*models.Card, error) {
	card, problem := checkFunction(&m.cfg, c, m.find)
	if problem == nil {
		return card, nil
	}
	switch problem.Key {
	case "worker", "format", "pictures": // their errors begin with the value
		return nil, fmt.Errorf("add function %s: %s %w", c.Name, problem.Key, problem.Err)
	}
	return nil, fmt.Errorf("add function %s: %w", c.Name, problem.Err)
}

// remove takes a function off: its port refuses new requests, accepted ones are answered, its
// processes end, and its memory is freed. Removing reallocates the shares at once. f.gone is closed
// when all that has happened; a second remove does nothing.
func (m *Manager) remove(name string) error {
	f := m.functions.find(name)
	if f == nil {
		return m.functions.unknown(name)
	}
	if f.removing {
		return nil
	}
	f.remove()
	m.file.dropWaiting(name)
	m.sharing.Remove(f.sharing)
	f.trial.settle(fmt.Errorf("add function %s: it was removed again", name))
	f.log.Info().Msg("function is being removed")
	m.keep()
	return nil
}

// remove refuses new requests; reap does the rest later.
func (f *function) remove() {
	f.removing = true
	f.removeBy = runclock.Time().Add(f.m.cfg.DrainTimeout)
	f.port.Drain()
}

// reap advances the removal of a function and reports whether the function is gone.
func (f *function) reap() bool {
	if !f.removing {
		return false
	}
	now := runclock.Time()
	if f.port.Unanswered() && now.Before(f.removeBy) {
		if f.trial.failed() && !f.instances.served() {
			f.port.GiveUp()
		}
		return false
	}
	gone := true
	for _, in := range f.instances {
		in.remove()
		gone = gone && in.pair.Removed()
	}
	if !gone && now.Before(f.removeBy.Add(f.m.cfg.DrainTimeout)) {
		return false
	}
	// No process is left to answer the remaining requests, but every accepted request gets an
	// answer.
	if f.port.Unanswered() && now.Before(f.removeBy.Add(2*f.m.cfg.DrainTimeout)) {
		f.port.GiveUp()
		return false
	}
	f.close()
	f.m.metrics.Forget(f.name)
	f.m.faults.guard.Forget(f.name)
	f.m.sharing.Forget(f.sharing)
	f.log.Info().Msg("function removed")
	if f.trial.failed() {
		f.trial.settle(fmt.Errorf("add function %s: its process cannot start: %s; the function was removed", f.name, f.trial.failure))
	}
	f.trial.settle(errStopped)
	close(f.gone)
	return true
}

// drain refuses new requests everywhere and removes every function.
func (m *Manager) drain() {
	m.draining = true
	for _, f := range m.functions {
		if !f.removing {
			f.remove()
		}
	}
}

// closeFunctions frees all memory and ports, whatever state they are in.
func (m *Manager) closeFunctions() {
	for _, f := range m.functions {
		f.close()
	}
	m.functions = nil
}

// close ends the function's threads and frees its memory and its port.
func (f *function) close() {
	if f.port == nil {
		return
	}
	f.port.Stop()
	for _, in := range f.instances {
		in.close()
	}
	if err := f.port.Close(); err != nil {
		f.log.Warn().Err(err).Msg("cannot free memory of function")
	}
}

// setShare sets the share of each instance by hand.
func (m *Manager) setShare(name string, percent float64) error {
	f := m.functions.find(name)
	if f == nil {
		return m.functions.unknown(name)
	}
	err := m.sharing.SetByHand(f.sharing, percent)
	m.keep()
	return err
}
