package functions

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/wire"
)

// sampleAt is a sample of a node with the function face, which answers 100 requests per second in 1 to
// 2 ms, and fashion, which answers none.
func sampleAt(second int) control.Sample {
	at := time.Unix(int64(second), 0)
	n := uint64(100 * second)
	stages := make([]control.StageSample, len(control.StageNames))
	stages[queueStage] = control.StageSample{Seconds: 0.25e-3 * float64(n), Count: n}
	serving := []control.InstanceStatus{{Processes: []control.ProcessStatus{{Role: control.Serve, State: control.Active}}}}
	return control.Sample{
		At: at, BoundsMillis: []float64{1, 2, 4},
		Status: control.Status{Devices: []control.DeviceStatus{{Name: "cpu", Mechanism: "cgroup-v2"}}, Functions: []control.FunctionStatus{
			{Name: "fashion", SLOMillis: 10, Instances: serving, Guarantee: &control.GuaranteeStatus{}},
			{Name: "face", SLOMillis: 25, Instances: serving, InFlight: 3, Guarantee: &control.GuaranteeStatus{Percent: 30, UsePercent: 45, DemotedPercent: 15}},
		}},
		Functions: []control.FunctionSample{
			{Name: "fashion", Latency: make([]uint64, 4), Results: make([]uint64, wire.NumStatuses)},
			{Name: "face", Latency: []uint64{0, n, 0, 0}, Stages: stages, Ran: n, BatchSum: 4 * float64(n), Results: append([]uint64{n}, make([]uint64, wire.NumStatuses-1)...)},
		},
	}
}

func near(got, want float64) bool { return math.Abs(got-want) < 1e-6*math.Max(1, math.Abs(want)) }

func TestLive(t *testing.T) {
	before, after := sampleAt(10), sampleAt(12)
	live := NewLive(&before, &after)
	if live.Seconds != 2 || len(live.Functions) != 2 {
		t.Fatalf("live %+v", live)
	}
	if f := live.Functions[0]; f.P99Millis != nil || f.RequestsPerSecond != 0 || f.Problem != "" {
		t.Errorf("idle function %+v", f)
	}
	f := live.Functions[1]
	if f.P99Millis == nil || !near(*f.P99Millis, 1.99) || !near(*f.P50Millis, 1.5) {
		t.Errorf("p50 %v, p99 %v, want 1.5 and 1.99", f.P50Millis, f.P99Millis)
	}
	if !near(f.RequestsPerSecond, 100) || !near(f.QueueMillis, 0.25) || !near(f.Batch, 4) || f.Results["ok"] != 200 {
		t.Errorf("function %+v", f)
	}
	if f.GuaranteePercent != 30 || f.UsePercent != 45 || f.DemotedPercent != 15 || f.InFlight != 3 || !f.Serving {
		t.Errorf("function %+v", f)
	}
}

func TestLiveProblem(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(s *control.Sample)
		want   string
	}{
		{"none", func(*control.Sample) {}, ""},
		{"not serving", func(s *control.Sample) { s.Status.Functions[1].Instances = make([]control.InstanceStatus, 1) }, "not all of its instances serve"},
		{"lost", func(s *control.Sample) { s.Status.Functions[1].Lost = 2 }, "2 requests lost"},
		{"slow", func(s *control.Sample) { s.Status.Functions[1].SLOMillis = 1.5 }, "p99 is 1.99 ms, the objective 1.50 ms"},
		{"one late of many", func(s *control.Sample) { s.Functions[1].Results[wire.StatusLate]++ }, ""},
		{"late", func(s *control.Sample) { s.Functions[1].Results[wire.StatusLate] += 9 }, "requests not answered ok: 9 late"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, after := sampleAt(10), sampleAt(12)
			c.change(&after)
			live := NewLive(&before, &after)
			if got := live.Functions[1].Problem; got != c.want {
				t.Errorf("problem %q, want %q", got, c.want)
			}

			if first := live.Lines(0)[4]; strings.HasPrefix(first, "│ ! face ") != (c.want != "") {
				t.Errorf("first row %q", first)
			}
		})
	}
}

func TestLiveLines(t *testing.T) {
	before, after := sampleAt(10), sampleAt(12)
	after.Status.Functions[1].BoundWhy = "a reason\nof two lines \x1b[2J"
	live := NewLive(&before, &after)
	all := live.Lines(0)
	for i, want := range []string{"CPU, shared by cgroup-v2; last 2.0 s", "", "state", "", "fashion", "face", "", "face: a reason of two lines  [2J"} {
		if i >= len(all) || !strings.Contains(all[i], want) {
			t.Errorf("lines %+v, want %q in line %d", all, want, i)
		}
	}
	after.Status.Functions[1].Worker, after.Status.Functions[1].Residency = "cold", &control.Residency{State: control.Resident}
	after.Status.Workers = []control.WorkerStatus{{Name: "cold", Thrashing: true, NeededBytes: 1}}
	live = NewLive(&before, &after)
	all = live.Lines(0)
	for i, want := range []string{"", "", "worker", "", "own process", "cold, resident", "", "worker cold: thrashing"} {
		if i >= len(all) || !strings.Contains(all[i], want) {
			t.Errorf("lines %+v, want %q in line %d", all, want, i)
		}
	}
	for width := 1; width < 140; width++ {
		lines := live.Lines(width)
		for _, line := range lines {
			if n := text.StringWidthWithoutEscSequences(line); n > width {
				t.Errorf("width %d: %q has %d columns", width, line, n)
			}
		}
		if width > 25 && !strings.Contains(lines[2], "p99 ms") {
			t.Errorf("width %d: %q lacks p99", width, lines[2])
		}
	}
}

func TestWindow(t *testing.T) {
	w := Window{Length: 5 * time.Second}
	if live := w.Add(sampleAt(0)); live.Seconds != 0 || !strings.Contains(live.Lines(0)[0], "measuring") {
		t.Errorf("first sample: %+v", live)
	}
	for second := 1; second < 20; second++ {
		live := w.Add(sampleAt(second))
		if want := float64(min(second, 5)); live.Seconds != want || !near(live.Functions[1].RequestsPerSecond, 100) {
			t.Errorf("sample %d: %v s, %v requests per second; want %v s, 100", second, live.Seconds, live.Functions[1].RequestsPerSecond, want)
		}
	}
	other := sampleAt(20)
	other.Status.Started = time.Unix(19, 0)
	if live := w.Add(other); live.Seconds != 0 {
		t.Errorf("sample of another manager is compared with %v s before", live.Seconds)
	}
}
