package manager

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// What a node's functions are told at run time outlives its manager: it is recorded in the
// runtime folder, and the manager that is started in the place of one that died goes on
// with it, for as long as the configuration is the text that it was told over.

// record is what a manager was last told to have.
type record struct {
	// Run is Options.Run; another node's record is none.
	Run string `json:"run"`
	// Configuration is the configs.Config.Digest of what it was told over; empty while an
	// edit is being followed, which is then what counts.
	Configuration string     `json:"configuration"`
	Functions     []recorded `json:"functions"`
}

// recorded is a function, and what it has that a configuration does not say.
type recorded struct {
	Function configs.Function `json:"function"`
	// Port is what it has where Function leaves that open, else 0.
	Port uint16 `json:"port,omitempty"`
	// Before is the model that a rollback brings back, empty where there is none.
	Before string `json:"before,omitempty"`
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
	file, err := os.Open(recordPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxRecordBytes))
	if err != nil {
		return record{}, err
	}
	r, err := decodeRecord(data)
	if err != nil {
		return record{}, fmt.Errorf("read %s: %w", file.Name(), err)
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
	r := record{Run: m.run, Configuration: m.over, Functions: []recorded{}}
	if m.following > 0 || len(m.waiting) > 0 {
		r.Configuration = ""
	}
	for _, f := range m.functions {
		if f.removing || f.trial != nil {
			continue
		}
		known := recorded{Function: f.config, SharePercent: f.byHand}
		if f.config.Port == 0 && f.config.Replay.File == "" {
			known.Port = f.localAddr().Port()
		}
		if f.previous != nil {
			known.Before = f.before
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

// begin adds the functions that the manager begins with: those of the configuration, or
// those that the manager before it in this node was told to have.
func (m *Manager) begin() error {
	m.over = m.cfg.Digest
	var list []recorded
	for _, f := range m.cfg.Functions {
		list = append(list, recorded{Function: f})
	}
	was := m.recall()
	again := m.run != "" && was.Run == m.run
	if again && was.Configuration == m.over {
		list = was.Functions
	}
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
	case was.Configuration != m.cfg.Digest:
		m.log.Warn().Msg("a manager of this node ended; the configuration was edited after what was done at run time, and is what counts: that is forgotten")
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
	if err != nil && i >= 0 {
		if reflect.DeepEqual(r.Function, m.cfg.Functions[i]) {
			m.over = "" // the next manager tries it again
			return err
		}
		m.log.Error().Err(err).Msg("function is not brought back as it was changed at run time; it is what the configuration says")
		if err = m.add(m.cfg.Functions[i]); err != nil {
			m.over = ""
		}
		return err
	}
	if err != nil || r.Before == "" {
		return err
	}
	f := m.function(r.Function.Name)
	card, err := m.find(r.Before)
	if err != nil {
		f.log.Warn().Err(err).Msg("the model before the last replacement is not there any more: there is no rollback")
		return nil
	}
	f.previous, f.before = card, r.Before
	return nil
}

// giveByHand gives functions the shares that they were given by hand. All want theirs again
// before anybody is given any: together they may want more than there is, as before. Then
// those that give something up come first: there is 100 % for all.
func (m *Manager) giveByHand(list []recorded) {
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
