package configs

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
)

func TestReadLab(t *testing.T) {
	for name, row := range map[string]struct {
		text string
		want Lab
	}{
		"not set":      {"", Lab{}},
		"Penstock":     {"{}", Lab{}},
		"time slicing": {`{"time_slicing": true, "copy_gather": true}`, Lab{TimeSlicing: true, Change: ChangeNone, CopyGather: true}},
		"fixed batches": {`{"change": "none", "batching": {"rule": "fixed", "size": 8, "delay_ns": 5000000}}`,
			Lab{Change: ChangeNone, Batching: control.Batching{Rule: control.BatchFixed, Size: 8, Delay: 5 * time.Millisecond}}},
		"restart": {`{"change": "restart"}`, Lab{Change: ChangeRestart}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(LabVariable, row.text)
			got, err := ReadLab()
			if err != nil || got != row.want {
				t.Fatalf("it reads %+v, %v; want %+v", got, err, row.want)
			}
			_, text, _ := strings.Cut(got.Environment(), "=")
			t.Setenv(LabVariable, text)
			if again, err := ReadLab(); err != nil || again != got {
				t.Errorf("%s reads %+v, %v; want %+v", text, again, err, got)
			}
		})
	}
}

func TestReadLabErrors(t *testing.T) {
	for text, word := range map[string]string{
		"time_slicing":         "invalid character",
		`{"time_slicing": 1}`:  "time_slicing",
		`{"mps": false}`:       "mps",
		`{"batching": "aimd"}`: "batching",
	} {
		t.Setenv(LabVariable, text)
		if _, err := ReadLab(); err == nil || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), LabVariable) {
			t.Errorf("%s: error %v does not name %q and %s", text, err, word, LabVariable)
		}
	}
}

func TestLabUnderConfiguration(t *testing.T) {
	c, err := Decode("f.yaml", []byte("{device: cuda, shares: {policy: gslice, change: shadow}, functions: [{name: a, port: 1, change: partition}]}"))
	must.OK(t, err)
	for lab, want := range map[Lab]Change{
		{}:                                      ChangePartition,
		{Change: ChangeRestart}:                 ChangeRestart,
		{TimeSlicing: true, Change: ChangeNone}: ChangeNone,
	} {
		c.Lab = lab
		if got := c.ChangeOf(c.Functions[0]); got != want {
			t.Errorf("with %s shares change by %s, want %s", lab, got, want)
		}
		if err := c.Check(); err != nil {
			t.Errorf("with %s: %v", lab, err)
		}
	}

	// Functions without shares fit in any number.
	many := Function{Name: "b", Instances: 40}
	c.Lab = Lab{}
	if err := c.FitShare(&many, nil); err == nil {
		t.Error("40 instances with shares fit")
	}
	c.Lab = Lab{Change: ChangeNone}
	if err := c.FitShare(&many, nil); err != nil {
		t.Error(err)
	}
}
