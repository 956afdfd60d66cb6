package manager

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/manager/policy/partition"
	"github.com/penstock/penstock/models"
)

// The manager follows an edit of the configuration file in two steps:
//
//	plan     compare the configured with the existing functions: list what to do, or all errors
//	commit   remove, change and add functions
//
// An error in the plan rejects the whole edit: the node stays as it is. The manager
// skips an entry that equals the one that it followed last. So a change by `penstock if` stays
// until an edit changes the entry of the same function. A function that the file never named stays
// until an edit names it or takes its port.

// edit is an edit that the manager can follow.
type edit struct {
	m       *Manager
	config  configs.Config
	remove  []*function
	changes []*change
	// add has the functions that do not exist yet. wait has the changes of functions that are being
	// replaced or removed.
	add, wait []configs.Function
}

// change turns a running function into the one that an entry describes.
type change struct {
	f    *function
	want configs.Function
	// card and setup are for the function's processes; card is nil if they do not change.
	card  *models.Card
	setup setup
	// shares reports that share_percent has changed, or the entry of a function whose share was set
	// by hand.
	shares bool
}

// Reconfigure applies c, an edited configuration, to the functions. Other keys that changed are
// only logged: they take effect at the next restart. An error before the first change rejects the
// whole edit. An error while functions are added is returned after all other changes were made.
func (m *Manager) Reconfigure(c configs.Config) error {
	return m.do(func() error {
		err := m.follow(c)
		m.judgeConfiguration(err)
		return err
	})
}

// RejectConfiguration records that the configuration file has been unreadable since its last edit.
func (m *Manager) RejectConfiguration(err error) {
	m.post(func() { m.judgeConfiguration(err) })
}

// judgeConfiguration records whether the node matches the configuration file.
func (m *Manager) judgeConfiguration(err error) { m.file.judge(m.cfg.File, err, m.log) }

func (m *Manager) follow(c configs.Config) error {
	before := m.cfg.Workers
	m.cfg.Workers = m.cfg.EditedWorkers(c.Workers)
	e, err := m.planEdit(c)
	if err != nil {
		m.cfg.Workers = before
		return err
	}
	m.keepWorkers(before)
	err = e.commit()
	if m.cfg.Guarantees() && !slices.Equal(before, m.cfg.Workers) {
		m.sharing.Guarantee()
	}
	m.keep()
	m.noteRestart(c)
	return err
}

// keepWorkers keeps the workers that an edit removes until their last member has left: it may have to come back.
func (m *Manager) keepWorkers(before []configs.Worker) {
	m.file.leaving = nil
	for _, w := range before {
		if _, stays := m.cfg.Worker(w.Name); !stays && m.sharing.Hosts(w.Name) {
			m.cfg.Workers = append(m.cfg.Workers, w)
			m.file.leaving = append(m.file.leaving, w)
		}
	}
}

// dropWorkers removes the workers of keepWorkers whose last member has left.
func (m *Manager) dropWorkers() {
	kept := len(m.file.leaving)
	m.file.leaving = slices.DeleteFunc(m.file.leaving, func(w configs.Worker) bool {
		if m.sharing.Hosts(w.Name) {
			return false
		}
		m.cfg.Workers = slices.DeleteFunc(m.cfg.Workers, func(other configs.Worker) bool { return other.Name == w.Name })
		return true
	})
	if len(m.file.leaving) < kept && m.cfg.Guarantees() {
		m.sharing.Guarantee()
	}
}

// noteRestart records which edited keys take effect only at a restart.
func (m *Manager) noteRestart(c configs.Config) {
	c.Functions, c.Workers = m.cfg.Functions, slices.Concat(c.Workers, m.file.leaving)
	c.RuntimeDir, c.Log = m.cfg.RuntimeDir, m.cfg.Log // flags may have set these
	if m.sharing.FellBack && !c.PolicySet {
		c.Shares.Policy = m.cfg.Shares.Policy
	}
	m.file.needRestart(configs.ChangedKeys(m.cfg, c), m.log)
}

// planEdit only plans; it changes nothing.
func (m *Manager) planEdit(c configs.Config) (*edit, error) {
	e := &edit{m: m, config: c}
	var errs []error
	for _, want := range c.Functions {
		if !m.file.follows(want) {
			errs = append(errs, e.planEntry(want))
		}
	}
	stay := e.planUnnamed()
	for i := range stay {
		if err := m.cfg.FitShare(&stay[i], slices.Concat(c.Functions, stay[:i])); err != nil {
			errs = append(errs, fmt.Errorf("keep function %s of `penstock if add`: share %w; remove it with `penstock if remove %s`", stay[i].Name, err, stay[i].Name))
		}
	}
	return e, errors.Join(append(errs, e.checkWorkers())...)
}

