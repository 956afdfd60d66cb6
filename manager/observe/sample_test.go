package observe

import (
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// timesOf is a request that ran for that long and was answered at a time.
func timesOf(sent int64, infer time.Duration, s wire.Status) *datapath.Times {
	t := &datapath.Times{RequestID: uint32(infer / time.Millisecond), Status: s, Batch: 2, Sent: sent, Released: sent}
	t.Inferred = sent
	t.Gathered = sent - int64(infer)
	t.Dispatched, t.Complete, t.Received, t.FirstFragment = t.Gathered, t.Gathered, t.Gathered, t.Gathered
	return t
}

func TestOutliers(t *testing.T) {
	var o outliers
	now := int64(time.Hour)
	for i := range 100 { // the slowest are in the middle
		o.note(timesOf(now, time.Duration(min(i, 99-i))*time.Millisecond, wire.StatusOK))
	}
	o.note(timesOf(now, time.Second, wire.StatusLate))
	o.note(timesOf(now, 2*time.Second, wire.StatusFailed))

	clock := time.Unix(1000, 0)
	got := o.list(now, clock)
	if len(got) != outliersKept+2 {
		t.Fatalf("%d outliers, want %d", len(got), outliersKept+2)
	}
	for _, x := range got[:outliersKept] {
		if x.Request < 46 || x.Status != "ok" || x.StagesMicros[stageInfer] != float64(x.Request)*1000 {
			t.Errorf("outlier %+v, want one of 46 ms or more", x)
		}
		if want := clock.Add(-time.Duration(x.Request) * time.Millisecond); !x.Began.Equal(want) {
			t.Errorf("began at %v, want %v", x.Began, want)
		}
	}
	if got[outliersKept].Status != "late" || got[outliersKept+1].Status != "failed" {
		t.Errorf("outliers %+v", got[outliersKept:])
	}

	// One window later they are still there, and after two they are gone.
	now += int64(outlierWindow) + 1
	o.note(timesOf(now, time.Millisecond, wire.StatusOK))
	if n := len(o.list(now, clock)); n != outliersKept+3 {
		t.Errorf("%d outliers after one window, want %d", n, outliersKept+3)
	}
	now += 2*int64(outlierWindow) + 1
	if n := len(o.list(now, clock)); n != 0 {
		t.Errorf("%d outliers after silence, want none", n)
	}
	o.note(timesOf(now, time.Millisecond, wire.StatusOK))
	if n := len(o.list(now, clock)); n != 1 {
		t.Errorf("%d outliers after the first new request, want it alone", n)
	}
	if n := testing.AllocsPerRun(100, func() { o.note(timesOf(now, time.Second, wire.StatusOK)) }); n != 0 {
		t.Errorf("%v allocations per request", n)
	}
}

func TestNewSample(t *testing.T) {
	h := New(func() (Snapshot, error) { return Snapshot{}, nil }).Of("a")
	h.Answered(timesOf(shm.Now(), 7*time.Millisecond, wire.StatusOK))
	s := NewSample(Snapshot{Status: control.Status{Functions: []control.FunctionStatus{{Name: "a"}}}, Functions: []Function{{Histograms: h, Picture: 3}}})
	if len(s.Functions) != 1 || len(s.Functions[0].Latency) != len(s.BoundsMillis)+1 || s.Functions[0].Name != "a" || s.Functions[0].Picture != 3 {
		t.Fatalf("sample %+v", s)
	}
	f := s.Functions[0]
	for i, n := range f.Latency {
		inside := i < len(s.BoundsMillis) && s.BoundsMillis[i] >= 7 && (i == 0 || s.BoundsMillis[i-1] < 7)
		if (n == 1) != inside {
			t.Errorf("bucket %d has %d requests", i, n)
		}
	}
	if f.Ran != 1 || f.BatchSum != 2 || f.Batches != 1 || f.Stages[stageInfer] != (control.StageSample{Seconds: 0.007, Count: 1}) || len(f.Outliers) != 1 {
		t.Errorf("sample %+v", f)
	}
	if len(f.Results) != wire.NumStatuses || len(f.Stages) != len(control.StageNames) {
		t.Errorf("%d results, %d stages", len(f.Results), len(f.Stages))
	}
}
