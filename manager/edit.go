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
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/partition"
	"github.com/penstock/penstock/models"
)

// An edit of the configuration is followed in three steps:
//
//	plan     the functions wanted and those there are -> what to do, or every reason why not
//	prepare  changed ports are opened
//	commit   functions are removed, changed and added
//
// An error of the first two rejects the edit as a whole: the node stays as it is. An entry that
// is the same as the one followed last is passed over, so a change by `penstock if` stays until
// an edit changes the entry of that very function. A function that the file never named stays
// until an edit names it or takes its port.

// edit is an edit that can be followed.
type edit struct {
	config  configs.Config
	remove  []*function
	changes []*change
	// add has the functions that are not there; wait has the changes of functions that are being
	// replaced or removed.
	add, wait []configs.Function
}

// change is what makes a running function that of another entry.
type change struct {
	f    *function
	want configs.Function
	// card and setup are what its processes shall run; card is nil if they stay.
	card  *models.Card
	setup setup
	// moves says that the port is another, and move is that port once it is open.
	moves bool
	move  portMove
	// shares says that share_percent, or the entry of a function whose share was set by hand, is
	// another.
	shares bool
}

// Reconfigure makes the functions those of c, which is an edit of the configuration. The other
// keys that changed are logged: they wait for a restart. If an error is returned before
// anything was done, the edit is rejected as a whole; an error while functions are added comes
// after the rest was done.
func (m *Manager) Reconfigure(c configs.Config) error {
	return m.do(func() error {
		err := m.follow(c)
		m.judgeConfiguration(err)
		return err
	})
}

// RejectConfiguration says that the configuration file cannot be read since its last edit.
func (m *Manager) RejectConfiguration(err error) {
	m.post(func() { m.judgeConfiguration(err) })
}

// judgeConfiguration notes whether the node is what the configuration file says.
func (m *Manager) judgeConfiguration(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	was := &m.configuration
	if text == "" && was.Error != "" {
		m.log.Info().Dur("rejected_for_ms", time.Since(was.Since)).Msg("configuration is followed again")
	}
	if text != was.Error || was.Since.IsZero() || text == "" {
		was.Since = time.Now().UTC()
	}
	was.File, was.Followed, was.Error = m.cfg.File, text == "", text
}

func (m *Manager) follow(c configs.Config) error {
	e, err := m.planEdit(c)
	if err != nil {
		return err
	}
	if err := e.prepare(m); err != nil {
		return err
	}
	err = e.commit(m)
	m.keep()
	m.noteRestart(c)
	return err
}

// noteRestart says which keys of an edit wait for a restart.
func (m *Manager) noteRestart(c configs.Config) {
	c.Functions = m.cfg.Functions
	c.RuntimeDir, c.Log = m.cfg.RuntimeDir, m.cfg.Log // flags may have set them
	keys := configs.ChangedKeys(m.cfg, c)
	if len(keys) > 0 && !slices.Equal(keys, m.configuration.NeedRestart) {
		m.log.Warn().Strs("keys", keys).Msg("these keys of the configuration wait for a restart; only functions change while the node runs")
	}
	m.configuration.NeedRestart = keys
}

// planEdit changes nothing.
func (m *Manager) planEdit(c configs.Config) (*edit, error) {
	e := &edit{config: c}
	var errs []error
	for _, want := range c.Functions {
		if last, ok := m.entries[want.Name]; ok && reflect.DeepEqual(last, want) {
			continue
		}
		f := m.function(want.Name)
		if f == nil || f.removing {
			_, err := m.checked(want)
			errs = append(errs, err)
			e.add = append(e.add, want)
			continue
		}
		change, err := f.plan(want)
		errs = append(errs, err)
		if f.replacing {
			e.wait = append(e.wait, want)
		} else {
			e.changes = append(e.changes, change)
		}
	}
	var stay []configs.Function // that the file does not name
	for _, f := range m.functions {
		named := func(want configs.Function) bool { return want.Name == f.name }
		if f.removing || slices.ContainsFunc(c.Functions, named) {
			continue
		}
		_, saved := m.entries[f.name]
		port := func(want configs.Function) bool { return want.Replay.File == "" && m.portHolder(want) == f.name }
		if saved || slices.ContainsFunc(e.add, port) {
			e.remove = append(e.remove, f)
		} else {
			stay = append(stay, f.config)
		}
	}
	for i := range stay {
		if err := m.cfg.FitShare(&stay[i], slices.Concat(c.Functions, stay[:i])); err != nil {
			errs = append(errs, fmt.Errorf("keep function %s, which `penstock if add` made: share %w; `penstock if remove %s` makes room", stay[i].Name, err, stay[i].Name))
		}
	}
	return e, errors.Join(errs...)
}

