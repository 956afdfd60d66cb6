package bench

import (
	"encoding/json"
	"os"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/zoo"
)

func ok(at, latency time.Duration, batch int) Answered {
	return Answered{At: int64(at), Latency: int64(latency), Status: client.StatusOK, Batch: batch}
}

func TestLongestPause(t *testing.T) {
	const ms = time.Millisecond
	silence, from, to := longestPause([]Answered{
		ok(10*ms, ms, 1), ok(12*ms, ms, 1),
		{At: int64(15 * ms), Status: client.StatusFailed},
		{At: int64(40 * ms)},
		ok(50*ms, ms, 1), ok(60*ms, ms, 1),
	})
	if silence != 38*ms || from != int64(12*ms) || to != int64(50*ms) {
		t.Errorf("silent for %s from %d to %d, want 38 ms from 12 to 50", silence, from, to)
	}
	if silence, _, _ := longestPause(nil); silence != 0 {
		t.Errorf("nobody was silent for %s", silence)
	}
}

// A measurement without answers must not break the report: JSON has no NaN and no Inf.
func TestNoAnswers(t *testing.T) {
	var way ResidencyWay
	way.add(&loadgen.Report{Functions: []loadgen.FunctionReport{{}}})
	r := IngestCase{Ratio: ratio(1, 0), AllocsPerDatagram: ratio(0, 0)}
	for _, report := range []any{way, r} {
		if _, err := json.Marshal(report); err != nil {
			t.Errorf("%+v: %v", report, err)
		}
	}
}

func TestMeanBatch(t *testing.T) {
	// Four batches: one of 8 and one of 4, of which every answer arrived, and two of 1.
	all := slices.Concat(slices.Repeat([]Answered{ok(0, 0, 8)}, 8), slices.Repeat([]Answered{ok(0, 0, 4)}, 4), slices.Repeat([]Answered{ok(0, 0, 1)}, 2))
	if got := meanBatch(all); got != 14.0/4 {
		t.Errorf("mean batch %v, want 3.5", got)
	}
}

func TestSecondsAround(t *testing.T) {
	var all []Answered
	for at := range 4000 { // one answer per millisecond, slow ones from 1.8 to 2.2 s
		latency := time.Millisecond
		if at >= 1800 && at < 2200 {
			latency = 50 * time.Millisecond
		}
		all = append(all, ok(time.Duration(at)*time.Millisecond, latency, 1))
	}
	got := secondsAround(all, []int64{int64(time.Second), int64(2 * time.Second), int64(time.Hour)})
	if want := []time.Duration{time.Millisecond, 50 * time.Millisecond}; !slices.Equal(got, want) {
		t.Errorf("the seconds around 1 s, 2 s and an hour: %v, want %v and nothing", got, want)
	}
}

func TestGroupPercents(t *testing.T) {
	got := groupPercents([]int{8, 8, 16})
	if want := []float64{25, 50, 100}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A variant differs from the card only in its ladder and objective.
func TestVariants(t *testing.T) {
	for _, name := range zoo.Names() {
		card, err := (zoo.Registry{Cache: t.TempDir()}).Find(name)
		must.OK(t, err)
		file, err := testbed.Variant(t.TempDir(), card, []int{1, 8})
		must.OK(t, err)
		got, err := models.ReadCard(file)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !slices.Equal(got.Batches, []int{1, 8}) || got.SLO != 10*time.Second {
			t.Errorf("%s: batches %v, slo %s", name, got.Batches, got.SLO)
		}
		if !reflect.DeepEqual(got.Input, card.Input) || !reflect.DeepEqual(got.Outputs, card.Outputs) || got.Model != card.Model || got.Decoder.Name != card.Decoder.Name {
			t.Errorf("%s became %+v", name, got)
		}
	}
}

func TestReadThreads(t *testing.T) {
	before := readThreads(-1)
	if len(before) == 0 {
		t.Fatal("this process has no threads")
	}
	// The kernel counts in ticks of 10 ms. The loop is bounded by CPU time, not by the
	// clock, because other programs may use the CPUs.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var spent unix.Rusage
		must.OK(t, unix.Getrusage(unix.RUSAGE_THREAD, &spent))
		return time.Duration(spent.Utime.Nano() + spent.Stime.Nano())
	}
	start, until := time.Now(), used()+200*time.Millisecond
	for used() < until {
	}
	took := time.Since(start)
	busy := busiest(before, readThreads(-1), took)
	if least := 100 * 0.05 / took.Seconds(); busy.Load < least || busy.Manager != 0 || busy.IF != 0 {
		t.Errorf("%+v after spinning in pid %d for %v, want at least %.1f %%", busy, os.Getpid(), took, least)
	}
}

func TestPlanCPUs(t *testing.T) {
	p := testbed.PlanCPUs()
	if len(p.All) >= testbed.MinCPUs {
		for _, cpu := range p.Load {
			if slices.Contains(p.Node, cpu) {
				t.Errorf("CPU %d is the node's and the load's", cpu)
			}
		}
	}
	if len(p.Node) == 0 || len(p.Load) == 0 || p.Reserved >= len(p.Node) {
		t.Errorf("%+v", p)
	}
}

func TestReportMachine(t *testing.T) {
	m := testbed.ThisMachine("v0")
	if m.Date == "" || m.Penstock != "v0" || m.CPUs < 1 || m.Kernel == "" || m.Go == "" {
		t.Errorf("%+v", m)
	}
	if _, err := onnx.Library(); err == nil && m.ONNXRuntime == "" {
		t.Errorf("there is an ONNX Runtime, and its version is not told: %+v", m)
	}
}