// checkWorkers returns an error if the edit removes a worker of functions that it does not change.
func (e *edit) checkWorkers() error {
	m := e.m
	var errs []error
	for _, f := range m.functions {
		worker := f.setupFor(f.model.desired).worker
		if _, ok := m.cfg.Worker(worker); ok || worker == "" || f.removing || e.changesProcesses(f.name) {
			continue
		}
		errs = append(errs, fmt.Errorf("remove worker %s: `penstock if` put function %s there; run `penstock if move %s --own` first", worker, f.name, f.name))
	}
	return errors.Join(errs...)
}

// changesProcesses reports whether the edit removes a function or follows a new entry of it.
func (e *edit) changesProcesses(name string) bool {
	return slices.ContainsFunc(e.remove, func(f *function) bool { return f.name == name }) ||
		slices.ContainsFunc(e.changes, func(c *change) bool { return c != nil && c.f.name == name }) ||
		slices.ContainsFunc(e.wait, func(want configs.Function) bool { return want.Name == name })
}

// planEntry plans an entry that differs from the one that the manager follows.
func (e *edit) planEntry(want configs.Function) error {
	m := e.m
	f := m.functions.find(want.Name)
	if f == nil || f.removing {
		_, err := m.checked(want)
		e.add = append(e.add, want)
		return err
	}
	change, err := f.plan(want)
	if f.model.replacing {
		e.wait = append(e.wait, want)
	} else {
		e.changes = append(e.changes, change)
	}
	return err
}

// planUnnamed plans the functions that the file does not name, and returns those that stay.
func (e *edit) planUnnamed() (stay []configs.Function) {
	m := e.m
	for _, f := range m.functions {
		named := func(want configs.Function) bool { return want.Name == f.name }
		if f.removing || slices.ContainsFunc(e.config.Functions, named) {
			continue
		}
		port := func(want configs.Function) bool { return m.functions.portHolder(want.Port) == f.name }
		if m.file.saved(f.name) || slices.ContainsFunc(e.add, port) {
			e.remove = append(e.remove, f)
		} else {
			stay = append(stay, f.config)
		}
	}
	return stay
}

