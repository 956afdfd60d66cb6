package configs

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/penstock/penstock/control"
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
}

// ReadLab reads the Lab from this process's environment. Without the variable, or if it is
// empty, the result is the zero value. It does not check values: programs set them.
func ReadLab() (l Lab, err error) {
	text := os.Getenv(LabVariable)
	if text == "" {
		return l, nil
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return l, fmt.Errorf("read %s: %w", LabVariable, err)
	}
	if l.TimeSlicing {
		l.Change = ChangeNone
	}
	return l, nil
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
