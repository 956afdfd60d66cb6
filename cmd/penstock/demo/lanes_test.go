package demo

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/wire"
)

func TestLanesConfig(t *testing.T) {
	c, err := configs.Decode("lanes.yaml", []byte(lanesConfig()))
	must.OK(t, err)
	count := map[string]int{}
	for _, f := range c.Functions {
		count[f.Model]++
	}
	if len(c.Functions) != 42 || count["face"] != 20 || count["fashion"] != 20 || count["detect"] != 2 {
		t.Errorf("%d functions: %v", len(c.Functions), count)
	}
	rates, sum := lanesRates(), 0.0
	for _, f := range c.Functions {
		rate, err := strconv.ParseFloat(rates[f.Name], 64)
		if err != nil || rate <= 0 {
			t.Errorf("%s has a rate of %q: %v", f.Name, rates[f.Name], err)
		}
		sum += rate
	}
	if len(rates) != 42 || math.Abs(sum-lanesRate) > 0.1 {
		t.Errorf("%d rates with a sum of %v, want %v", len(rates), sum, lanesRate)
	}
	if first := laneFunctions()[0]; first != lanesMoved {
		t.Errorf("%s has the most requests, want %s", first, lanesMoved)
	}
}

func TestLaneLine(t *testing.T) {
	results := make([]uint64, wire.NumStatuses)
	results[wire.StatusLate] = 3
	s := control.Sample{
		Status: control.Status{Functions: []control.FunctionStatus{
			{Name: "face-1", Worker: "cold", Residency: &control.ResidencyStatus{State: control.Running, Loads: 2, Evictions: 1}},
			{Name: "face-2", Worker: "cold", Residency: &control.ResidencyStatus{State: control.Evicted, Loads: 4, Evictions: 4}},
			{Name: "fashion-1"},
		}},
		Functions: []control.FunctionSample{{Results: results}, {Results: results}, {}},
	}
	if got, want := laneLine(12*time.Second, &s), " 12 s left │ 2 of 3 models resident │ 6 loads, 5 evictions │ 6 late"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPrintLanes(t *testing.T) {
	one := uint64(1)
	status := control.Status{Functions: []control.FunctionStatus{
		{Name: "face-1", Residency: &control.ResidencyStatus{Bytes: 3 << 20, Loads: 2, Evictions: 1, LastLoadMillis: 10}},
		{Name: "face-2", Residency: &control.ResidencyStatus{Bytes: 2 << 20, Loads: 4, Evictions: 3, LastLoadMillis: 20}},
	}}
	report := loadgen.Report{Functions: []loadgen.FunctionReport{
		{Name: "face-1", Sent: 100, OK: 90, InTime: 85, Late: 10, Dropped: 2},
		{Name: "face-2", Sent: 300, OK: 292, InTime: 290, Failed: 7, Unanswered: 1, Lost: &one, Wrong: 2},
	}}
	var out strings.Builder
	printLanes(&out, &status, &report)
	for _, want := range []string{
		"│ model   │ sent │ in time │ too late │ late │ dropped │ failed │ lost │",
		"│ face    │  400 │     375 │        7 │    8 │       2 │      7 │    1 │",
		"│ fashion │    0 │       0 │        0 │    0 │       0 │      0 │    0 │",
		"of the 5 MiB that the models take: 6 loads, 4 evictions.", "1 requests lost, 2 answers wrong.",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestLanesErrors(t *testing.T) {
	one := uint64(1)
	for _, c := range []struct {
		name     string
		function loadgen.FunctionReport
		want     string
	}{
		{"unanswered", loadgen.FunctionReport{Name: "face-1", Sent: 3, Unanswered: 3}, "face-1: 3 of 3 requests were not answered"},
		{"lost", loadgen.FunctionReport{Name: "face-1", Lost: &one}, "face-1: 1 accepted requests were never answered"},
		{"wrong", loadgen.FunctionReport{Name: "face-1", Checked: 3, Wrong: 2}, "face-1: 2 of 3 answers differ"},
		{"manager died", loadgen.FunctionReport{Name: "face-1", Restarted: true}, "the manager died"},
	} {
		t.Run(c.name, func(t *testing.T) {
			report := loadgen.Report{Functions: []loadgen.FunctionReport{c.function, {Name: "other", OK: 1}}}
			if got := strings.Join(lanesErrors(&report), "\n"); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	late := loadgen.Report{Functions: []loadgen.FunctionReport{{Name: "face-1", Sent: 3, Late: 3, Dropped: 3}}}
	if got := lanesErrors(&late); len(got) > 0 {
		t.Errorf("all requests are late: %q", got)
	}
	report := loadgen.Report{ManagerError: "refused", Functions: []loadgen.FunctionReport{{Name: "face-1", Sent: 3, Unanswered: 3}}}
	got := strings.Join(lanesErrors(&report), "\n")
	for _, want := range []string{"cannot count lost requests: refused", "no request was answered"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The moves begin after a third of the time, once, and an error stops the run.
func TestLaneMoves(t *testing.T) {
	m := laneMoves{dir: t.TempDir(), pause: time.Second, ended: make(chan error, 1)}
	stopped := make(chan struct{})
	m.begin(t.Context(), lanesWarmup, func() { t.Error("stopped") })
	if err := m.wait(); err != nil || m.begun {
		t.Errorf("before their time: %v, begun %v", err, m.begun)
	}
	for range 2 {
		m.begin(t.Context(), lanesWarmup+time.Second, func() { close(stopped) })
	}
	<-stopped
	if err := m.wait(); err == nil {
		t.Error("a move without a node succeeded")
	}
}
