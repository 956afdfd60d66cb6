package functions

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen/tabular"
)

func TestFunctionRow(t *testing.T) {
	serves := control.ProcessStatus{Role: control.Serve, State: control.Active, SMs: 40}
	shadow := control.ProcessStatus{Role: control.Shadow, State: control.Loaded}
	failed := control.ProcessStatus{Role: control.Serve, State: control.Starting, Reason: "no such file"}
	for _, c := range []struct {
		name string
		f    control.FunctionStatus
		says []string
	}{
		{"one that serves", control.FunctionStatus{
			Name: "face", Address: "127.0.0.1", Port: 5001, Model: "face", Version: 2, SLOMillis: 2.5, SharePercent: 30, Limit: 4.75, Replied: 85, Failed: 61,
			Instances: []control.InstanceStatus{{Processes: []control.ProcessStatus{serves, shadow}}},
		}, []string{"face", "127.0.0.1:5001", "face v2", "2.5 ms", "30.0 %, 40 SMs", "5", "85 61", "serves, shadow ready"}},
		{"one without a share, two instances", control.FunctionStatus{
			SharePercent: 100,
			Instances: []control.InstanceStatus{
				{WholeDevice: true, Processes: []control.ProcessStatus{shadow}},
				{WholeDevice: true, Processes: []control.ProcessStatus{serves, shadow}},
			},
		}, []string{"whole, 40 SMs", "1 of 2 serve, 2 shadows ready"}},
		{"one that cannot start", control.FunctionStatus{
			Instances: []control.InstanceStatus{{Processes: []control.ProcessStatus{failed}}},
		}, []string{"does not serve (starting)"}},
	} {
		row := strings.Join(functionRow(&c.f), " ")
		for _, word := range c.says {
			if !strings.Contains(row, word) {
				t.Errorf("%s: %q does not say %q", c.name, row, word)
			}
		}
	}
}

// The column of workers is there only if some function has one.
func TestWorkerColumn(t *testing.T) {
	serves := []control.InstanceStatus{{Processes: []control.ProcessStatus{{Role: control.Serve, State: control.Active}}}}
	s := control.Status{Functions: []control.FunctionStatus{{Name: "face", Instances: serves}, {Name: "fashion", Instances: serves}}}
	text := func() string {
		var b strings.Builder
		Write(&b, &s, 0)
		return b.String()
	}
	if got := text(); strings.Contains(got, "worker") {
		t.Errorf("without a worker:\n%s", got)
	}
	s.Functions[1].Worker = "cold"
	got := text()
	for _, word := range []string{"worker", "own process", "cold"} {
		if !strings.Contains(got, word) {
			t.Errorf("the table lacks %q:\n%s", word, got)
		}
	}
	if strings.Contains(got, "load") {
		t.Errorf("loads of a worker without a limit:\n%s", got)
	}
	s.Functions[1].Residency = &control.Residency{State: control.Evicted, Loads: 120, LastLoadMillis: 14}
	s.Workers = []control.WorkerStatus{{Name: "cold", Thrashing: true, NeededBytes: 12<<20 - 1}, {Name: "warm", MemoryBytes: 1 << 20}}
	got = text()
	for _, word := range []string{"cold, evicted", "loads", "120", "last load", "14.0 ms", "worker cold: thrashing", "`memory: 12MiB` would end that"} {
		if !strings.Contains(got, word) {
			t.Errorf("the table lacks %q:\n%s", word, got)
		}
	}
	if strings.Contains(got, "warm") {
		t.Errorf("worker warm is not thrashing:\n%s", got)
	}
}

func TestForeignLine(t *testing.T) {
	for percent, want := range map[float64][]string{4: nil, 43: {"other programs use 43 % of the CPUs; requests wait for them"}} {
		if got := nodeLines(&control.Status{ForeignCPUPercent: percent}); !slices.Equal(got, want) {
			t.Errorf("%v %%: %q, want %q", percent, got, want)
		}
	}
}

func TestFunctionColumns(t *testing.T) {
	f := control.FunctionStatus{
		Name: "fashion", Address: "127.0.0.1", Port: 5002, Model: "fashion", Version: 1, SLOMillis: 400, SharePercent: 33.3, Limit: 16, Replied: 12345678,
		Instances: []control.InstanceStatus{{Processes: []control.ProcessStatus{{Role: control.Serve, State: control.Active}, {Role: control.Shadow, State: control.Loaded}}}},
	}
	got := tabular.Render(80, functionColumns(false), [][]string{functionRow(&f)})
	first, second, _ := strings.Cut(got, "╰")
	for _, word := range []string{"serves, shadow ready", "400 ms", "33.3 %", "12345678", "failed", "lost"} {
		if !strings.Contains(first, word) {
			t.Errorf("the first table lacks %q", word)
		}
	}
	if !strings.Contains(second, "127.0.0.1:5002") || strings.Count(got, "╭") != 2 {
		t.Error("want two tables, the second with the address")
	}
	if t.Failed() {
		t.Logf("\n%s", got)
	}
}

