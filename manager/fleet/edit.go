package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/models"
)

// The manager follows an edit of the configuration file in two steps:
//
//	plan     compare the configured with the existing functions: list what to do, or all errors
//	commit   remove, change and add functions
//
// Some entries must wait until other functions have been removed or replaced. The manager then follows
// the whole configuration again.
//
// An error in the plan rejects the whole edit: the node stays as it is. The manager
// skips an entry that equals the one that it followed last. So a change by `penstock if` stays
// until an edit changes the entry of the same function. A function that the file never named stays
// until an edit names it or takes its port.

// edit is an edit that the manager can follow.
type edit struct {
	fleet   *Fleet
	config  configs.Config
	remove  []*function
	changes []*change
	add     []configs.Function
	waits   bool // an entry must be followed later: its function is being replaced
}

// change turns a running function into the one that an entry describes.
type change struct {
	f    *function
	want configs.Function
	card *models.Card // for the function's processes; nil if they do not change
	// shares reports that share_percent has changed, or the entry of a function whose share was set
	// by hand.
	shares bool
}

// Follow applies c, an edited configuration, to the functions. Other keys that changed are
// only logged: they take effect at the next restart. An error before the first change rejects the
// whole edit. An error while functions are added is returned after all other changes were made.
func (fl *Fleet) Follow(c configs.Config) error {
	err := fl.follow(c)
	fl.JudgeConfiguration(err)
	return err
}

// JudgeConfiguration records whether the node matches the configuration file; err is nil if it
// does.
func (fl *Fleet) JudgeConfiguration(err error) { fl.file.judge(fl.cfg.File, err, fl.log) }

func (fl *Fleet) follow(c configs.Config) error {
	before := fl.cfg.Workers
	fl.cfg.Workers = fl.cfg.EditedWorkers(c.Workers)
	e, err := fl.planEdit(c)
	if err != nil {
		fl.cfg.Workers = before
		return err
	}
	fl.keepWorkers(before)
	err = e.commit()
	fl.keep()
	fl.noteRestart(c)
	return err
}

// keepWorkers keeps the workers that an edit removes until their last member has left: it may have to come back.
func (fl *Fleet) keepWorkers(before []configs.Worker) {
	fl.file.leaving = nil
	for _, w := range before {
		if _, stays := fl.cfg.Worker(w.Name); !stays && fl.functions.hosts(w.Name) {
			fl.cfg.Workers = append(fl.cfg.Workers, w)
			fl.file.leaving = append(fl.file.leaving, w)
		}
	}
}

// dropWorkers removes the workers of keepWorkers whose last member has left.
func (fl *Fleet) dropWorkers() {
	fl.file.leaving = slices.DeleteFunc(fl.file.leaving, func(w configs.Worker) bool {
		if fl.functions.hosts(w.Name) {
			return false
		}
		fl.cfg.Workers = slices.DeleteFunc(fl.cfg.Workers, func(other configs.Worker) bool { return other.Name == w.Name })
		return true
	})
}

// noteRestart records which edited keys take effect only at a restart.
func (fl *Fleet) noteRestart(c configs.Config) {
	c.Functions, c.Workers = fl.cfg.Functions, slices.Concat(c.Workers, fl.file.leaving)
	c.RuntimeDir, c.Log = fl.cfg.RuntimeDir, fl.cfg.Log // flags may have set these
	c.Resolve(fl.cfg.GPUs)
	for _, d := range fl.devices {
		if d.made {
			c.Devices = append(slices.Clone(c.Devices), configs.DeviceName(d.Device.Name))
		}
	}
	fl.file.needRestart(configs.ChangedKeys(fl.cfg, c), fl.log)
}

// planEdit only plans; it changes nothing.
func (fl *Fleet) planEdit(c configs.Config) (*edit, error) {
	e := &edit{fleet: fl, config: c}
	var errs []error
	for _, want := range c.Functions {
		if !fl.file.follows(want) {
			errs = append(errs, e.planEntry(want))
		}
	}
	stay := e.planUnnamed()
	for i := range stay {
		if err := fl.cfg.FitNode(&stay[i], slices.Concat(c.Functions, stay[:i])); err != nil {
			errs = append(errs, fmt.Errorf("keep function %s of `penstock if add`: share %w; remove it with `penstock if remove %s`", stay[i].Name, err, stay[i].Name))
		}
	}
	return e, errors.Join(append(errs, e.checkWorkers())...)
}

// checkWorkers returns an error if the edit removes a worker of functions that it does not change.
func (e *edit) checkWorkers() error {
	fl := e.fleet
	var errs []error
	for _, f := range fl.functions {
		worker := f.setupFor(f.model.desired).worker
		edited := func(want configs.Function) bool { return want.Name == f.name && !fl.file.follows(want) }
		if _, ok := fl.cfg.Worker(worker); ok || worker == "" || f.removing || slices.Contains(e.remove, f) || slices.ContainsFunc(e.config.Functions, edited) {
			continue
		}
		errs = append(errs, fmt.Errorf("remove worker %s: `penstock if` put function %s there; run `penstock if move %s --own` first", worker, f.name, f.name))
	}
	return errors.Join(errs...)
}

// planEntry plans an entry that differs from the one that the manager follows.
func (e *edit) planEntry(want configs.Function) error {
	fl := e.fleet
	f := fl.functions.find(want.Name)
	if f == nil || f.removing {
		_, err := fl.checked(want)
		e.add = append(e.add, want)
		return err
	}
	change, err := f.plan(want)
	if f.model.replacing != nil {
		e.waits = true
	} else {
		e.changes = append(e.changes, change)
	}
	return err
}

