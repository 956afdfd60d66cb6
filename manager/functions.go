package manager

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

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
	if m.function(c.Name) != nil {
		return fmt.Errorf("add function: there is a function %q already", c.Name)
	}
	if n := len(m.functions); n >= configs.MaxFunctions {
		return fmt.Errorf("add function %s: there are %d, want at most %d", c.Name, n, configs.MaxFunctions)
	}
	if err := m.cfg.FitShare(&c, m.configured()); err != nil {
		return fmt.Errorf("add function %s: share %w", c.Name, err)
	}
	if err := m.roomFor(c); err != nil {
		return fmt.Errorf("add function %s: %w", c.Name, err)
	}
	if other := m.portHolder(c); other != "" {
		return fmt.Errorf("add function %s: port %d is function %q's: want another, or 0 for any free one", c.Name, c.Port, other)
	}
	f, err := newFunction(m, c, card)
	if err != nil {
		return err
	}
	for i, percent := range m.shareIn(c, card) {
		f.instances[i].setShare(percent)
	}
	m.functions = append(m.functions, f)
	f.port.Start(m.metrics.of(f.name))
	f.log.Info().Stringer("port", f.localAddr()).Str("model", card.Name).Dur("slo", f.slo).
		Int("request_bytes", card.Input.WireBytes()).Str("change", string(f.configured)).Msg("function added")
	f.warnIfCrowded()
	return nil
}

// warnIfCrowded warns of more instances than CPUs, once the number of CPUs is known.
func (f *function) warnIfCrowded() {
	cpus := f.m.observed.CPUs
	if n := len(f.instances); !f.m.onGPU() && cpus > 0 && n > cpus {
		f.log.Warn().Int("instances", n).Int("cpus", cpus).Msg("more instances than CPUs: the further ones only wait")
	}
}

// configured returns the functions that are not being removed.
func (m *Manager) configured() (list []configs.Function) {
	for _, f := range m.functions {
		if !f.removing {
			list = append(list, f.config)
		}
	}
	return list
}

// checked finds the card of a function to add. It checks what can be checked while other functions
// still occupy its place.
func (m *Manager) checked(c configs.Function) (*models.Card, error) {
	card, problem := checkFunction(&m.cfg, c, m.find)
	if problem != nil {
		return nil, fmt.Errorf("add function %s: %w", c.Name, problem.Err)
	}
	return card, nil
}

// remove takes a function off: its port refuses new requests, accepted ones are answered, its
// processes end, and its memory is freed. Removing reallocates the shares at once.
func (m *Manager) remove(name string) error {
	f := m.function(name)
	if f == nil {
		return m.unknown(name)
	}
	if f.removing {
		return fmt.Errorf("remove function: %q is being removed already", name)
	}
	f.remove()
	m.waiting = slices.DeleteFunc(m.waiting, func(w configs.Function) bool {
		if w.Name == name {
			m.entries[name] = w // count its waiting edit as followed
		}
		return w.Name == name
	})
	m.shareOut(f)
	f.settle(fmt.Errorf("add function %s: it was removed again", name))
	f.log.Info().Msg("function is being removed")
	m.keep()
	return nil
}

// replace starts another model in a function. The channel gets the result when every instance runs
// the model, or when one failed and all are back on the old one.
func (m *Manager) replace(name, model string) (<-chan error, error) {
	f := m.function(name)
	if f == nil {
		return nil, m.unknown(name)
	}
	card, err := m.find(model)
	if err != nil {
		return nil, fmt.Errorf("replace model of %s: %w", name, err)
	}
	if err := f.takes(card, m.setupOf(f.config, card)); err != nil {
		return nil, err
	}
	if f.answers != nil && card.Version <= f.answers.Version {
		return nil, fmt.Errorf("replace model of %s: %s has version %d, and the function runs version %d: want a higher `version` in the card, by which clients tell models apart; `penstock if rollback %s` goes back to the model before",
			name, card.Name, card.Version, f.answers.Version, name)
	}
	return f.replace(card, model, m.setupOf(f.config, card), f.outdated(f.config))
}

// rollback restores the model that the function ran before the present one. Each rollback goes one
// model further back. Use replace to return to a model that was rolled back.
func (m *Manager) rollback(name string) (<-chan error, error) {
	f := m.function(name)
	if f == nil {
		return nil, m.unknown(name)
	}
	last := len(f.older) - 1
	if last < 0 {
		return nil, fmt.Errorf("roll back %s: there is no model before %s; `penstock if replace %s CARD` brings in another one", name, modelName(f.card), name)
	}
	to := f.older[last]
	return f.replace(to.card, to.name, m.setupOf(f.config, to.card), f.older[:last])
}

// modelName names a model with its version, for users.
func modelName(card *models.Card) string { return fmt.Sprintf("%s v%d", card.Name, card.Version) }

func (m *Manager) unknown(name string) error {
	var names []string
	for _, f := range m.functions {
		names = append(names, f.name)
	}
	return fmt.Errorf("there is no function %q; there are: %s", name, strings.Join(names, ", "))
}

// outdated is the list of older models after a replacement of the model of configuration before. It
// leaves out a model that never served.
func (f *function) outdated(before configs.Function) []olderModel {
	if f.answers != f.card {
		return f.older
	}
	list := append(slices.Clone(f.older), olderModel{f.card, cmp.Or(before.Model, f.name)})
	return list[max(0, len(list)-maxOlder):]
}

