package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/research/bench"
	"github.com/penstock/penstock/research/evaluate"
	"github.com/penstock/penstock/shm/cpuset"
)

// The examples in `penstock-lab evaluate --help` are valid commands.
func TestEvaluateExamples(t *testing.T) {
	examples := strings.Split(evaluateCommand(nil).Example, "\n")
	for _, example := range examples {
		words := strings.Fields(example)
		if len(words) < 2 || strings.Join(words[:2], " ") != "penstock-lab evaluate" {
			t.Fatalf("%q is no call of penstock-lab evaluate", example)
		}
		cmd := evaluateCommand(nil)
		if err := cmd.ParseFlags(words[2:]); err != nil {
			t.Errorf("%q: %v", example, err)
			continue
		}
		given, err := cmd.Flags().GetStringSlice("figure")
		must.OK(t, err)
		if _, err := figureNames(given); err != nil {
			t.Errorf("%q: %v", example, err)
		}
	}
}

func TestFigureNames(t *testing.T) {
	all := evaluate.Names()
	for given, want := range map[string][]string{"fig16,fig1,fig16": {"fig16", "fig1"}, "all": all, "fig16,all": all} {
		got, err := figureNames(strings.Split(given, ","))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("--figure %s: %v, %v, want %v", given, got, err, want)
		}
	}
}

// An invalid list of CPUs is reported before anything is pinned.
func TestMissingCPUs(t *testing.T) {
	before, err := cpuset.Allowed()
	must.OK(t, err)
	absent := before[len(before)-1] + 1
	want := fmt.Sprintf("CPU %d is not here: this process may use %s", absent, cpuset.Format(before))
	if err := keepTo(cpuset.Format([]int{before[0], absent})); err == nil || err.Error() != want {
		t.Errorf("says %v, want %s", err, want)
	}
	if after, err := cpuset.Allowed(); err != nil || !slices.Equal(after, before) {
		t.Errorf("may use %v, %v, want %v as before", after, err, before)
	}
}

// The error for an unknown device name lists the possible names, not what this machine
// lacks.
func TestDeviceErrors(t *testing.T) {
	for _, name := range []string{"nope", "auto", "cuda:x", "cuda:1x", "gpu-1"} {
		cmd := evaluateCommand(nil)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs([]string{"--figure", "fig16", "--device", name, "--out", t.TempDir()})
		want := "--device " + name + ": want cuda, cuda:N, a GPU's UUID (nvidia-smi -L), or cpu"
		if err := cmd.Execute(); err == nil || err.Error() != want {
			t.Errorf("says %v, want %s", err, want)
		}
	}
}

// If the limit of a call is too short, the message has the necessary limit.
func TestNothingMeasured(t *testing.T) {
	o := evaluate.Options{Setup: bench.Setup{Setup: testbed.Setup{Device: "cpu"}}, Out: t.TempDir(), Runs: 1, Quick: true, Limit: time.Millisecond}
	figures := []string{"fig11", "table5"}
	o.Figure = "table5"
	p, err := evaluate.Prepare(o)
	must.OK(t, err)
	want := fmt.Sprintf("the next takes about %v", p.Next.Round(time.Second))
	if line := nothingMeasured(o, figures, nil); !strings.Contains(line, "no measurement was made within --limit 1ms") || !strings.HasSuffix(line, want) {
		t.Errorf("says %q, want %q at its end", line, want)
	}
	if line := nothingMeasured(o, figures, []*evaluate.Report{{Tried: 0}, {Tried: 1}}); line != "" {
		t.Errorf("a call that measured says %q", line)
	}
}
