package history

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/control"
)

// A point of any level is the sum of the points of the finest one.
func TestSeries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Series
		requests := map[int64]uint32{} // by number of the finest interval
		now := rapid.Int64Range(1<<40, 1<<41).Draw(t, "begin")
		for range rapid.IntRange(1, 300).Draw(t, "points") {
			p := Point{Known: true, Ran: rapid.Uint32Range(0, 100).Draw(t, "ran")}
			s.Add(now, &p)
			requests[now/Levels[0].StepMillis] += p.Ran
			now += rapid.SampledFrom([]int64{250, 250, 250, 260, 1000, 30_000}).Draw(t, "pause")
		}
		for level, l := range Levels {
			points, first := s.Points(level)
			if len(points) != l.Points {
				t.Fatalf("level %d has %d points, want %d", level, len(points), l.Points)
			}
			for i := range points {
				want := uint32(0)
				from := first + int64(i)*l.StepMillis
				for n := from / Levels[0].StepMillis; n < (from+l.StepMillis)/Levels[0].StepMillis; n++ {
					want += requests[n]
				}
				if points[i].Ran != want {
					t.Fatalf("level %d, point at %d has %d requests, want %d", level, from, points[i].Ran, want)
				}
			}
		}
	})
}

func TestSeriesMeans(t *testing.T) {
	var s Series
	for i, use := range []float32{10, 20, 30, 40} {
		s.Add(1e12+int64(i)*250, &Point{Known: true, Use: use})
	}
	s.Add(1e12+1000, &Point{})
	points, _ := s.Points(1)
	if got := points[len(points)-2]; got.Use != 25 || !got.Known {
		t.Errorf("mean use %v, want 25", got.Use)
	}
	if points[len(points)-1].Known {
		t.Error("an interval without a sample is known")
	}
}

// sample is a sample of a node with one function.
func sample(at time.Time, f control.FunctionStatus, s control.FunctionSample) *control.Sample {
	f.Name, s.Name = "face", "face"
	return &control.Sample{At: at, Status: control.Status{Started: time.Unix(1, 0), Functions: []control.FunctionStatus{f}}, Functions: []control.FunctionSample{s}}
}

func TestRecorder(t *testing.T) {
	r := NewRecorder()
	begin := time.Unix(1000, 0)
	counts := func(n uint64) control.FunctionSample {
		return control.FunctionSample{Latency: []uint64{n, 2 * n}, Results: []uint64{3 * n}, Ran: 3 * n, BatchSum: float64(6 * n), Stages: []control.StageSample{{Seconds: float64(n)}}}
	}
	if u := r.Add(sample(begin, control.FunctionStatus{InFlight: 7}, counts(10))); len(u.Functions) != 0 {
		t.Errorf("the first sample has points %+v", u)
	}
	u := r.Add(sample(begin.Add(250*time.Millisecond), control.FunctionStatus{InFlight: 5, SharePercent: 40}, counts(14)))
	p := u.Functions["face"]
	if p.Latency[0] != 4 || p.Latency[1] != 8 || p.Results[0] != 12 || p.Ran != 12 || p.BatchSum != 24 || p.StageMillis[0] != 4000 || p.InFlight != 5 || p.Guarantee != 40 {
		t.Errorf("point %+v", p)
	}
	// The function was removed and added again between two samples.
	u = r.Add(sample(begin.Add(500*time.Millisecond), control.FunctionStatus{}, counts(2)))
	if p := u.Functions["face"]; p.Ran != 6 || p.Latency[1] != 4 {
		t.Errorf("point after a restart %+v, want counts from zero", p)
	}
	if points, millis := r.Points("face", 0); points[len(points)-1].Ran != 6 || millis != begin.Add(500*time.Millisecond).UnixMilli()-int64(Levels[0].Points-1)*Levels[0].StepMillis {
		t.Errorf("%d points from %d", len(points), millis)
	}
	if points, _ := r.Points("nope", 0); points != nil {
		t.Errorf("points of no function: %d", len(points))
	}
}

func TestOutliers(t *testing.T) {
	r := NewRecorder()
	begin := time.Unix(1000, 0)
	outlier := func(id uint32, after time.Duration, micros float64) control.Outlier {
		return control.Outlier{Request: id, Began: begin.Add(after), StagesMicros: []float64{micros}}
	}
	for i := range 4 { // the same ones come again, on a clock that was converted a little differently
		drift := time.Duration(i) * 100 * time.Microsecond
		r.Add(sample(begin.Add(time.Duration(i)*250*time.Millisecond), control.FunctionStatus{}, control.FunctionSample{
			Outliers: []control.Outlier{outlier(1, drift, 10), outlier(2, time.Second+drift, 30), outlier(3, 2*time.Second+drift, 20)},
		}))
	}
	var ids []uint32
	for _, o := range r.Outliers("face", begin.Add(time.Second), begin.Add(time.Minute)) {
		ids = append(ids, o.Request)
	}
	if !slices.Equal(ids, []uint32{2, 3}) {
		t.Errorf("outliers %v, want 2 and 3, the slowest first", ids)
	}
}

