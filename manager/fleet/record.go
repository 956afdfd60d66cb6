package fleet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/sharing"
)

// Runtime changes to a node's functions outlive their manager. The manager records them in the
// runtime folder. If it dies, the next manager resumes with them. That manager follows entries of
// the configuration file that were edited meanwhile like any edit (edit.go).

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
	// Older names the models for rollbacks, the newest last.
	Older []string `json:"older,omitempty"`
	// SharePercent is the share of each instance that was set by hand; 0 if none was, or if shares
	// are tuned.
	SharePercent float64 `json:"share_percent,omitempty"`
}

// recorder keeps the record of a manager's functions.
type recorder struct {
	dir, run string // Options.Dir and Options.Run
	kept     []byte // the record as last written
	// formerPorts has, while the manager begins, the ports that the functions had under the
	// manager before.
	formerPorts map[string]uint16
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
		known := recorded{Function: f.config, SharePercent: f.sharing.ByHand}
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

// Begin adds the initial functions. They are those of the configuration and those added at run
// time, both with the last manager's changes.
func (fl *Fleet) Begin() error {
	was := fl.recorder.recall(fl.log)
	again := fl.recorder.run != "" && was.Run == fl.recorder.run
	list := merge(was, fl.cfg.Functions, &fl.file)
	fl.recorder.formerPorts = formerPorts(was.Functions, list)
	for _, r := range list {
		if err := fl.bringBack(r); err != nil {
			if !again {
				return err
			}
			fl.log.Error().Err(err).Msg("cannot restore function; continuing without it")
		}
	}
	fl.recorder.formerPorts = nil
	byHand := map[*sharing.Function]float64{}
	for _, r := range list {
		if f := fl.functions.find(r.Function.Name); f != nil && r.SharePercent != 0 {
			byHand[f.sharing] = r.SharePercent
		}
	}
	fl.sharing.Restore(byHand)
	fl.keep()
	return nil
}

// merge lists the functions that the manager should have. If an entry was edited, the edit counts;
// otherwise its runtime changes do. Functions that were added at run time come last.
func merge(was record, configured []configs.Function, file *configFile) (list []recorded) {
	for _, want := range configured {
		same := func(entry configs.Function) bool { return reflect.DeepEqual(entry, want) }
		named := func(r recorded) bool { return r.Function.Name == want.Name }
		switch i := slices.IndexFunc(was.Functions, named); {
		case !slices.ContainsFunc(was.Entries, same):
			list = append(list, recorded{Function: want})
		case i >= 0:
			list = append(list, was.Functions[i])
		default:
			file.follow(want) // removed at run time
		}
	}
	for _, r := range was.Functions {
		entry := func(entry configs.Function) bool { return entry.Name == r.Function.Name }
		taken := func(want configs.Function) bool {
			return want.Name == r.Function.Name || want.Port != 0 && want.Port == cmp.Or(r.Function.Port, r.Port)
		}
		if !slices.ContainsFunc(was.Entries, entry) && !slices.ContainsFunc(configured, taken) {
			list = append(list, r)
		}
	}
	return list
}

// recall returns the previous manager's record. It is empty if there was none or it cannot be
// read.
func (w *recorder) recall(log zerolog.Logger) (was record) {
	if w.run == "" {
		return was
	}
	was, err := readRecord(w.dir, w.run)
	switch {
	case err != nil:
		log.Error().Err(err).Msg("cannot restore changes made at run time; using the configuration")
		return record{}
	case was.Run == "":
	default:
		log.Warn().Int("functions", len(was.Functions)).Msg("restored the functions of the previous manager")
	}
	return was
}

// formerPorts returns the previous ports of functions in list that leave their port open. It omits
// ports that another function requests.
func formerPorts(was, list []recorded) map[string]uint16 {
	had := map[string]uint16{}
	for _, r := range was {
		wanted := func(other recorded) bool { return other.Function.Port == r.Port }
		if r.Port != 0 && !slices.ContainsFunc(list, wanted) {
			had[r.Function.Name] = r.Port
		}
	}
	return had
}

// bringBack adds an initial function. If its runtime changes no longer work, it is added as
// configured. If that fails too, bringBack returns the error.
func (fl *Fleet) bringBack(r recorded) error {
	i := slices.IndexFunc(fl.cfg.Functions, func(c configs.Function) bool { return c.Name == r.Function.Name })
	err := fl.add(r.Function)
	if err != nil && i >= 0 && !reflect.DeepEqual(r.Function, fl.cfg.Functions[i]) {
		fl.log.Error().Err(err).Msg("cannot restore a function as changed at run time; using the configuration")
		return fl.addEntry(fl.cfg.Functions[i])
	}
	if err != nil {
		return err
	}
	if i >= 0 {
		fl.file.follow(fl.cfg.Functions[i])
	}
	f := fl.functions.find(r.Function.Name)
	for _, name := range r.Older {
		card, err := fl.find(name)
		if err != nil {
			f.log.Warn().Err(err).Msg("cannot find an older model; rollbacks skip it")
			continue
		}
		f.model.older = append(f.model.older, olderModel{card, name})
	}
	return nil
}
