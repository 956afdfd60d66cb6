package manager

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// What a node's functions are told at run time outlives its manager: it is recorded in the
// runtime folder, and the manager that is started in the place of one that died goes on
// with it. Entries of the configuration file that were edited meanwhile are followed as any
// edit is (edit.go).

// record is what a manager was last told to have.
type record struct {
	// Run is Options.Run; another node's record is none.
	Run string `json:"run"`
	// Entries are the functions of the configuration file as they were followed last.
	Entries   []configs.Function `json:"entries"`
	Functions []recorded         `json:"functions"`
}

// recorded is a function, and what it has that a configuration does not say.
type recorded struct {
	Function configs.Function `json:"function"`
	// Port is what it has where Function leaves that open, else 0.
	Port uint16 `json:"port,omitempty"`
	// Older names the models that rollbacks bring back, the last one first to come.
	Older []string `json:"older,omitempty"`
	// SharePercent is what each instance was given by hand, 0 where that was not done or
	// shares tune themselves.
	SharePercent float64 `json:"share_percent,omitempty"`
}

// maxRecordBytes bounds a record: MaxFunctions with long environments.
const maxRecordBytes = 16 << 20

// recordPath is where the record of the node with that runtime folder lies.
func recordPath(dir string) string { return filepath.Join(dir, control.RecordFile) }

// readRecord reads a node's record, an empty one where there is none of this run.
func readRecord(dir, run string) (record, error) {
	data, err := control.ReadFile(recordPath(dir), maxRecordBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	r, err := decodeRecord(data)
	if err != nil {
		return record{}, fmt.Errorf("read %s: %w", recordPath(dir), err)
	}
	if r.Run != run {
		return record{}, nil
	}
	return r, nil
}

// decodeRecord reads a record of which every function makes sense by itself.
func decodeRecord(data []byte) (r record, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, err
	}
	if d.More() {
		return r, errors.New("more follows the record")
	}
	if n := len(r.Functions); n > configs.MaxFunctions {
		return r, fmt.Errorf("%d functions, want at most %d", n, configs.MaxFunctions)
	}
	for _, entry := range r.Entries {
		if err := entry.Check(); err != nil {
			return r, err
		}
	}
	names := map[string]bool{}
	for _, f := range r.Functions {
		if err := f.Function.Check(); err != nil {
			return r, err
		}
		if names[f.Function.Name] {
			return r, fmt.Errorf("two functions %q", f.Function.Name)
		}
		names[f.Function.Name] = true
	}
	return r, nil
}

// keep records what the manager was told. Functions on trial, and those that are being
// removed, are not what it shall have.
func (m *Manager) keep() {
	if m.run == "" || m.draining {
		return
	}
	r := record{Run: m.run, Entries: []configs.Function{}, Functions: []recorded{}}
	for _, name := range slices.Sorted(maps.Keys(m.entries)) {
		r.Entries = append(r.Entries, m.entries[name])
	}
	for _, f := range m.functions {
		if f.removing || f.trial != nil {
			continue
		}
		known := recorded{Function: f.config, SharePercent: f.byHand}
		if f.config.Port == 0 && f.config.Replay.File == "" {
			known.Port = f.localAddr().Port()
		}
		for _, older := range f.older {
			known.Older = append(known.Older, older.name)
		}
		r.Functions = append(r.Functions, known)
	}
	data, err := json.Marshal(r)
	if err == nil && !bytes.Equal(data, m.kept) {
		err = control.ReplaceFile(recordPath(m.dir), data)
	}
	if err != nil {
		m.log.Warn().Err(err).Msg("cannot record the functions: what was done at run time is forgotten when this manager dies")
		return
	}
	m.kept = data
}

// begin adds the functions that the manager begins with: those of the configuration and those
// added at run time, both as the last manager of this node had them.
func (m *Manager) begin() error {
	was := m.recall()
	again := m.run != "" && was.Run == m.run
	list := m.merge(was)
	m.had = portsHad(was.Functions, list)
	for _, r := range list {
		if err := m.bringBack(r); err != nil {
			if !again {
				return err
			}
			m.log.Error().Err(err).Msg("function is left out: it cannot be had any more, and the others go on")
		}
	}
	m.had = nil
	m.giveByHand(list)
	m.keep()
	return nil
}