// plan is how the function becomes that of an entry. It changes nothing.
//
//	key                                             how it comes in
//	model, slo, weights, streams, environment       by a shadow swap; the old process stays if the new
//	                                                one cannot start
//	port                                            the new port is opened, the old one closed later
//	share_percent                                   shares are given out again
func (f *function) plan(want configs.Function) (*change, error) {
	m, have := f.m, f.config
	if err := want.Check(); err != nil {
		return nil, fmt.Errorf("reconfigure function: %w", err)
	}
	if err := want.Under(&m.cfg, m.cfg.Device); err != nil {
		return nil, fmt.Errorf("reconfigure function: %w", err)
	}
	if m.cfg.ReceiversOf(have) == m.cfg.ReceiversOf(want) {
		have.Receivers = want.Receivers
	}
	if m.cfg.ChangeOf(have) == m.cfg.ChangeOf(want) {
		have.Change = want.Change
	}
	keys := slices.DeleteFunc(configs.ChangedKeys(have, want), configs.Live)
	if f.replay.File != "" && have.Port != want.Port {
		keys = append(keys, "port")
	}
	if len(keys) > 0 {
		takeOut := "take the function out of the file, save, put it back"
		if _, saved := m.entries[f.name]; !saved {
			takeOut = fmt.Sprintf("`penstock if remove %s` first", f.name)
		}
		return nil, fmt.Errorf("reconfigure function %s: %s cannot change while it runs; %s", f.name, strings.Join(keys, ", "), takeOut)
	}

	c := &change{f: f, want: want, shares: (m.cfg.Guarantees() || !f.whole()) && (have.SharePercent != want.SharePercent || f.byHand != 0)}
	card := f.card
	if model := cmp.Or(want.Model, want.Name); model != cmp.Or(have.Model, have.Name) {
		var err error
		if card, err = m.find(model); err != nil {
			return nil, fmt.Errorf("replace model of %s: %w", f.name, err)
		}
	}
	c.setup = m.setupOf(want, card)
	if card != f.card || !c.setup.equal(f.setupFor(card)) {
		c.card = card
		if err := f.takes(card, c.setup); err != nil {
			return nil, err
		}
	}
	if c.moves = f.replay.File == "" && want.Port != 0 && want.Port != f.localAddr().Port(); c.moves {
		if other := m.portHolder(want); other != "" {
			return nil, fmt.Errorf("reconfigure function %s: port %d is function %q's: want another, or a first edit by which that one gives it up", f.name, want.Port, other)
		}
	}
	return c, nil
}

// prepare opens the ports of changes: all, or none and an error.
func (e *edit) prepare(m *Manager) error {
	for _, c := range e.changes {
		if !c.moves {
			continue
		}
		var err error
		if c.move, err = m.ports.move(c.f.sources(), c.want.Port); err != nil {
			e.abort()
			return fmt.Errorf("change port of %s from %d to %d: %w; the old one goes on", c.f.name, c.f.localAddr().Port(), c.want.Port, err)
		}
	}
	return nil
}

func (e *edit) abort() {
	for _, c := range e.changes {
		if c.move != nil {
			c.move.Abort()
		}
	}
}

// commit carries out the plan. If a step fails after all, the others are carried out, and the
// error names it.
func (e *edit) commit(m *Manager) error {
	var errs []error
	for _, f := range e.remove {
		if _, saved := m.entries[f.name]; !saved {
			f.log.Warn().Msg("configuration takes the port of a function that `penstock if add` made; removing that one")
		}
		errs = append(errs, m.remove(f.name))
	}
	for name := range m.entries {
		if !slices.ContainsFunc(e.config.Functions, func(want configs.Function) bool { return want.Name == name }) {
			delete(m.entries, name)
		}
	}
	for _, c := range e.changes {
		errs = append(errs, c.commit())
	}
	m.waiting = e.wait
	for _, want := range e.add {
		if m.function(want.Name) != nil || m.placeLeaves(want) {
			// Its name, its port or its groups are being given up: it comes when they are.
			m.waiting = append(m.waiting, want)
			continue
		}
		errs = append(errs, m.addEntry(want))
	}
	return errors.Join(errs...)
}

// addEntry adds a function of the configuration.
func (m *Manager) addEntry(want configs.Function) error {
	err := m.add(want)
	if err == nil {
		m.entries[want.Name] = want
	}
	return err
}

