package manager

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/manager/partition"
	"github.com/penstock/penstock/models"
)

// add opens a function's port and asks for its processes; it serves as soon as
// one is ready. Adding reallocates the shares at once.
func (m *Manager) add(c configs.Function) error {
	if m.draining {
		return ErrStopped
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
	f.run()
	f.log.Info().Stringer("port", f.localAddr()).Str("model", card.Name).Dur("slo", f.slo).
		Int("request_bytes", card.Input.WireBytes()).Stringer("batching", f.batching).Str("late", string(f.late)).Str("gather", string(f.gather)).
		Str("change", string(f.configured)).Msg("function added")
	return nil
}

// checked is the card of a function that may be added, as far as that can be told
// while others have its place.
func (m *Manager) checked(c configs.Function) (*models.Card, error) {
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("add function: %w", err)
	}
	if err := c.Under(&m.cfg, m.cfg.Device); err != nil {
		return nil, fmt.Errorf("add function: %w", err)
	}
	card, err := m.find(cmp.Or(c.Model, c.Name))
	if err != nil {
		return nil, fmt.Errorf("add function %s: %w", c.Name, err)
	}
	return card, nil
}

// remove takes a function off: its port refuses, what it accepted is answered,
// its processes end, and its memory is given back. Removing reallocates the
// shares at once.
func (m *Manager) remove(name string) error {
	f := m.function(name)
	if f == nil {
		return m.unknown(name)
	}
	if f.removing {
		return fmt.Errorf("remove function: %q is being removed already", name)
	}
	f.remove()
	m.waiting = slices.DeleteFunc(m.waiting, func(w configs.Function) bool { return w.Name == name })
	m.shareOut(f)
	f.settle(fmt.Errorf("add function %s: it was removed again", name))
	f.log.Info().Msg("function is being removed")
	m.keep()
	return nil
}

// replace brings another model into a function. The result comes when every
// instance runs it, or when one could not and all are back on the old one.
func (m *Manager) replace(name, model string) (<-chan error, error) {
	f := m.function(name)
	if f == nil {
		return nil, m.unknown(name)
	}
	card, err := m.find(model)
	if err != nil {
		return nil, fmt.Errorf("replace model of %s: %w", name, err)
	}
	return f.replace(card, model)
}

// rollback brings back the model that the last replacement took off.
func (m *Manager) rollback(name string) (<-chan error, error) {
	f := m.function(name)
	if f == nil {
		return nil, m.unknown(name)
	}
	if f.previous == nil {
		return nil, fmt.Errorf("roll back %s: its model was never replaced", name)
	}
	return f.replace(f.previous, f.before)
}

func (m *Manager) unknown(name string) error {
	var names []string
	for _, f := range m.functions {
		names = append(names, f.name)
	}
	return fmt.Errorf("there is no function %q; there are: %s", name, strings.Join(names, ", "))
}

