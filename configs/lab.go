package configs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/document"
)

// LabVariable is the environment variable that holds a Lab as JSON. penstock-lab and `penstock
// profile` set it for the nodes that they start.
const LabVariable = "PENSTOCK_LAB"

// Lab makes a node behave like the systems that Penstock is compared with
// (docs/adr/0010-baselines.md). It applies to every function of a node. The zero value is
// Penstock itself. Operators do not need it, so it is no part of the configuration file.
type Lab struct {
	// TimeSlicing starts no MPS daemon, so that processes take turns on the whole GPU. It
	// implies ChangeNone.
	TimeSlicing bool `json:"time_slicing,omitempty"`
	// Change is ChangeRestart or ChangeNone. It replaces shares.change and the change key of
	// each function. If empty, they stay in force.
	Change   Change           `json:"change,omitempty"`
	Batching control.Batching `json:"batching,omitzero"`
	// CopyGather assembles the fragments of a batch on the CPU and copies them to the GPU
	// once.
	CopyGather bool `json:"copy_gather,omitempty"`
	// RunLate runs requests even if they can no longer meet their objective.
	RunLate bool `json:"run_late,omitempty"`
}

// ReadLab reads the Lab from this process's environment. Without the variable, or if it is
// empty, the result is the zero value.
func ReadLab() (Lab, error) {
	l, err := decodeLab([]byte(os.Getenv(LabVariable)))
	if err != nil {
		return Lab{}, fmt.Errorf("read %s: %w", LabVariable, err)
	}
	return l, nil
}

const maxTimeout = time.Hour

func decodeLab(text []byte) (l Lab, err error) {
	if len(text) == 0 {
		return Lab{}, nil
	}
	if err := decodeStrictly(text, &l); err != nil {
		return Lab{}, err
	}
	if l.TimeSlicing && l.Change == "" {
		l.Change = ChangeNone
	}
	return l, l.check()
}

// decodeStrictly returns an error for unknown keys and for text after the document.
func decodeStrictly(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("decode JSON: %w", err)
	}
	if d.More() {
		return fmt.Errorf("decode JSON: text follows the document at byte %d", d.InputOffset())
	}
	return nil
}

func (l Lab) check() error {
	b := l.Batching
	switch {
	case l.Change != "" && l.Change != ChangeRestart && l.Change != ChangeNone:
		return fmt.Errorf("change is %q, want %s or %s; shares.change in the configuration sets the others", l.Change, ChangeRestart, ChangeNone)
	case l.TimeSlicing && l.Change != ChangeNone:
		return fmt.Errorf("change is %q, want %s: with time_slicing no process has a share", l.Change, ChangeNone)
	case b.Rule != "" && !slices.Contains(control.BatchingRules, b.Rule):
		return fmt.Errorf("batching.rule is %q, want %s", b.Rule, document.OrList(control.BatchingRules))
	case b.Rule == control.BatchFixed && (b.Size < 1 || b.Size > models.MaxBatchSize):
		return fmt.Errorf("batching.size is %d, want 1 to %d", b.Size, models.MaxBatchSize)
	case b.Rule == control.BatchFixed && (b.Delay < 0 || b.Delay > maxTimeout):
		return fmt.Errorf("batching.delay_ns is %d, want 0 to %d (%s)", b.Delay, int64(maxTimeout), maxTimeout)
	case b.Rule != control.BatchFixed && (b.Size != 0 || b.Delay != 0):
		return fmt.Errorf("batching.rule is %q with a size or a delay, want rule %q", b.Rule, control.BatchFixed)
	}
	return nil
}

// on returns an error if device does not support what l asks for. DeviceAuto supports
// everything.
func (l Lab) on(device string) error {
	if device != DeviceCPU {
		return nil
	}
	for key, set := range map[string]bool{"time_slicing": l.TimeSlicing, "copy_gather": l.CopyGather} {
		if set {
			return fmt.Errorf("%s: %s needs a GPU, and the device is cpu; want `device: cuda`", LabVariable, key)
		}
	}
	return nil
}

// String encodes l for LabVariable. The zero value is the empty string.
func (l Lab) String() string {
	if l == (Lab{}) {
		return ""
	}
	text, err := json.Marshal(l)
	if err != nil {
		panic(err) // cannot happen: JSON can encode all its fields
	}
	return string(text)
}

// Environment sets LabVariable to l for a node, as NAME=value. For the zero value it sets the
// variable to nothing, so that the node does not inherit one.
func (l Lab) Environment() string { return LabVariable + "=" + l.String() }

// FitsBatches returns an error if l's batching rule cannot run a function with these batch
// sizes and this objective.
func (l Lab) FitsBatches(sizes []int, slo, hangTimeout time.Duration) error {
	b := l.Batching
	switch {
	case b.Rule != control.BatchFixed:
		return nil
	case !slices.Contains(sizes, b.Size):
		return fmt.Errorf("%s: batching.size is %d, want one of the model's, %v", LabVariable, b.Size, sizes)
	case b.Delay >= slo:
		return fmt.Errorf("%s: batching delay is %s, want less than the objective, %s", LabVariable, b.Delay, slo)
	case b.Delay >= hangTimeout:
		// The manager would take a request that waits so long for a batch for a hanging one.
		return fmt.Errorf("%s: batching delay is %s, want less than hang_timeout, %s", LabVariable, b.Delay, hangTimeout)
	}
	return nil
}