// planUnnamed plans the functions that the file does not name, and returns those that stay.
func (e *edit) planUnnamed() (stay []configs.Function) {
	fl := e.fleet
	for _, f := range fl.functions {
		named := func(want configs.Function) bool { return want.Name == f.name }
		if f.removing || slices.ContainsFunc(e.config.Functions, named) {
			continue
		}
		port := func(want configs.Function) bool { return fl.functions.portHolder(want.Port) == f.name }
		if fl.file.saved(f.name) || slices.ContainsFunc(e.add, port) {
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
//	pictures, priority                              at once
func (f *function) plan(want configs.Function) (*change, error) {
	fl, have := f.fleet, f.config
	if err := f.checkEntry(want); err != nil {
		return nil, err
	}
	c := &change{f: f, want: want, shares: (fl.cfg.Guarantees() || f.instances[0].device().Change(&fl.cfg, have) != configs.ChangeNone) && (have.SharePercent != want.SharePercent || f.byHand != 0)}
	card := f.model.desired
	if model := cmp.Or(want.Model, want.Name); model != cmp.Or(have.Model, have.Name) {
		var err error
		if card, err = fl.findFor(&want, model); err != nil {
			return nil, fmt.Errorf("replace model of %s: %w", f.name, err)
		}
	}
	if err := checkPictures(want.Pictures, card); err != nil {
		return nil, fmt.Errorf("reconfigure function %s: pictures %w", f.name, err)
	}
	if card == f.model.desired && setupUnder(&fl.cfg, want, card).equal(f.setupFor(card)) {
		return c, nil
	}
	c.card = card
	return c, f.takes(card, want)
}

// checkEntry returns an error if an entry is wrong, or the function cannot follow it while it runs.
func (f *function) checkEntry(want configs.Function) error {
	cfg, have := &f.fleet.cfg, f.config
	err := want.Check()
	if err == nil {
		err = want.Under(cfg)
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
	if !f.fleet.file.saved(f.name) {
		takeOut = fmt.Sprintf("run `penstock if remove %s` first", f.name)
	}
	return fmt.Errorf("reconfigure function %s: %s cannot change while it runs; %s", f.name, strings.Join(keys, ", "), takeOut)
}

// commit carries out the plan. If a step fails, commit still carries out the others, and the error
// names the failed step.
func (e *edit) commit() error {
	fl := e.fleet
	var errs []error
	for _, f := range e.remove {
		if !fl.file.saved(f.name) {
			f.log.Warn().Msg("configuration uses the port of a function of `penstock if add`; removing that function")
		}
		_, err := fl.Remove(f.name)
		errs = append(errs, err)
	}
	fl.file.keepOnly(e.config.Functions)
	for _, c := range e.changes {
		errs = append(errs, c.commit())
	}
	if len(e.add) > 0 && fl.functions.removing() { // names, ports and groups are still being given up
		e.add, e.waits = nil, true
	}
	for _, want := range e.add {
		err := fl.add(want, 0)
		if err == nil {
			fl.file.follow(want)
		}
		errs = append(errs, err)
	}
	if fl.file.waiting = nil; e.waits {
		fl.file.waiting = &e.config
	}
	return errors.Join(errs...)
}

// commit changes the function. If its processes have to change too, ended records the result later.
func (c *change) commit() error {
	f, fl := c.f, c.f.fleet
	if !fl.file.saved(f.name) {
		f.log.Warn().Msg("configuration names a function of `penstock if add`; using the entry of the file")
	} else if f.byHand != 0 || !fl.file.follows(f.config) {
		f.log.Warn().Msg("configuration changes a function that `penstock if` changed; using the entry of the file")
	}
	f.trial.settle(fmt.Errorf("add function %s: the configuration has added it; see `penstock if list`", f.name))

	before := f.config
	f.config = c.want
	if c.shares {
		f.setPercent(0)
		f.shareEdits++
	}
	if before.Pictures != c.want.Pictures {
		f.port.SetPictures(c.want.Pictures.Interval())
	}
	fl.file.follow(c.want)
	if c.card == nil {
		return nil
	}
	older := f.model.older
	if c.card != f.model.desired {
		older = f.model.olderAfter(cmp.Or(before.Model, f.name))
	}
	err := f.replace(c.card, c.want, older, func(err error) { c.ended(before, err) })
	if err != nil {
		c.undo(before)
	}
	return err
}

// ended records the result of a change that the processes had to make.
func (c *change) ended(before configs.Function, err error) {
	if err == nil || c.f.removing {
		return
	}
	c.undo(before)
	c.f.log.Error().Err(err).Msg("configuration rejected; keeping the last one")
	c.f.fleet.JudgeConfiguration(err)
	c.f.fleet.keep()
}

// undo records that the function has its old processes again. Its port, its share and its
// pictures keep their new values. The next edit, or the next manager, tries the entry again.
func (c *change) undo(before configs.Function) {
	before.Port, before.SharePercent, before.Pictures = c.want.Port, c.want.SharePercent, c.want.Pictures
	c.f.config = before
	c.f.fleet.file.follow(configs.Function{Name: c.f.name, Instances: 1})
}

// followWaiting follows an edit of which something waited, when no function is being removed or
// replaced any more.
func (fl *Fleet) followWaiting() {
	c := fl.file.waiting
	if c == nil || fl.draining || fl.functions.removing() || fl.functions.replacing() {
		return
	}
	if err := fl.follow(*c); err != nil {
		fl.log.Error().Err(err).Msg("configuration rejected; keeping the last one")
		fl.JudgeConfiguration(err)
		fl.file.waiting = nil
	}
}