// takes checks whether a card's model with that setup can replace the function's model. Its
// requests must be the same, and its results must fit.
func (f *function) takes(card *models.Card, s setup) error {
	if have, want := f.card.Input.WireBytes(), card.Input.WireBytes(); have != want {
		return fmt.Errorf("replace model of %s: %s takes pictures of %d bytes, the function's are %d; add it as a function of its own",
			f.name, card.Name, want, have)
	}
	if err := f.m.cfg.Lab.FitsBatches(card.Batches, s.slo, s.hangTimeout); err != nil {
		return fmt.Errorf("replace model of %s: %w", f.name, err)
	}
	if bytes := card.ResultBytes(); bytes > int(f.port.Geometry().ResultBytes) {
		return fmt.Errorf("replace model of %s: %s answers with up to %d bytes, the function has room for %d; add it as a function of its own",
			f.name, card.Name, bytes, f.port.Geometry().ResultBytes)
	}
	return nil
}

// replace gives every instance a model with a setup. older is the rollback list for when all of
// them serve it.
func (f *function) replace(model *models.Card, name string, s setup, older []olderModel) (<-chan error, error) {
	if f.replacing {
		return nil, fmt.Errorf("replace model of %s: a replacement is on its way already", f.name)
	}
	if err := f.takes(model, s); err != nil {
		return nil, err
	}
	// Copy the card: for the instances the same model with another setup is another card.
	card := new(*model)
	f.setups[card] = s
	if f.m.device.known { // tensor sizes depend on it; else admit creates them
		for _, in := range f.instances {
			if err := in.makeTensors(card); err != nil {
				return nil, err
			}
		}
	}
	f.forgive()
	old := f.card
	ends := make([]<-chan error, 0, len(f.instances))
	for _, in := range f.instances {
		ends = append(ends, in.replace(card))
	}
	f.card, f.replacing = card, true
	f.log.Info().Str("model", card.Name).Uint32("version", card.Version).Msg("replacing processes")
	done := make(chan error, 1)
	go func() {
		var errs []error
		for _, end := range ends {
			errs = append(errs, <-end)
		}
		err := errors.Join(errs...)
		f.m.post(func() { f.replaced(old, name, older, err) })
		done <- err
	}()
	return done, nil
}

// replaced records the result of a replacement of the card old by model.
func (f *function) replaced(old *models.Card, model string, older []olderModel, err error) {
	f.replacing = false
	if err != nil {
		f.card = old
		for _, in := range f.instances {
			in.pair.Replace(old)
		}
		return
	}
	f.older = older
	if !reflect.DeepEqual(old, f.card) {
		f.byHand = 0 // it belonged to the old model
	}
	f.config.Model = model
	f.adopt(f.setups[f.card])
	maps.DeleteFunc(f.setups, func(card *models.Card, _ setup) bool {
		return !slices.ContainsFunc(f.instances, func(in *instance) bool { return in.uses(card) })
	})
	f.m.keep()
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
		if f.failed() && !f.served() {
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
	f.m.metrics.forget(f.name)
	f.m.faults.guard.Forget(f.name)
	f.m.device.allocator.Invalidate()
	f.log.Info().Msg("function removed")
	f.gone()
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

// drained reports whether every function is gone.
func (m *Manager) drained() bool { return len(m.functions) == 0 }

// undrained describes what a drain still waits for.
func (m *Manager) undrained() string {
	var waits []string
	for _, f := range m.functions {
		waits = append(waits, fmt.Sprintf("%s has %d requests and %d processes", f.name, f.port.Pending(), f.processes()))
	}
	return strings.Join(waits, "; ")
}

// closeFunctions frees all memory and ports, whatever state they are in.
func (m *Manager) closeFunctions() {
	for _, f := range m.functions {
		f.close()
	}
	m.functions = nil
}

// closePorts frees what the functions' ports share.
func (m *Manager) closePorts() {
	if err := m.network.Close(); err != nil {
		m.log.Warn().Err(err).Msg("close network port")
	}
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
		f.log.Warn().Err(err).Msg("free memory of function")
	}
}

// setShare sets the share of each instance by hand. If shares are tuned, it lasts until the next
// tuning. Otherwise it is their desired share whenever functions are added, begin to serve or are
// removed.
func (m *Manager) setShare(name string, percent float64) error {
	f := m.function(name)
	if f == nil {
		return m.unknown(name)
	}
	if f.whole() && !m.cfg.Guarantees() {
		return fmt.Errorf("share of %s cannot be set: its change is none, each of its processes may use the whole device", name)
	}
	if !(percent > 0 && percent <= 100) {
		return fmt.Errorf("share of %s is %v, want more than 0, at most 100", name, percent)
	}
	others := 0.0
	for _, other := range m.functions {
		if other != f {
			others += m.claimedPercent(other)
		}
	}
	if err := configs.CheckSum(percent, len(f.instances), others); err != nil {
		return fmt.Errorf("share of %s %w", name, err)
	}
	if m.cfg.Guarantees() {
		f.byHand = percent
		m.keep()
		m.guarantees()
		return nil
	}
	told := m.shares.Set
	if m.cfg.Shares.Tune {
		told = m.shares.Failed
	}
	for _, in := range f.instances {
		in.setShare(percent)
		if err := told(in.id(), percent); err != nil {
			return err
		}
	}
	if !m.cfg.Shares.Tune {
		f.byHand = percent
		m.keep()
	}
	return nil
}

// claimedPercent is the part that no other function can receive by hand: a function's shares, or
// the guarantees that were set by hand.
func (m *Manager) claimedPercent(f *function) float64 {
	if m.cfg.Guarantees() {
		return cmp.Or(f.byHand, f.config.SharePercent) * float64(len(f.instances))
	}
	return f.wantedPercent()
}