// plan describes how to turn the function into the one that an entry describes. It changes nothing.
//
//	key                                             how it takes effect
//	model, slo, weights, in_flight, worker,         by a shadow swap; the old process stays if the new
//	environment                                     one cannot start
//	share_percent                                   shares are allocated again
//	pictures                                        at once
func (f *function) plan(want configs.Function) (*change, error) {
	m, have := f.m, f.config
	if err := f.checkEntry(want); err != nil {
		return nil, err
	}
	c := &change{f: f, want: want, shares: (m.cfg.Guarantees() || f.sharing.Change != configs.ChangeNone) && (have.SharePercent != want.SharePercent || f.sharing.ByHand != 0)}
	card := f.model.desired
	if model := cmp.Or(want.Model, want.Name); model != cmp.Or(have.Model, have.Name) {
		var err error
		if card, err = m.find(model); err != nil {
			return nil, fmt.Errorf("replace model of %s: %w", f.name, err)
		}
	}
	if err := checkPictures(want.Pictures, card); err != nil {
		return nil, fmt.Errorf("reconfigure function %s: pictures %w", f.name, err)
	}
	c.setup = setupUnder(&m.cfg, want, card)
	if card != f.model.desired || !c.setup.equal(f.setupFor(card)) {
		c.card = card
		if err := f.takes(card, c.setup); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// checkEntry returns an error if an entry is wrong, or the function cannot follow it while it runs.
func (f *function) checkEntry(want configs.Function) error {
	cfg, have := &f.m.cfg, f.config
	err := want.Check()
	if err == nil {
		err = want.Under(cfg, cfg.Device)
	}
	if err != nil {
		return fmt.Errorf("reconfigure function: %w", err)
	}
	if cfg.ReceiversOf(have) == cfg.ReceiversOf(want) {
		have.Receivers = want.Receivers
	}
	if cfg.ChangeOf(have) == cfg.ChangeOf(want) {
		have.Change = want.Change
	}
	if want.Port == 0 || want.Port == f.port.LocalAddr().Port() {
		have.Port = want.Port
	}
	keys := slices.DeleteFunc(configs.ChangedKeys(have, want), configs.Live)
	if len(keys) == 0 {
		return nil
	}
	takeOut := "remove the function from the file, save, and add it again"
	if !f.m.file.saved(f.name) {
		takeOut = fmt.Sprintf("run `penstock if remove %s` first", f.name)
	}
	return fmt.Errorf("reconfigure function %s: %s cannot change while it runs; %s", f.name, strings.Join(keys, ", "), takeOut)
}

// commit carries out the plan. If a step fails, commit still carries out the others, and the error
// names the failed step.
func (e *edit) commit() error {
	m := e.m
	var errs []error
	for _, f := range e.remove {
		if !m.file.saved(f.name) {
			f.log.Warn().Msg("configuration uses the port of a function of `penstock if add`; removing that function")
		}
		errs = append(errs, m.remove(f.name))
	}
	m.file.keepOnly(e.config.Functions)
	for _, c := range e.changes {
		errs = append(errs, c.commit())
	}
	m.file.waiting = e.wait
	for _, want := range e.add {
		if m.functions.find(want.Name) != nil || m.placeLeaves(want) {
			// Its name, port or groups are still being given up. addWaiting adds it when they are
			// free.
			m.file.waiting = append(m.file.waiting, want)
			continue
		}
		errs = append(errs, m.addEntry(want))
	}
	return errors.Join(errs...)
}

// addEntry adds a function from the configuration.
func (m *Manager) addEntry(want configs.Function) error {
	err := m.add(want)
	if err == nil {
		m.file.follow(want)
	}
	return err
}

// commit changes the function. If its processes have to change too, ended records the result later.
func (c *change) commit() error {
	f, m := c.f, c.f.m
	if !m.file.saved(f.name) {
		f.log.Warn().Msg("configuration names a function of `penstock if add`; using the entry of the file")
	} else if f.sharing.ByHand != 0 || !m.file.follows(f.config) {
		f.log.Warn().Msg("configuration changes a function that `penstock if` changed; using the entry of the file")
	}
	f.trial.settle(fmt.Errorf("add function %s: the configuration has added it; see `penstock if list`", f.name))

	before := f.config
	f.config = c.want
	if c.shares {
		m.sharing.Edited(f.sharing)
	}
	if before.Pictures != c.want.Pictures {
		f.port.SetPictures(c.want.Pictures.Interval())
	}
	m.file.follow(c.want)
	if c.card == nil {
		return nil
	}
	older := f.model.older
	if c.card != f.model.desired {
		older = f.model.olderAfter(cmp.Or(before.Model, f.name))
	}
	end, err := f.replace(c.card, c.want.Model, c.setup, older)
	if err != nil {
		c.undo(before)
		return err
	}
	go func() {
		err := <-end
		m.post(func() { c.ended(before, err) })
	}()
	return nil
}

// ended records the result of a change that the processes had to make.
func (c *change) ended(before configs.Function, err error) {
	m := c.f.m
	if err != nil {
		c.undo(before)
		c.f.log.Error().Err(err).Msg("configuration rejected; keeping the last one")
		m.judgeConfiguration(err)
	}
	m.keep()
}

// undo records that the function has its old processes again. Its port, its share and its
// pictures keep their new values. The next edit, or the next manager, tries the entry again.
func (c *change) undo(before configs.Function) {
	before.Port, before.SharePercent, before.Pictures = c.want.Port, c.want.SharePercent, c.want.Pictures
	c.f.config = before
	c.f.m.file.follow(configs.Function{Name: c.f.name, Instances: 1})
}

// addWaiting follows the waiting entries that can be followed now. It adds functions whose names,
// ports and groups are free, and changes functions whose replacement has ended.
func (m *Manager) addWaiting() {
	waited := len(m.file.waiting)
	if waited == 0 {
		return
	}
	m.file.waiting = slices.DeleteFunc(m.file.waiting, func(want configs.Function) bool {
		if m.draining {
			return true
		}
		f := m.functions.find(want.Name)
		var err error
		switch {
		case f != nil && (f.removing || f.model.replacing), f == nil && m.placeLeaves(want):
			return false
		case f != nil:
			err = f.reconfigure(want)
		default:
			err = m.addEntry(want)
		}
		if err != nil {
			m.log.Error().Err(err).Msg("configuration rejected; keeping the last one")
			m.judgeConfiguration(err)
		}
		return true
	})
	if len(m.file.waiting) < waited {
		m.keep()
	}
}

// reconfigure applies one changed entry of the configuration.
func (f *function) reconfigure(want configs.Function) error {
	c, err := f.plan(want)
	if err != nil {
		return err
	}
	return c.commit()
}

// placeLeaves reports whether a function that is being removed still has what this one needs: its
// port, or, if none are left, its place or groups of multiprocessors.
func (m *Manager) placeLeaves(want configs.Function) bool {
	if m.functions.portLeaves(want.Port) {
		return true
	}
	leaves := slices.ContainsFunc(m.functions, func(f *function) bool { return f.removing })
	return leaves && (len(m.functions) >= configs.MaxFunctions || errors.Is(m.sharing.Fits(want), partition.ErrTooMany))
}
