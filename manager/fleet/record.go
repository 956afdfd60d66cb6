package fleet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// Runtime changes to a node's functions outlive their manager. The manager records them in the
// runtime folder. If it dies, the next manager resumes with the recorded functions, and then follows
// the configuration like any edit (edit.go).

// record is the desired state of a manager's functions.
type record struct {
	// Run is Options.Run; the record of another node's run is ignored.
	Run string `json:"run"`
	// Entries are the functions of the configuration file as the manager last followed them.
	Entries   []configs.Function `json:"entries"`
	Functions []recorded         `json:"functions"`
}

// recorded is a function, with the state that its configuration does not contain.
type recorded struct {
	Function configs.Function `json:"function"`
	// Port is the function's port if Function leaves it open, else 0.
	Port uint16 `json:"port,omitempty"`
	// Instances are those of the function. Fixed: an order has placed them.
	Instances []placed `json:"instances,omitempty"`
	Fixed     bool     `json:"fixed,omitempty"`
	// Older names the models for rollbacks, the newest last.
	Older []string `json:"older,omitempty"`
	// SharePercent is the share of each instance that was set by hand; 0 if none was, or if shares
	// are tuned.
	SharePercent float64 `json:"share_percent,omitempty"`
	// Peers is the last order about other nodes that serve the function.
	Peers control.PeersOrder `json:"peers,omitzero"`
}

// recorder keeps the record of a manager's functions.
type recorder struct {
	dir, run string // Options.Dir and Options.Run
	kept     []byte // the record as last written
}

// write writes a record, unless it is the last one.
func (w *recorder) write(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	if !bytes.Equal(data, w.kept) {
		if err := control.ReplaceFile(recordPath(w.dir), data); err != nil {
			return err
		}
	}
	w.kept = data
	return nil
}

// maxRecordBytes bounds a record: MaxFunctions with long environments.
const maxRecordBytes = 16 << 20

// recordPath is the path of the record in that runtime folder.
func recordPath(dir string) string { return filepath.Join(dir, control.RecordFile) }

// readRecord reads a node's record. It is empty if there is none of this run.
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

// decodeRecord reads a record and checks each function by itself.
func decodeRecord(data []byte) (r record, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, err
	}
	if d.More() {
		return r, errors.New("text follows the record")
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

// keep records the desired functions. Functions on trial or being removed are not among them.
func (fl *Fleet) keep() {
	if fl.recorder.run == "" || fl.draining {
		return
	}
	r := record{Run: fl.recorder.run, Entries: fl.file.list(), Functions: []recorded{}}
	for _, f := range fl.functions {
		if f.removing || f.trial.running() {
			continue
		}
		known := recorded{Function: f.config, SharePercent: f.byHand, Instances: f.placed(), Fixed: f.fixed, Peers: f.peers}
		if f.config.Port == 0 {
			known.Port = f.port.LocalAddr().Port()
		}
		for _, older := range f.model.older {
			known.Older = append(known.Older, older.name)
		}
		r.Functions = append(r.Functions, known)
	}
	if err := fl.recorder.write(r); err != nil {
		fl.log.Warn().Err(err).Msg("cannot record the functions; changes made at run time are lost if this manager dies")
	}
}

// Begin restores the functions of the manager before, if there was one in this run, and follows the
// configuration. Without such a manager, what the configuration asks for must be possible.
func (fl *Fleet) Begin() error {
	was := fl.recorder.recall(fl.log)
	for _, entry := range was.Entries {
		fl.file.follow(entry)
	}
	for _, r := range was.Functions {
		if err := fl.restore(r); err != nil {
			fl.log.Error().Err(err).Msg("cannot restore a function; continuing with what the configuration says of it")
			delete(fl.file.entries, r.Function.Name)
		}
	}
	err := fl.follow(fl.cfg)
	if err != nil && was.Run != "" {
		fl.log.Error().Err(err).Msg("cannot follow the configuration; continuing with the functions of the previous manager")
		fl.JudgeConfiguration(err)
		return nil
	}
	return err
}

// restore adds a function of the manager before, at the port that it had if that is free.
func (fl *Fleet) restore(r recorded) error {
	c := r.Function
	c.Port = cmp.Or(c.Port, r.Port)
	if fl.cfg.Shares.Tune && !fl.cfg.Guarantees() {
		r.SharePercent = 0 // the next tuning would change it
	}
	err := fl.add(c, r.SharePercent)
	if err != nil && r.Port != 0 {
		fl.log.Warn().Err(err).Msg("cannot restore a function at its port; choosing another port")
		err = fl.add(r.Function, r.SharePercent)
	}
	if err != nil {
		return err
	}
	f := fl.functions.find(c.Name)
	f.config, f.fixed = r.Function, r.Fixed
	f.setPeers(r.Peers)
	if err := f.spread(r.Instances); err != nil {
		f.log.Warn().Err(err).Msg("cannot restore the function on its devices; choosing others")
	}
	for _, name := range r.Older {
		card, err := fl.findFor(&f.config, name)
		if err != nil {
			f.log.Warn().Err(err).Msg("cannot find an older model; rollbacks skip it")
			continue
		}
		f.model.older = append(f.model.older, olderModel{card, name})
	}
	return nil
}

// recall returns the previous manager's record. It is empty if there was none or it cannot be
// read.
func (w *recorder) recall(log zerolog.Logger) (was record) {
	if w.run == "" {
		return was
	}
	was, err := readRecord(w.dir, w.run)
	if err != nil {
		log.Error().Err(err).Msg("cannot restore changes made at run time; using the configuration")
		return record{}
	}
	if was.Run != "" {
		log.Warn().Int("functions", len(was.Functions)).Msg("restoring the functions of the previous manager")
	}
	return was
}
