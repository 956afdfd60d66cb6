package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/control"
)

func TestAFunctionsRowSaysHowItIs(t *testing.T) {
	serves := control.ProcessStatus{Role: control.Serve, State: control.Active, SMs: 40}
	shadow := control.ProcessStatus{Role: control.Shadow, State: control.Loaded}
	failed := control.ProcessStatus{Role: control.Serve, State: control.Starting, Reason: "no such file"}
	for _, c := range []struct {
		name string
		f    control.FunctionStatus
		says []string
	}{
		{"one that serves", control.FunctionStatus{
			Name: "face", Address: "127.0.0.1", Port: 5001, Model: "face", Version: 2, SLOMillis: 2.5, SharePercent: 30, Batching: "slab", Limit: 4.75, Replied: 85, Failed: 61,
			Instances: []control.InstanceStatus{{Processes: []control.ProcessStatus{serves, shadow}}},
		}, []string{"face", "127.0.0.1:5001", "face v2", "2.5 ms", "30.0 %, 40 SMs", "slab", "5", "85 61", "serves, a shadow stands by"}},
		{"one without a share, two instances", control.FunctionStatus{
			SharePercent: 100,
			Instances: []control.InstanceStatus{
				{Whole: true, Processes: []control.ProcessStatus{shadow}},
				{Whole: true, Processes: []control.ProcessStatus{serves, shadow}},
			},
		}, []string{"whole, 40 SMs", "1 of 2 serve, 2 shadows stand by"}},
		{"one that cannot start", control.FunctionStatus{
			Instances: []control.InstanceStatus{{Processes: []control.ProcessStatus{failed}}},
		}, []string{"does not serve (starting)"}},
	} {
		row := fmt.Sprint(functionRow(&c.f)...)
		for _, word := range c.says {
			if !strings.Contains(row, word) {
				t.Errorf("%s: %q does not say %q", c.name, row, word)
			}
		}
	}
}

func TestAReasonIsGivenOnceAndInFull(t *testing.T) {
	long := strings.Repeat("no such file; ", 40)
	failed := control.ProcessStatus{Role: control.Serve, State: control.Starting, Reason: long}
	f := control.FunctionStatus{Instances: []control.InstanceStatus{{Processes: []control.ProcessStatus{failed}}, {Processes: []control.ProcessStatus{failed, {}}}}}
	if got := reasons(&f); len(got) != 1 || got[0] != long {
		t.Errorf("%q", got)
	}
	if state := stateText(&f); strings.Contains(state, "file") {
		t.Errorf("the column says %q", state)
	}
}

func TestAnObjectiveThatCannotBeMetIsAReason(t *testing.T) {
	f := control.FunctionStatus{Bound: "objective", BoundWhy: "objective 1ms cannot be met"}
	if got := reasons(&f); len(got) != 1 || got[0] != f.BoundWhy {
		t.Errorf("reasons %q, want %q", got, f.BoundWhy)
	}
}

func TestHangsAreAReason(t *testing.T) {
	f := control.FunctionStatus{Hangs: 3, HangTimeoutMillis: 2000}
	if got := reasons(&f); len(got) != 1 || !strings.HasSuffix(got[0], "no answer after 2000 ms (hang_timeout): 3") {
		t.Errorf("reasons %q", got)
	}
	f.Hangs = 0
	if got := reasons(&f); len(got) != 0 {
		t.Errorf("reasons %q without a hang", got)
	}
}

func TestTheDeviceIsNamed(t *testing.T) {
	gpu := &control.ObservedDevice{Name: "NVIDIA H200", UUID: "GPU-1"}
	lame := &control.ObservedDevice{Name: "NVIDIA H200", UUID: "GPU-1", Why: "no MPS: it is not installed"}
	for want, s := range map[string]control.Status{
		"CPU, shares by cgroup-v2":                                       {Mechanism: "cgroup-v2"},
		"CPU, shares by nobody yet: no orchestrator has been heard":      {},
		"NVIDIA H200 (GPU-1), mps":                                       {Mechanism: "mps", Device: gpu},
		"NVIDIA H200 (GPU-1), time-slicing; no MPS: it is not installed": {Mechanism: "time-slicing", Device: lame},
	} {
		if got := deviceLine(&s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