// commit changes the function; what its processes take longer for is done when they have it.
func (c *change) commit() error {
	f, m := c.f, c.f.m
	if last, saved := m.entries[f.name]; !saved {
		f.log.Warn().Msg("configuration names a function that `penstock if add` made; it is what the file says now")
	} else if f.byHand != 0 || !reflect.DeepEqual(last, f.config) {
		f.log.Warn().Msg("configuration changes a function that `penstock if` changed; it is what the file says now")
	}
	f.settle(fmt.Errorf("add function %s: the configuration has it now; `penstock if list` says how it is", f.name))

	before := f.config
	f.config = c.want
	if c.moves {
		old := f.localAddr().Port()
		linger := m.cfg.DrainTimeout
		c.move.Commit(linger)
		f.leaving, f.leavesAt = old, time.Now().Add(linger)
		f.log.Info().Uint16("from", old).Uint16("to", c.want.Port).Dur("old_port_stays_ms", linger).Msg("function has another port")
	}
	if c.shares {
		f.byHand = 0
		m.shareEdited(f)
	}
	m.entries[f.name] = c.want
	if c.card == nil {
		return nil
	}
	older := f.older
	if c.card != f.card {
		older = f.outdated(before)
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

// ended notes how the processes of a change came up.
func (c *change) ended(before configs.Function, err error) {
	m := c.f.m
	if err != nil {
		c.undo(before)
		c.f.log.Error().Err(err).Msg("configuration not followed")
		m.judgeConfiguration(err)
	}
	m.keep()
}

// undo notes that the function's processes are those from before. Its port and its share stay as
// they were changed. The next edit, or the next manager, tries the entry again.
func (c *change) undo(before configs.Function) {
	before.Port, before.SharePercent = c.want.Port, c.want.SharePercent
	c.f.config = before
	c.f.m.entries[c.f.name] = configs.Function{Name: c.f.name, Instances: 1}
}

// addWaiting follows the entries of the configuration that can be followed now. It adds functions
// whose names, ports and groups have become free, and changes those whose replacement has ended.
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
			err = m.addEntry(want)
		}
		if err != nil {
			m.log.Error().Err(err).Msg("configuration not followed")
			m.judgeConfiguration(err)
		}
		return true
	})
	if len(m.waiting) < waited {
		m.keep()
	}
}

// reconfigure follows one changed entry of the configuration.
func (f *function) reconfigure(want configs.Function) error {
	c, err := f.plan(want)
	if err != nil {
		return err
	}
	e := &edit{changes: []*change{c}}
	if err := e.prepare(f.m); err != nil {
		return err
	}
	return c.commit()
}

// placeLeaves reports whether a function that is being removed has what this one needs:
// its port, or its place or groups of multiprocessors if none are left.
func (m *Manager) placeLeaves(want configs.Function) bool {
	if m.portLeaves(want.Port) {
		return true
	}
	leaves := slices.ContainsFunc(m.functions, func(f *function) bool { return f.removing })
	return leaves && (len(m.functions) >= configs.MaxFunctions || errors.Is(m.roomFor(want), partition.ErrTooMany))
}

// portHolder names the function that has the port which c wants from the network; it is empty if
// the port is free.
func (m *Manager) portHolder(c configs.Function) string {
	if c.Port == 0 || c.Replay.File != "" {
		return ""
	}
	for _, f := range m.functions {
		if f.replay.File == "" && (f.localAddr().Port() == c.Port || f.leavingPort() == c.Port) {
			return f.name
		}
	}
	return ""
}

// portLeaves reports whether a function has that port which is being removed, or has moved to
// another.
func (m *Manager) portLeaves(port uint16) bool {
	return port != 0 && slices.ContainsFunc(m.functions, func(f *function) bool {
		return f.removing && f.localAddr().Port() == port || f.leavingPort() == port
	})
}

// leavingPort is the port that the function has moved away from and that is still open, else 0.
func (f *function) leavingPort() uint16 {
	if time.Now().After(f.leavesAt) {
		return 0
	}
	return f.leaving
}

// unsaved says how a function is another than the configuration file has it: Added or Changed at
// run time; empty if it is not.
func (f *function) unsaved() control.Unsaved {
	entry, saved := f.m.entries[f.name]
	switch {
	case !saved:
		return control.UnsavedAdded
	case f.byHand != 0 || cmp.Or(f.config.Model, f.name) != cmp.Or(entry.Model, f.name):
		return control.UnsavedChanged
	}
	return ""
}