func TestReasonOnce(t *testing.T) {
	long := strings.Repeat("no such file; ", 40)
	failed := control.ProcessStatus{Role: control.Serve, State: control.Starting, Reason: long}
	f := control.FunctionStatus{Instances: []control.InstanceStatus{{Processes: []control.ProcessStatus{failed}}, {Processes: []control.ProcessStatus{failed, {}}}}}
	if got := reasons(&f); len(got) != 1 || got[0] != long {
		t.Errorf("%q", got)
	}
	if state := State(&f); strings.Contains(state, "file") {
		t.Errorf("the column says %q", state)
	}
}

func TestReasonObjective(t *testing.T) {
	f := control.FunctionStatus{Bound: "objective", BoundWhy: "objective 1ms cannot be met"}
	if got := reasons(&f); len(got) != 1 || got[0] != f.BoundWhy {
		t.Errorf("reasons %q, want %q", got, f.BoundWhy)
	}
}

// A camera that was corrected needs no attention.
func TestReasonRefused(t *testing.T) {
	f := control.FunctionStatus{Camera: &control.CameraStatus{Refused: 3, RefusedWhy: "it is too wide"}}
	if got := reasons(&f); len(got) != 1 || got[0] != "pictures of cameras refused: 3; the latest because it is too wide" {
		t.Errorf("reasons %q", got)
	}
	f.Camera.RefusedWhy = ""
	if got := reasons(&f); len(got) != 0 {
		t.Errorf("reasons %q, want none", got)
	}
}

func TestReasonHangs(t *testing.T) {
	f := control.FunctionStatus{Hangs: 3, HangTimeoutMillis: 2000}
	if got := reasons(&f); len(got) != 1 || !strings.HasSuffix(got[0], "no answer after 2000 ms (hang_timeout): 3") {
		t.Errorf("reasons %q", got)
	}
	f.Hangs = 0
	if got := reasons(&f); len(got) != 0 {
		t.Errorf("reasons %q without a hang", got)
	}
}

func TestReasonFailure(t *testing.T) {
	failed := &control.ProcessFailure{Generation: 3, PID: 4711, At: time.Now().Add(-12 * time.Second), Reason: "killed by signal 9 (not by Penstock)"}
	f := control.FunctionStatus{Instances: []control.InstanceStatus{{}, {LastFailure: failed}}}
	const want = "process 4711 (generation 3) failed 12s ago: killed by signal 9 (not by Penstock)"
	if got := reasons(&f); len(got) != 1 || got[0] != want {
		t.Errorf("reasons %q, want %q", got, want)
	}
}