// Reconfigure makes the functions those of c: new ones are added, missing ones
// removed, changed models replaced. What else changed is said to need a restart.
// Where an entry cannot be followed none is, and every error is returned: that of a new
// function may be a misspelt one of a function that serves. What goes wrong after that is
// returned, too, and the rest is done.
func (m *Manager) Reconfigure(c configs.Config) error {
	return m.do(func() error {
		var errs []error
		for _, want := range c.Functions {
			switch f := m.function(want.Name); {
			case f == nil:
				_, err := m.checked(want)
				errs = append(errs, err)
			case !f.removing:
				_, err := f.changed(want)
				errs = append(errs, err)
			}
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		for _, f := range m.functions {
			if !slices.ContainsFunc(c.Functions, func(w configs.Function) bool { return w.Name == f.name }) && !f.removing {
				errs = append(errs, m.remove(f.name))
			}
		}
		m.waiting = m.waiting[:0]
		for _, want := range c.Functions {
			switch f := m.function(want.Name); {
			case f == nil && !m.placeLeaves(want):
				errs = append(errs, m.add(want))
			case f == nil, f.removing:
				// Its name, its port or its groups are being given up: it comes when they are.
				m.waiting = append(m.waiting, want)
			default:
				// It is the file's now, which is tried again and again.
				f.settle(fmt.Errorf("add function %s: the configuration has it now; `penstock if list` says how it is", f.name))
				if f.replacing { // which model it has then is yet to be seen
					m.waiting = append(m.waiting, want)
					continue
				}
				errs = append(errs, f.reconfigure(want))
			}
		}
		m.over = c.Digest
		if errors.Join(errs...) != nil {
			m.over = "" // what could not be followed is tried by the next manager
		}
		m.keep()
		rest := m.cfg
		rest.Functions = c.Functions
		if !sameNode(rest, c) {
			m.log.Warn().Msg("only the list of functions is followed while running; the other changes wait for a restart")
		}
		return errors.Join(errs...)
	})
}

// placeLeaves reports whether a function that is being removed has what this one needs:
// its port, or its place or groups of multiprocessors where none are left.
func (m *Manager) placeLeaves(want configs.Function) bool {
	if m.portLeaves(want.Port) {
		return true
	}
	leaves := slices.ContainsFunc(m.functions, func(f *function) bool { return f.removing })
	return leaves && (len(m.functions) >= configs.MaxFunctions || errors.Is(m.roomFor(want), partition.ErrTooMany))
}

// portHolder names the function that has the port which c wants from the network; it
// is empty where none has.
func (m *Manager) portHolder(c configs.Function) string {
	if c.Port == 0 || c.Replay.File != "" {
		return ""
	}
	for _, f := range m.functions {
		if f.config.Replay.File == "" && f.localAddr().Port() == c.Port {
			return f.name
		}
	}
	return ""
}

// portLeaves reports whether a function that is being removed has that port.
func (m *Manager) portLeaves(port uint16) bool {
	return port != 0 && slices.ContainsFunc(m.functions, func(f *function) bool {
		return f.removing && f.localAddr().Port() == port
	})
}

// addWaiting follows the entries of the configuration that can be followed now: functions
// are added whose names, ports and groups have become free, and changed when a replacement
// that was on its way has ended.
func (m *Manager) addWaiting() {
	waited := len(m.waiting)
	if waited == 0 {
		return
	}
	m.waiting = slices.DeleteFunc(m.waiting, func(want configs.Function) bool {
		if m.draining {
			return true
		}
		f := m.function(want.Name)
		var err error
		switch {
		case f != nil && (f.removing || f.replacing), f == nil && m.placeLeaves(want):
			return false
		case f != nil:
			err = f.reconfigure(want)
		default:
			err = m.add(want)
		}
		if err != nil {
			m.over = ""
			m.log.Error().Err(err).Msg("configuration not followed")
		}
		return true
	})
	if len(m.waiting) < waited {
		m.keep()
	}
}

// changed is the model that a changed entry of the configuration asks for, nil for the one
// that there is. What else changed is an error.
func (f *function) changed(want configs.Function) (*models.Card, error) {
	have, rest := f.config, want
	rest.Model = have.Model
	if !reflect.DeepEqual(have, rest) {
		return nil, fmt.Errorf("reconfigure function %s: only its model can change while it runs; take it out of the file, save, put it back", f.name)
	}
	model := cmp.Or(want.Model, want.Name)
	if model == cmp.Or(have.Model, have.Name) {
		return nil, nil
	}
	card, err := f.m.find(model)
	if err != nil {
		return nil, fmt.Errorf("replace model of %s: %w", f.name, err)
	}
	return card, nil
}

// reconfigure follows a changed entry of the configuration.
func (f *function) reconfigure(want configs.Function) error {
	card, err := f.changed(want)
	if err != nil || card == nil {
		return err
	}
	end, err := f.replace(card, want.Model)
	if err != nil {
		return err
	}
	m := f.m
	m.following++
	go func() {
		err := <-end
		if err != nil {
			f.log.Error().Err(err).Msg("configuration not followed")
		}
		m.post(func() {
			m.following--
			m.keep()
		})
	}()
	return nil
}

// replace asks every instance for card.
func (f *function) replace(card *models.Card, model string) (<-chan error, error) {
	if f.replacing {
		return nil, fmt.Errorf("replace model of %s: a replacement is on its way already", f.name)
	}
	if have, want := f.card.Input.WireBytes(), card.Input.WireBytes(); have != want {
		return nil, fmt.Errorf("replace model of %s: %s takes pictures of %d bytes, the function's are %d; add it as a function of its own",
			f.name, card.Name, want, have)
	}
	if err := f.batches(card); err != nil {
		return nil, fmt.Errorf("replace model of %s: %w", f.name, err)
	}
	if bytes := card.ResultBytes(); bytes > int(f.geometry.ResultBytes) {
		return nil, fmt.Errorf("replace model of %s: %s answers with up to %d bytes, the function has room for %d; add it as a function of its own",
			f.name, card.Name, bytes, f.geometry.ResultBytes)
	}
	if f.m.device.known { // their size depends on it; admit makes them otherwise
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
	f.log.Info().Str("model", card.Name).Uint32("version", card.Version).Msg("replacing model")
	done := make(chan error, 1)
	go func() {
		var errs []error
		for _, end := range ends {
			errs = append(errs, <-end)
		}
		err := errors.Join(errs...)
		f.m.post(func() { f.replaced(old, model, err) })
		done <- err
	}()
	return done, nil
}

// replaced notes how a replacement of the card old by model ended.
func (f *function) replaced(old *models.Card, model string, err error) {
	f.replacing = false
	if err == nil {
		f.previous, f.before = old, cmp.Or(f.config.Model, f.name)
		f.config.Model, f.byHand = model, 0
		f.m.keep()
		return
	}
	f.card = old
	for _, in := range f.instances {
		in.pair.Replace(old)
	}
}

// remove lets nothing new in; reap does the rest when it is time.
func (f *function) remove() {
	f.removing = true
	f.removeBy = time.Now().Add(f.m.cfg.DrainTimeout)
	f.refuse()
}

// reap moves a function that is being removed on; it reports whether it is gone.
func (f *function) reap() bool {
	if !f.removing {
		return false
	}
	now := time.Now()
	if f.unanswered() && now.Before(f.removeBy) {
		if f.failed() && !f.served() {
			f.giveUp()
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
	// Nobody is left to answer what is still here; nothing accepted goes
	// unanswered.
	if f.unanswered() && now.Before(f.removeBy.Add(2*f.m.cfg.DrainTimeout)) {
		f.giveUp()
		return false
	}
	f.close()
	f.m.metrics.forget(f.name)
	f.m.faults.guard.Forget(f.name)
	f.m.device.redivide = true
	f.log.Info().Msg("function removed")
	f.gone()
	return true
}

// drain refuses what is new everywhere and removes every function.
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

// undrained says what a drain still waits for.
func (m *Manager) undrained() string {
	var waits []string
	for _, f := range m.functions {
		waits = append(waits, fmt.Sprintf("%s has %d requests and %d processes", f.name, f.pending(), f.processes()))
	}
	return strings.Join(waits, "; ")
}

// closeFunctions gives back all memory and ports, whatever state they are in.
func (m *Manager) closeFunctions() {
	for _, f := range m.functions {
		f.close()
	}
	m.functions = nil
}

// closePorts gives up what the ports of functions had in common.
func (m *Manager) closePorts() {
	if err := m.ports.close(); err != nil {
		m.log.Warn().Err(err).Msg("close network port")
	}
}

// close ends the function's threads and gives back its memory and its port.
func (f *function) close() {
	f.closed.Store(true)
	for _, r := range f.receivers {
		r.source.Close()
	}
	for _, in := range f.instances {
		in.closed.Store(true)
		in.channel.Wake()
	}
	f.threads.Wait()
	for _, in := range f.instances {
		in.close()
	}
	if f.table != nil {
		f.table.Close()
	}
	if f.closeSlab != nil {
		if err := f.closeSlab(); err != nil {
			f.log.Warn().Err(err).Msg("unmap slab")
		}
	}
}

// setShare gives each instance of a function a share by hand. Where shares tune
// themselves it lasts until they are next looked at; else it is what they want whenever
// functions come, begin to serve or go.
func (m *Manager) setShare(name string, percent float64) error {
	f := m.function(name)
	if f == nil {
		return m.unknown(name)
	}
	if f.whole() {
		return fmt.Errorf("share of %s cannot be set: its change is none, each of its processes may use the whole device", name)
	}
	if !(percent > 0 && percent <= 100) {
		return fmt.Errorf("share of %s is %v, want more than 0, at most 100", name, percent)
	}
	others := 0.0
	for _, other := range m.functions {
		if other != f {
			others += other.wantedPercent()
		}
	}
	if sum := others + percent*float64(len(f.instances)); sum > 100 {
		return fmt.Errorf("share of %s is %v for each of %d instances: with the others that is %.1f %%, want at most 100", name, percent, len(f.instances), sum)
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

// sameNode reports whether two configurations differ in their functions at most.
func sameNode(a, b configs.Config) bool {
	a.Functions, b.Functions = nil, nil
	a.RuntimeDir, b.RuntimeDir = "", "" // a flag may have set it
	a.Log, b.Log = configs.Log{}, configs.Log{}
	a.Text, b.Text = nil, nil
	a.Digest, b.Digest = "", ""
	return reflect.DeepEqual(a, b)
}