func TestMarks(t *testing.T) {
	serves := func(generation uint32) []control.InstanceStatus {
		return []control.InstanceStatus{{Processes: []control.ProcessStatus{{Generation: generation, Role: control.Serve, State: control.Active}}}}
	}
	base := control.FunctionStatus{Model: "face", Version: 1, Instances: serves(1)}
	failed := serves(2)
	failed[0].LastFailure = &control.ProcessFailure{PID: 42, Reason: "signal: killed", At: time.Unix(5, 0)}
	for name, c := range map[string]struct {
		after control.FunctionStatus
		want  []Kind
	}{
		"nothing":  {base, nil},
		"swap":     {control.FunctionStatus{Model: "face", Version: 1, Instances: serves(2), Swaps: 1}, []Kind{KindSwap}},
		"model":    {control.FunctionStatus{Model: "face", Version: 2, Instances: serves(2), Swaps: 1}, []Kind{KindModel}},
		"killed":   {control.FunctionStatus{Model: "face", Version: 1, Instances: failed}, []Kind{KindFailure, KindSwap}},
		"hang":     {control.FunctionStatus{Model: "face", Version: 1, Instances: serves(1), Hangs: 1}, []Kind{KindHang}},
		"demotion": {control.FunctionStatus{Model: "face", Version: 1, Instances: serves(1), Guarantee: &control.GuaranteeStatus{DemotedPercent: 9}}, []Kind{KindDemoted}},
	} {
		t.Run(name, func(t *testing.T) {
			var kinds []Kind
			for _, m := range Marks(sample(time.Unix(2, 0), base, control.FunctionSample{}), sample(time.Unix(3, 0), c.after, control.FunctionSample{})) {
				kinds = append(kinds, m.Kind)
				if m.Function != "face" || m.Millis != 3000 || m.Text == "" {
					t.Errorf("mark %+v", m)
				}
			}
			if !slices.Equal(kinds, c.want) {
				t.Errorf("marks %v, want %v", kinds, c.want)
			}
		})
	}
	t.Run("devices", func(t *testing.T) {
		before, after := sample(time.Unix(2, 0), base, control.FunctionSample{}), sample(time.Unix(3, 0), base, control.FunctionSample{})
		before.Status.Devices = []control.DeviceStatus{{Name: "cuda:0"}, {Name: "cuda:1"}, {Name: "cuda:2", Lost: "NVML: GPU is lost"}}
		after.Status.Devices = []control.DeviceStatus{{Name: "cuda:0"}, {Name: "cuda:1", Faults: control.FaultStatus{Count: 1}, Lost: "NVML: GPU is lost"}, {Name: "cuda:2"}}
		var texts []string
		for _, m := range Marks(before, after) {
			texts = append(texts, string(m.Kind)+" "+m.Text)
		}
		want := []string{"fault the GPU cuda:1 failed under all its functions", "fault device cuda:1: NVML: GPU is lost", "fault device cuda:2: it works again"}
		if !slices.Equal(texts, want) {
			t.Errorf("marks %q, want %q", texts, want)
		}
	})
	t.Run("manager", func(t *testing.T) {
		after := sample(time.Unix(3, 0), base, control.FunctionSample{})
		after.Status.Started = time.Unix(2, 0)
		if m := Marks(sample(time.Unix(2, 0), base, control.FunctionSample{}), after); len(m) != 1 || m[0].Kind != KindManager {
			t.Errorf("marks %+v", m)
		}
	})
}

func TestQuantile(t *testing.T) {
	bounds := []float64{1, 2, 4}
	for _, c := range []struct {
		name    string
		latency []uint32
		q, want float64
		ok      bool
	}{
		{"no answers", nil, 0.5, 0, false},
		{"first bucket", []uint32{4}, 0.5, 0.5, true},
		{"interpolated", []uint32{0, 100}, 0.99, 1.99, true},
		{"in the next bucket", []uint32{1, 0, 3}, 0.5, 2 + 2.0/3, true},
		{"above all bounds", []uint32{0, 0, 0, 7}, 0.99, 4, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p Point
			copy(p.Latency[:], c.latency)
			got, ok := p.Quantile(bounds, c.q)
			if ok != c.ok || math.Abs(got-c.want) > 1e-9 {
				t.Errorf("quantile %v, %v; want %v, %v", got, ok, c.want, c.ok)
			}
		})
	}
}