// merge lists the functions that the manager shall have. An entry that was edited counts; one that
// was not is as it was changed at run time. Functions that were added at run time come last.
func (m *Manager) merge(was record) (list []recorded) {
	for _, want := range m.cfg.Functions {
		same := func(entry configs.Function) bool { return reflect.DeepEqual(entry, want) }
		named := func(r recorded) bool { return r.Function.Name == want.Name }
		switch i := slices.IndexFunc(was.Functions, named); {
		case !slices.ContainsFunc(was.Entries, same):
			list = append(list, recorded{Function: want})
		case i >= 0:
			list = append(list, was.Functions[i])
		default:
			m.entries[want.Name] = want // it was removed at run time
		}
	}
	for _, r := range was.Functions {
		entry := func(entry configs.Function) bool { return entry.Name == r.Function.Name }
		taken := func(want configs.Function) bool {
			return want.Name == r.Function.Name || want.Port != 0 && want.Port == cmp.Or(r.Function.Port, r.Port) && want.Replay.File == "" && r.Function.Replay.File == ""
		}
		if !slices.ContainsFunc(was.Entries, entry) && !slices.ContainsFunc(m.cfg.Functions, taken) {
			list = append(list, r)
		}
	}
	return list
}

// recall is what the manager before this one was told, empty where there was none or
// nobody can say.
func (m *Manager) recall() (was record) {
	if m.run == "" {
		return was
	}
	was, err := readRecord(m.dir, m.run)
	switch {
	case err != nil:
		m.log.Error().Err(err).Msg("what was done at run time is forgotten; going on with the configuration")
		return record{}
	case was.Run == "":
	default:
		m.log.Warn().Int("functions", len(was.Functions)).Msg("a manager of this node ended; going on with the functions that it was last told to have")
	}
	return was
}

// portsHad are the ports of before for functions of list that leave theirs open, but for
// those that another one wants.
func portsHad(was, list []recorded) map[string]uint16 {
	had := map[string]uint16{}
	for _, r := range was {
		wanted := func(other recorded) bool { return other.Function.Port == r.Port }
		if r.Port != 0 && !slices.ContainsFunc(list, wanted) {
			had[r.Function.Name] = r.Port
		}
	}
	return had
}

// bringBack adds a function that the manager begins with. One that was changed at run time
// and cannot be had so any more is as in the configuration; who can be had neither way is
// an error.
func (m *Manager) bringBack(r recorded) error {
	i := slices.IndexFunc(m.cfg.Functions, func(c configs.Function) bool { return c.Name == r.Function.Name })
	err := m.add(r.Function)
	if err != nil && i >= 0 && !reflect.DeepEqual(r.Function, m.cfg.Functions[i]) {
		m.log.Error().Err(err).Msg("function is not brought back as it was changed at run time; it is what the configuration says")
		return m.addEntry(m.cfg.Functions[i])
	}
	if err != nil {
		return err
	}
	if i >= 0 {
		m.entries[r.Function.Name] = m.cfg.Functions[i]
	}
	f := m.function(r.Function.Name)
	for _, name := range r.Older {
		card, err := m.find(name)
		if err != nil {
			f.log.Warn().Err(err).Msg("cannot find an older model; rollbacks pass over it")
			continue
		}
		f.older = append(f.older, olderModel{card, name})
	}
	return nil
}

// giveByHand gives functions the shares that they were given by hand. All want theirs again
// before anybody is given any: together they may want more than there is, as before. Then
// those that give something up come first: there is 100 % for all.
func (m *Manager) giveByHand(list []recorded) {
	if m.cfg.Guarantees() {
		for _, r := range list {
			if f := m.function(r.Function.Name); f != nil {
				f.byHand = r.SharePercent
			}
		}
		return
	}
	if m.cfg.Shares.Tune {
		return
	}
	list = slices.DeleteFunc(slices.Clone(list), func(r recorded) bool {
		f := m.function(r.Function.Name)
		return r.SharePercent == 0 || f == nil || f.whole()
	})
	if len(list) == 0 {
		return
	}
	for _, r := range list {
		f := m.function(r.Function.Name)
		f.byHand = r.SharePercent
		for _, in := range f.instances {
			if err := m.shares.Replace(in.id(), r.SharePercent); err != nil {
				m.log.Error().Err(err).Msg("share out")
			}
		}
	}
	m.reshare("given by hand before")
	more := func(r recorded) float64 {
		f := m.function(r.Function.Name)
		return r.SharePercent*float64(len(f.instances)) - f.wantedPercent()
	}
	slices.SortStableFunc(list, func(a, b recorded) int { return cmp.Compare(more(a), more(b)) })
	for _, r := range list {
		if err := m.setShare(r.Function.Name, r.SharePercent); err != nil {
			m.log.Info().Err(err).Msg("a share that was given by hand is as large as the others leave, as it was")
		}
	}
}
