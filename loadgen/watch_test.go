package loadgen_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/loadfake"
	"github.com/penstock/penstock/loadgen"
)

// dead returns a system that loses the requests numbered from <= n < to.
func dead(from, to int) *loadfake.System {
	return &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
		return loadfake.Outcome{Lost: r.Number >= from && r.Number < to}
	}}
}

func TestLostRequests(t *testing.T) {
	report := run(t, constant(t, 50, 10*time.Second), dead(100, 200))
	if faults := report.Faults(); len(faults) != 1 || faults[0] != "face: 100 of 500 requests were not answered" {
		t.Errorf("faults %q", faults)
	}
}

func TestNeverAnswered(t *testing.T) {
	report := run(t, constant(t, 2, time.Second), dead(0, 1e6))
	if faults := report.Faults(); len(faults) != 1 || faults[0] != "face: none of 2 requests was answered" {
		t.Errorf("faults %q", faults)
	}
}

// restarting makes a manager that stops answering for some status requests; then another manager
// takes its place.
func restarting(o *loadgen.Options) {
	asked := 0
	o.Status = func(context.Context) (control.Status, error) {
		asked++
		if asked > 5 && asked < 10 {
			return control.Status{}, errors.New("connection refused")
		}
		return control.Status{Functions: []control.FunctionStatus{{Name: "face", Accepted: uint64(1000 - 99*asked)}}}, nil
	}
}

// TestManagerDied checks that a dead manager is a fault if requests were not answered.
func TestManagerDied(t *testing.T) {
	report := run(t, constant(t, 10, 10*time.Second), dead(20, 30), restarting)
	want := "face: 10 of 100 requests were never answered, and the manager's counters restarted: it died, or the function was removed and added"
	if faults := report.Faults(); len(faults) != 1 || faults[0] != want {
		t.Errorf("faults %q, want %q", faults, want)
	}
	report = run(t, constant(t, 10, 10*time.Second), &loadfake.System{}, restarting)
	if faults := report.Faults(); len(faults) != 0 || !report.Functions[0].Restarted {
		t.Errorf("a manager that was replaced between two requests: %q", faults)
	}
}

// counting makes a manager whose counters of accepted and lost requests depend on how often it
// was asked.
func counting(accepted, lost func(asked int) uint64, there func(asked int) bool) func(*loadgen.Options) {
	asked := 0
	return func(o *loadgen.Options) {
		o.Status = func(context.Context) (control.Status, error) {
			asked++
			if !there(asked) {
				return control.Status{}, nil
			}
			return control.Status{Functions: []control.FunctionStatus{{Name: "face", Accepted: accepted(asked), Lost: lost(asked)}}}, nil
		}
	}
}

// TestFunctionRestarted: no two consecutive answers show that its
// counters fell. Requests lost since the restart are more than those lost before.
func TestFunctionRestarted(t *testing.T) {
	report := run(t, constant(t, 10, 10*time.Second), dead(20, 30), counting(
		func(asked int) uint64 { return uint64(1000 - 99*(asked/10)) }, func(int) uint64 { return 7 },
		func(asked int) bool { return asked < 8 || asked > 12 }))
	f := report.Functions[0]
	if !f.Restarted || f.Removed || f.Lost == nil || *f.Lost != 7 {
		t.Errorf("restarted %v, removed %v, lost %v", f.Restarted, f.Removed, f.Lost)
	}
	if faults := report.Faults(); len(faults) != 2 || !strings.Contains(faults[0], "restarted") || faults[1] != "face: 7 accepted requests were never answered" {
		t.Errorf("faults %q", faults)
	}
}

// TestManagerReplaced: this holds even if the previous manager had
// counted nothing yet.
func TestManagerReplaced(t *testing.T) {
	for name, before := range map[string]uint64{"counted": 1, "counted nothing": 0} {
		asked, started := 0, time.Now()
		report := run(t, constant(t, 10, 5*time.Second), dead(5, 8), func(o *loadgen.Options) {
			o.Status = func(context.Context) (control.Status, error) {
				asked++
				f := control.FunctionStatus{Name: "face", Accepted: before, Lost: before}
				if asked > 3 {
					f.Accepted, f.Lost = uint64(asked), 2
					return control.Status{Started: started.Add(time.Second), Functions: []control.FunctionStatus{f}}, nil
				}
				return control.Status{Started: started, Functions: []control.FunctionStatus{f}}, nil
			}
		})
		faults := report.Faults()
		if len(faults) != 2 || !strings.HasPrefix(faults[0], "face: 3 of 50 requests were never answered, and the manager's counters restarted") || faults[1] != "face: 2 accepted requests were never answered" {
			t.Errorf("%s: faults %q", name, faults)
		}
	}
}

// TestFunctionAddedAgain: the manager is the same, so the counters of
// other functions stay valid.
func TestFunctionAddedAgain(t *testing.T) {
	for added, want := range map[string]bool{"face": true, "other": false} {
		counts, started := map[string]uint64{"face": 500, "other": 500}, time.Now()
		report := run(t, constant(t, 10, 5*time.Second), dead(5, 8), func(o *loadgen.Options) {
			o.Status = func(context.Context) (control.Status, error) {
				counts[added]--
				return control.Status{Started: started, Functions: []control.FunctionStatus{
					{Name: "face", Accepted: counts["face"]}, {Name: "other", Accepted: counts["other"]},
				}}, nil
			}
		})
		if got := report.Functions[0].Restarted; got != want {
			t.Errorf("%s was added anew: restarted is %v of face, want %v", added, got, want)
		}
	}
}

// TestFunctionRemoved checks that a removed function is a fault if requests were not answered.
func TestFunctionRemoved(t *testing.T) {
	gone := func() func(*loadgen.Options) {
		return counting(func(asked int) uint64 { return uint64(asked) }, func(int) uint64 { return 0 }, func(asked int) bool { return asked < 18 })
	}
	report := run(t, constant(t, 10, 10*time.Second), dead(90, 1e6), gone())
	want := "face: 10 of 100 requests were never answered, and the node no longer has this function"
	if faults := report.Faults(); !slices.Contains(faults, want) || report.Functions[0].Restarted {
		t.Errorf("faults %q, want %q", faults, want)
	}
	if faults := run(t, constant(t, 10, 10*time.Second), &loadfake.System{}, gone()).Faults(); len(faults) != 0 {
		t.Errorf("faults %q", faults)
	}
}

// TestLastPollRetried: one request may fail because the machine is busy.
func TestLastPollRetried(t *testing.T) {
	asked := 0
	report := run(t, constant(t, 10, 100*time.Millisecond), &loadfake.System{}, func(o *loadgen.Options) {
		o.Status = func(context.Context) (control.Status, error) {
			if asked++; asked == 2 {
				return control.Status{}, errors.New("timeout")
			}
			return control.Status{Functions: []control.FunctionStatus{{Name: "face"}}}, nil
		}
	})
	if asked != 3 || report.ManagerError != "" {
		t.Errorf("asked %d times: %q", asked, report.ManagerError)
	}
}
