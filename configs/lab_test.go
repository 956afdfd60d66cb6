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
		"restart": {`{"change": "restart", "run_late": true}`, Lab{Change: ChangeRestart, RunLate: true}},
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
	for text, words := range map[string][]string{
		"time_slicing":                    {"JSON"},
		`{"time_slicing": 1}`:             {"time_slicing"},
		`{"mps": false}`:                  {"mps"},
		`{} {}`:                           {"text follows"},
		`{"change": "shadow"}`:            {"shadow", "restart or none", "shares.change"},
		`{"batching": "aimd"}`:            {"batching"},
		`{"batching": {"size": 8}}`:       {"rule", `"fixed"`},
		`{"batching": {"rule": "guess"}}`: {"guess", "slab, aimd, none or fixed"},
		`{"batching": {"rule": "aimd", "delay_ns": 1}}`:              {"aimd", `"fixed"`},
		`{"batching": {"rule": "fixed"}}`:                            {"size is 0", "1 to 1024"},
		`{"batching": {"rule": "fixed", "size": 8, "delay_ns": -1}}`: {"delay_ns is -1"},
		`{"batching": {"rule": "fixed", "size": 8, "delay": "5ms"}}`: {"delay"},
		`{"time_slicing": true, "change": "restart"}`:                {"restart", "time_slicing"},
	} {
		t.Setenv(LabVariable, text)
		_, err := ReadLab()
		for _, word := range append(words, LabVariable) {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: error %v does not name %q", text, err, word)
			}
		}
	}
}

func TestLabUnderConfiguration(t *testing.T) {
	c, err := Decode("f.yaml", []byte("{device: cuda, shares: {policy: gslice, change: shadow}, functions: [{name: a, port: 1, change: partition}]}"))
	must.OK(t, err)
	for lab, want := range map[Lab]Change{
		{}:                                      ChangePartition,
		{RunLate: true}:                         ChangePartition,
		{Change: ChangeRestart}:                 ChangeRestart,
		{TimeSlicing: true, Change: ChangeNone}: ChangeNone,
	} {
		c.Lab = lab
		if got := c.ChangeOf(c.Functions[0]); got != want {
			t.Errorf("with %s shares change by %s, want %s", lab, got, want)
		}
		if err := c.On(c.Device); err != nil {
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

	for key, lab := range map[string]Lab{"time_slicing": {TimeSlicing: true}, "copy_gather": {CopyGather: true}} {
		cpu := Default()
		cpu.Lab = lab
		if err := cpu.On(DeviceCPU); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("error %v does not name %s", err, key)
		}
	}
}

func TestLabFitsBatches(t *testing.T) {
	for name, row := range map[string]struct {
		size        int
		delay       time.Duration
		hangTimeout time.Duration
		words       []string
	}{
		"fits":         {4, 5 * time.Millisecond, time.Second, nil},
		"no such size": {3, 0, time.Second, []string{"is 3", "[1 2 4]"}},
		"objective":    {2, 25 * time.Millisecond, time.Second, []string{"25ms", "objective"}},
		"hang timeout": {4, 5 * time.Millisecond, 5 * time.Millisecond, []string{"5ms", "hang_timeout"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := Lab{Batching: control.Batching{Rule: control.BatchFixed, Size: row.size, Delay: row.delay}}
			err := l.FitsBatches([]int{1, 2, 4}, 25*time.Millisecond, row.hangTimeout)
			if (err == nil) != (row.words == nil) {
				t.Fatalf("error %v", err)
			}
			for _, word := range row.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("error %q does not name %q", err, word)
				}
			}
		})
	}
}