func TestDeviceLine(t *testing.T) {
	gpu := &control.GPU{Name: "NVIDIA H200", UUID: "GPU-1"}
	flat := &control.GPU{Name: "NVIDIA H200", UUID: "GPU-1", Priorities: &control.StreamPriorities{}}
	lame := &control.GPU{Name: "NVIDIA H200", UUID: "GPU-1", Why: "no MPS: it is not installed"}
	for want, d := range map[string]control.DeviceStatus{
		"CPU, shared by cgroup-v2":                                                {Mechanism: "cgroup-v2"},
		"not known yet: no orchestrator has reported it":                          {},
		"NVIDIA H200 (GPU-1), mps":                                                {Mechanism: "mps", GPU: gpu},
		"NVIDIA H200 (GPU-1), time-slicing; no MPS: it is not installed":          {Mechanism: "time-slicing", GPU: lame},
		"NVIDIA H200 (GPU-1), mps; stream priorities do not hold, policy: gslice": {Mechanism: "mps", GPU: flat},
		"lost: NVML: GPU is lost":                                                 {Mechanism: "mps", GPU: gpu, Lost: "NVML: GPU is lost"},
	} {
		s := control.Status{Policy: "gslice", Devices: []control.DeviceStatus{d}}
		if got := deviceLines(&s); len(got) != 1 || got[0] != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Functions are grouped by device, and each device has a bar.
func TestSeveralDevices(t *testing.T) {
	on := func(name string, devices ...string) (f control.FunctionStatus) {
		f.Name, f.Guarantee = name, &control.GuaranteeStatus{}
		for _, d := range devices {
			f.Instances = append(f.Instances, control.InstanceStatus{Device: d, UsePercent: 30, SharePercent: 10})
		}
		return f
	}
	s := control.Status{
		Policy: "guarantee", Devices: []control.DeviceStatus{{Name: "cuda:1", Mechanism: "mps", GPU: &control.GPU{Name: "NVIDIA H200", UUID: "GPU-1"}, NeedsPercent: 120}, {Name: "cpu", Mechanism: "cgroup-v2"}},
		Functions: []control.FunctionStatus{on("late", "cpu"), on("both", "cuda:1", "cpu", "cuda:1"), on("first", "cuda:1")},
	}
	var b strings.Builder
	Write(&b, &s, 0)
	last := -1
	for _, want := range []string{
		"cuda:1  ██████████████████░░  90 %  NVIDIA H200 (GPU-1), mps\n", "cpu     ████████████░░░░░░░░  60 %  CPU, shared by cgroup-v2\n",
		"device", "both", "cuda:1, cpu", "first", "late", "overload: functions need 120 % of cuda:1\n",
	} {
		at := strings.Index(b.String(), want)
		if at <= last {
			t.Errorf("%q is not there or too early in\n%s", want, b.String())
		}
		last = at
	}
	s.Policy = "gslice"
	if line := deviceLines(&s)[0]; !strings.Contains(line, " 30 % ") {
		t.Errorf("%q, want the sum of shares", line)
	}
}

func TestConfigurationLines(t *testing.T) {
	s := control.Status{
		Configuration: control.ConfigurationStatus{File: "/etc/node.yaml", Error: "node.yaml:3:1: no", Since: time.Now(), NeedRestart: []string{"listen", "http"}},
		Functions:     []control.FunctionStatus{{Name: "a"}, {Name: "b", Unsaved: control.UnsavedAdded}, {Name: "c", Unsaved: control.UnsavedChanged}},
	}
	got := strings.Join(configurationLines(&s), "\n")
	for _, want := range []string{"b: unsaved: added", "c: unsaved: changed", "/etc/node.yaml: edits are ignored since", "node.yaml:3:1: no", "listen, http: restart the node to apply"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q does not name %q", got, want)
		}
	}
	if got := configurationLines(&control.Status{Functions: []control.FunctionStatus{{Name: "a"}}}); len(got) != 0 {
		t.Errorf("%q, want nothing: all is as in the file", got)
	}
}

func TestGuaranteeColumns(t *testing.T) {
	f := control.FunctionStatus{Name: "face", Guarantee: &control.GuaranteeStatus{
		Percent: 30, UsePercent: 45.25, DemotedPercent: 15.25, Level: 3,
		Infeasible: "one batch takes 30ms, and the objective allows 25ms", Unprotected: control.UnprotectedByFramework,
	}}
	got := tabular.Render(200, functionColumns(true), [][]string{functionRow(&f)})
	for _, want := range []string{"guarantee", "use", "demoted", "30.0 %", "45.2 %", "15.2 %"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if why := strings.Join(reasons(&f), "\n"); !strings.Contains(why, "objective is not guaranteed: one batch") || !strings.Contains(why, "unprotected: its framework") {
		t.Errorf("reasons\n%s", why)
	}
	f.Guarantee.Unprotected = control.UnprotectedByPriorities
	if why := strings.Join(reasons(&f), "\n"); !strings.Contains(why, "unprotected: stream priorities do not hold") {
		t.Errorf("reasons\n%s", why)
	}
}

func TestOverloadWarning(t *testing.T) {
	s := control.Status{Devices: []control.DeviceStatus{{NeedsPercent: 130}}, Functions: []control.FunctionStatus{
		{Name: "a", Guarantee: &control.GuaranteeStatus{}}, {Name: "b", Guarantee: &control.GuaranteeStatus{Infeasible: "it needs 70 %"}},
	}}
	if got := strings.Join(nodeLines(&s), "\n"); !strings.Contains(got, "functions need 130 % of the device; not guaranteed: b") {
		t.Errorf("lines %q", got)
	}
	s.Functions[1].Guarantee.Infeasible = ""
	if got, want := OverloadWarning(&s), "overload: functions need 130 % of the device"; got != want {
		t.Errorf("%q while all are guaranteed, want %q", got, want)
	}
	if s.Devices[0].NeedsPercent = 100; OverloadWarning(&s) != "" {
		t.Errorf("%q at 100 %%", OverloadWarning(&s))
	}
}
