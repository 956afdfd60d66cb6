package loadgen_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/loadfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/loadgen/arrival"
	"github.com/penstock/penstock/wire"
	"pgregory.net/rapid"
)

// pictures returns pictures of one byte, their own number.
func pictures(n int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = []byte{byte(i)}
	}
	return all
}

// constant returns a spec of one function with equally spaced requests.
func constant(t testing.TB, perSecond float64, duration time.Duration) loadgen.Spec {
	return loadgen.Spec{
		Duration: duration,
		Seed:     1,
		Functions: []loadgen.Function{{
			Name: "face", SLO: 25 * time.Millisecond, PerSecond: perSecond,
			Arrivals: arrival.Process{Shape: arrival.Constant}, Pictures: pictures(3),
		}},
	}
}

// run runs a spec in virtual time, and checks that it leaves nothing running.
func run(t *testing.T, spec loadgen.Spec, system *loadfake.System, change ...func(*loadgen.Options)) *loadgen.Report {
	t.Helper()
	var report *loadgen.Report
	synctest.Test(t, func(t *testing.T) {
		o := loadgen.Options{Dial: system.Dial, Clock: loadfake.Clock{}}
		for _, c := range change {
			c(&o)
		}
		var err error
		report, err = loadgen.Run(t.Context(), spec, o)
		must.OK(t, err)
	})
	if open := system.Open(); open != 0 {
		t.Errorf("%d senders are left open", open)
	}
	return report
}

// topK returns a payload with one class.
func topK(class uint16, p float32) []byte {
	return wire.AppendTopK(nil, []wire.Class{{Class: class, P: p}})
}

func TestRunCounts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		// The test draws the outcome of request n in advance; the list of
		// outcomes repeats.
		kinds := rapid.SliceOfN(rapid.IntRange(0, 10), 1, 40).Draw(rt, "outcomes")
		var mu sync.Mutex
		var want [wire.NumStatuses]uint64
		var unanswered, unsent, dropped uint64
		system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
			mu.Lock()
			defer mu.Unlock()
			delay := time.Duration(r.Number%7) * time.Millisecond
			switch kind := kinds[r.Number%len(kinds)]; {
			case kind < int(wire.StatusMoved):
				want[kind]++
				return loadfake.Outcome{Delay: delay, Result: wire.Result{Status: wire.Status(kind)}}
			case kind == 6:
				unanswered++
				return loadfake.Outcome{Lost: true}
			case kind == 7:
				unsent++
				return loadfake.Outcome{Refused: errors.New("send queue is full")}
			case kind == 8:
				unanswered++
				return loadfake.Outcome{Delay: delay, Err: errors.New("no answer")}
			case kind == 9:
				want[wire.StatusLate]++
				dropped++
				return loadfake.Outcome{Delay: delay, Err: client.ErrLate}
			default:
				want[wire.StatusOK]++
				return loadfake.Outcome{Delay: delay, Times: 3}
			}
		}}
		spec := loadgen.Spec{Duration: time.Second, Seed: rapid.Uint64().Draw(rt, "seed"), Functions: []loadgen.Function{
			{Name: "a", SLO: 4 * time.Millisecond, PerSecond: 200, Streams: 3, Pictures: pictures(2)},
			{Name: "b", SLO: 10 * time.Millisecond, PerSecond: 100, Streams: 1, Pictures: pictures(5), Arrivals: arrival.Process{Shape: arrival.Bursts, Size: 4}},
		}}
		report := run(t, spec, system)
		var got [wire.NumStatuses]uint64
		var gotUnanswered, gotUnsent, gotDropped, sent uint64
		for _, f := range report.Functions {
			for status, n := range []uint64{f.OK, f.Late, f.Incomplete, f.Busy, f.Refused, f.Failed} {
				got[status] += n
			}
			gotUnanswered += f.Unanswered
			gotUnsent += f.Unsent
			gotDropped += f.Dropped
			sent += f.Sent
			if f.Sent != f.OK+f.Late+f.Incomplete+f.Busy+f.Refused+f.Failed+f.Unanswered || f.Answered != f.Sent-f.Dropped-f.Unanswered {
				rt.Errorf("%s does not add up: %+v", f.Name, f)
			}
		}
		if got != want || gotUnanswered != unanswered+unsent || gotUnsent != unsent || gotDropped != dropped {
			rt.Errorf("statuses %v, unanswered %d, unsent %d, dropped %d; want %v, %d, %d, %d", got, gotUnanswered, gotUnsent, gotDropped, want, unanswered+unsent, unsent, dropped)
		}
		if sent < 150 || sent > 450 {
			rt.Errorf("%d requests sent, want about 300", sent)
		}
	})
}

func TestOpenLoop(t *testing.T) {
	var at []time.Duration
	begin := time.Time{}
	system := &loadfake.System{Service: time.Second, Behave: func(loadfake.Request) loadfake.Outcome {
		if begin.IsZero() {
			begin = time.Now()
		}
		at = append(at, time.Since(begin))
		return loadfake.Outcome{}
	}}
	spec := constant(t, 100, 2*time.Second)
	spec.Grace = time.Hour
	report := run(t, spec, system)
	if len(at) != 200 || report.Functions[0].OK != 200 {
		t.Fatalf("%d requests sent, %d answered; want 200", len(at), report.Functions[0].OK)
	}
	for i, moment := range at {
		if off := moment - time.Duration(i)*10*time.Millisecond; off < -time.Microsecond || off > time.Microsecond {
			t.Fatalf("request %d left at %v, want every 10 ms", i, moment)
		}
	}
}

// stalling is a sender that stalls once, as a whole client machine may.
type stalling struct {
	loadgen.Sender
	left  int
	stall time.Duration
}

func (s *stalling) Send(picture []byte, intended int64, tag uint64) error {
	if s.left--; s.left == 0 {
		time.Sleep(s.stall)
	}
	return s.Sender.Send(picture, intended, tag)
}

func TestLatencyFromIntended(t *testing.T) {
	system := &loadfake.System{}
	report := run(t, constant(t, 100, 10*time.Second), system, func(o *loadgen.Options) {
		o.Dial = func(ctx context.Context, f loadgen.Function, stream int, deliver func(*client.Result)) (loadgen.Sender, error) {
			sender, err := system.Dial(ctx, f, stream, deliver)
			return &stalling{Sender: sender, left: 500, stall: time.Second}, err
		}
	})
	f := report.Functions[0]
	// The sender stalls for a second. The hundred requests that become due
	// meanwhile leave at once after it. Each is answered the moment it leaves,
	// so latencies from that moment would all be 0.
	if f.Sent != 1000 || f.OK != 1000 {
		t.Errorf("%d sent, %d ok; want 1000", f.Sent, f.OK)
	}
	if want := 97; int(f.WithinSLO*10+0.5) < 900 || int(f.WithinSLO*10+0.5) > 10*want {
		t.Errorf("%v %% within 25 ms, want about 90.2", f.WithinSLO)
	}
	if f.P50Millis > 1 || f.P99Millis < 850 || f.P99Millis > 950 {
		t.Errorf("p50 %v ms, p99 %v ms; want 0 and about 900", f.P50Millis, f.P99Millis)
	}
	if f.SendLagP99Millis < 800 {
		t.Errorf("send lag %v ms at p99, want about 900", f.SendLagP99Millis)
	}
}

func TestReportNumbers(t *testing.T) {
	// Every fifth answer takes 40 ms, more than the objective of 25 ms; the
	// others take 10 ms.
	system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
		o := loadfake.Outcome{Delay: 10 * time.Millisecond, Result: wire.Result{Batch: 2, Infer: 7 * time.Millisecond, Queue: time.Millisecond}}
		if r.Number%5 == 4 {
			o.Delay = 40 * time.Millisecond
			o.Result.Batch = 8
		}
		return o
	}}
	report := run(t, constant(t, 100, 10*time.Second), system)
	f := report.Functions[0]
	for _, test := range []struct {
		name             string
		got, want, slack float64
	}{
		{"seconds", report.Seconds, 10, 0},
		{"sent", float64(f.Sent), 1000, 0},
		{"within SLO", f.WithinSLO, 80, 0},
		{"goodput", f.GoodputRPS, 80, 0},
		{"offered", f.OfferedRPS, 100, 0},
		{"p50", f.P50Millis, 10, 0.02},
		{"p99", f.P99Millis, 40, 0.08},
		{"p99.9", f.P999Millis, 40, 0.08},
		// 800 requests in batches of two are 400 batches; 200 in batches of
		// eight are 25.
		{"mean batch", f.MeanBatch, 1000.0 / 425, 0.001},
		{"infer", f.Stages["infer"].P50, 7, 0.1},
		{"queue", f.Stages["queue"].P99, 1, 0.02},
		{"gather", f.Stages["gather"].P99, 0, 0.001},
		{"objective", f.SLOMillis, 25, 0},
	} {
		if math.Abs(test.got-test.want) > test.slack {
			t.Errorf("%s: %v, want %v", test.name, test.got, test.want)
		}
	}
}

func TestLatencyOfOK(t *testing.T) {
	system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
		if r.Number%2 == 0 {
			return loadfake.Outcome{Result: wire.Result{Status: wire.StatusLate}} // quick, but useless
		}
		return loadfake.Outcome{Delay: 20 * time.Millisecond}
	}}
	f := run(t, constant(t, 100, time.Second), system).Functions[0]
	if f.P50Millis < 19.9 || f.Late != 50 || f.WithinSLO != 50 {
		t.Errorf("p50 %v ms, %d late, %v %% within; want 20, 50, 50", f.P50Millis, f.Late, f.WithinSLO)
	}
}

func TestWarmup(t *testing.T) {
	requests := 0
	system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
		requests++
		if r.Number < 100 {
			return loadfake.Outcome{Delay: time.Second}
		}
		return loadfake.Outcome{}
	}}
	spec := constant(t, 100, 2*time.Second)
	spec.Warmup = time.Second
	report := run(t, spec, system)
	if f := report.Functions[0]; requests != 300 || f.Sent != 200 || f.WithinSLO != 100 || report.Seconds != 2 {
		t.Errorf("%d requests, %d counted in %v s, %v %% within; want 300, 200 in 2 s, 100", requests, f.Sent, report.Seconds, f.WithinSLO)
	}
}

func TestScheduleAfterWarmup(t *testing.T) {
	spec := constant(t, 100, 10*time.Second)
	spec.Warmup = 2 * time.Second
	spec.Schedule = arrival.Schedule{{At: 5 * time.Second, Function: "face", PerSecond: 10}}
	if f := run(t, spec, &loadfake.System{}).Functions[0]; f.Sent < 549 || f.Sent > 551 {
		t.Errorf("%d sent, want 5 s of 100/s and 5 s of 10/s", f.Sent)
	}
}

func TestPictureOrder(t *testing.T) {
	var got []byte
	streams := map[int]bool{}
	system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
		got = append(got, r.Picture...)
		streams[r.Stream] = true
		return loadfake.Outcome{}
	}}
	spec := constant(t, 7, time.Second)
	spec.Functions[0].Streams = 4
	run(t, spec, system)
	if want := "\x00\x01\x02\x00\x01\x02\x00"; string(got) != want || len(streams) != 4 {
		t.Errorf("pictures %v over %d streams, want %v over 4", got, len(streams), []byte(want))
	}
}

func TestVideoRate(t *testing.T) {
	for _, test := range []struct {
		name            string
		perSecond       float64
		streams         int
		sent, perStream int
	}{
		{"as many cameras as the rate wants", 120, 0, 120, 30},
		{"the cameras' own rate", 0, 2, 60, 30},
		{"faster cameras", 120, 2, 120, 60},
	} {
		perStream := map[int]int{}
		system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
			perStream[r.Stream]++
			return loadfake.Outcome{}
		}}
		spec := constant(t, test.perSecond, time.Second)
		spec.Functions[0].Arrivals = arrival.Process{Shape: arrival.Video, FramesPerSecond: 30}
		spec.Functions[0].Streams = test.streams
		if f := run(t, spec, system).Functions[0]; int(f.Sent) != test.sent || perStream[0] != test.perStream {
			t.Errorf("%s: %d sent, %d by the first; want %d, %d", test.name, f.Sent, perStream[0], test.sent, test.perStream)
		}
	}
}

func TestGraceTime(t *testing.T) {
	system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
		return loadfake.Outcome{Delay: time.Duration(r.Number) * time.Second} // the first at once, the second after 1 s…
	}}
	spec := constant(t, 5, time.Second)
	spec.Grace = 2500 * time.Millisecond
	if f := run(t, spec, system).Functions[0]; f.OK != 3 || f.Unanswered != 2 || f.GaveUp != "" {
		t.Errorf("%d ok, %d unanswered (%s); want 3 and 2: the last two answer after 3.6 s and 4.8 s", f.OK, f.Unanswered, f.GaveUp)
	}
}

func TestGivenUpRequests(t *testing.T) {
	system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
		return loadfake.Outcome{Refused: fmt.Errorf("queue full at %d", r.Number)}
	}}
	if f := run(t, constant(t, 10, time.Second), system).Functions[0]; f.Unsent != 10 || f.Unanswered != 10 || f.GaveUp != "queue full at 0" {
		t.Errorf("%d unsent, %d unanswered, %q", f.Unsent, f.Unanswered, f.GaveUp)
	}
}

func TestRunInterrupted(t *testing.T) {
	system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
		return loadfake.Outcome{Lost: r.Number == 7, Delay: 300 * time.Millisecond}
	}}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(2*time.Second+time.Millisecond, cancel)
		begin := time.Now()
		report, err := loadgen.Run(ctx, constant(t, 10, time.Minute), loadgen.Options{Dial: system.Dial, Clock: loadfake.Clock{}})
		must.OK(t, err)
		f := report.Functions[0]
		if !report.Interrupted || f.Sent < 20 || f.Sent > 21 || f.Unanswered != 1 || report.Seconds < 2 || report.Seconds > 2.1 {
			t.Errorf("interrupted %v, %d sent, %d unanswered in %v s; want true, 20, 1, 2", report.Interrupted, f.Sent, f.Unanswered, report.Seconds)
		}
		if took := time.Since(begin); took > 3100*time.Millisecond {
			t.Errorf("returned %v after an interruption at 2 s; outstanding requests get a second", took)
		}
	})
	if open := system.Open(); open != 0 {
		t.Errorf("%d senders are left open", open)
	}
}

// book is a Reference that looks answers up by the picture's number.
type book map[byte]answer.Answer

func (b book) Answer(function string, picture []byte) (answer.Answer, error) {
	if function == "unknown" {
		return answer.Answer{}, loadgen.ErrNoReference
	}
	a, ok := b[picture[0]]
	if !ok {
		return a, errors.New("model fell over")
	}
	return a, nil
}

func TestWrongAnswers(t *testing.T) {
	reference := book{
		0: {Kind: wire.KindTopK, Payload: topK(5, 0.9)},
		1: {Kind: wire.KindTopK, Payload: topK(6, 0.9)},
		2: {Kind: wire.KindTopK, Payload: topK(7, 0.9)},
	}
	system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
		class := uint16(5 + r.Picture[0])
		if class == 6 {
			class = 1
		}
		return loadfake.Outcome{Result: wire.Result{Kind: wire.KindTopK}, Payload: topK(class, 0.9005)}
	}}
	spec := constant(t, 30, time.Second)
	report := run(t, spec, system, func(o *loadgen.Options) { o.Reference = reference })
	f := report.Functions[0]
	if f.Checked != 30 || f.Wrong != 10 {
		t.Errorf("%d of %d wrong, want 10 of 30", f.Wrong, f.Checked)
	}
	if len(f.Differences) != 5 || !strings.HasPrefix(f.Differences[0], "picture 1: place 1: class 1") {
		t.Errorf("described as %q", f.Differences)
	}
	if faults := report.Faults(); len(faults) != 1 || !strings.HasPrefix(faults[0], "face: 10 of 30 answers differ") {
		t.Errorf("faults %q", faults)
	}
}

func TestNoReference(t *testing.T) {
	spec := constant(t, 30, time.Second)
	spec.Functions[0].Name = "unknown"
	report := run(t, spec, &loadfake.System{}, func(o *loadgen.Options) { o.Reference = book{} })
	if f := report.Functions[0]; f.Checked != 0 || f.Wrong != 0 || report.Faults() != nil {
		t.Errorf("%d checked, %d wrong, faults %v", f.Checked, f.Wrong, report.Faults())
	}
}

func TestFirstAnswers(t *testing.T) {
	system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
		switch {
		case r.Picture[0] == 1:
			return loadfake.Outcome{Result: wire.Result{Status: wire.StatusFailed}}
		case r.Picture[0] == 2:
			return loadfake.Outcome{Result: wire.Result{Kind: wire.KindBoxes}} // no boxes
		}
		return loadfake.Outcome{Result: wire.Result{Kind: wire.KindTopK}, Payload: topK(uint16(r.Number), 1)}
	}}
	answers := run(t, constant(t, 30, time.Second), system).Functions[0].Answers
	if len(answers) != 3 || !bytes.Equal(answers[0].Payload, topK(0, 1)) || answers[1].Payload != nil || answers[2].Payload == nil || answers[2].Kind != wire.KindBoxes {
		t.Errorf("%+v", answers)
	}
}

func TestManagerCounters(t *testing.T) {
	asked := 0
	report := run(t, constant(t, 30, 3*time.Second), &loadfake.System{}, func(o *loadgen.Options) {
		o.Status = func(context.Context) (control.Status, error) {
			asked++
			f := control.FunctionStatus{
				Name: "face", SharePercent: 30, Swaps: 4, Lost: 2, KernelDrops: 10, SwapIdle: control.IdleMicros{Last: 40, P50: 41, Max: 50},
			}
			if asked > 3 {
				f.SharePercent, f.Swaps, f.Lost, f.KernelDrops = 40, 5, 3, 10
			}
			return control.Status{Functions: []control.FunctionStatus{f}}, nil
		}
	})
	f := report.Functions[0]
	if *f.SharePercent != 40 || *f.FirstSharePercent != 30 || *f.Swaps != 1 || *f.Lost != 1 || *f.KernelDrops != 0 || f.SwapIdle.Max != 50 {
		t.Errorf("share %v from %v, %d swaps, %d lost, %d drops, idle %+v", *f.SharePercent, *f.FirstSharePercent, *f.Swaps, *f.Lost, *f.KernelDrops, *f.SwapIdle)
	}
	if faults := report.Faults(); len(faults) != 1 || faults[0] != "face: 1 accepted requests were never answered" {
		t.Errorf("faults %q", faults)
	}
}

func TestCountersRestart(t *testing.T) {
	asked := 0
	report := run(t, constant(t, 30, time.Second), &loadfake.System{}, func(o *loadgen.Options) {
		o.Status = func(context.Context) (control.Status, error) {
			asked++
			return control.Status{Functions: []control.FunctionStatus{{Name: "face", Swaps: uint64(7 / min(asked, 3))}}}, nil
		}
	})
	if f := report.Functions[0]; *f.Swaps != 2 { // 7 at first, 2 at the end
		t.Errorf("%d swaps, want the new manager's 2", *f.Swaps)
	}
}

func TestUnknownLosses(t *testing.T) {
	asked := 0
	report := run(t, constant(t, 30, time.Second), &loadfake.System{}, func(o *loadgen.Options) {
		o.Status = func(context.Context) (control.Status, error) {
			if asked++; asked > 1 {
				return control.Status{}, errors.New("connection refused")
			}
			return control.Status{Functions: []control.FunctionStatus{{Name: "face"}}}, nil
		}
	})
	if faults := report.Faults(); len(faults) != 1 || faults[0] != "cannot count lost requests: connection refused" {
		t.Errorf("faults %q", faults)
	}
	if f := report.Functions[0]; f.Lost != nil || f.SharePercent != nil {
		t.Errorf("lost %v, share %v; want unknown", f.Lost, f.SharePercent)
	}
}

func TestObserve(t *testing.T) {
	var snapshots []loadgen.Snapshot
	system := &loadfake.System{
		Behave: func(loadfake.Request) loadfake.Outcome { return loadfake.Outcome{Delay: 15 * time.Millisecond} },
		Share:  func(_ string, requests int) float64 { return float64(requests / 100) },
	}
	spec := constant(t, 100, 3*time.Second)
	spec.Warmup = time.Second
	run(t, spec, system, func(o *loadgen.Options) {
		o.Status = system.Status
		o.Observe = func(s loadgen.Snapshot) { snapshots = append(snapshots, s) }
	})
	if len(snapshots) < 16 || len(snapshots) > 18 {
		t.Fatalf("observed %d times in 4 s, want 4 times a second", len(snapshots))
	}
	early, late := snapshots[2], snapshots[14]
	if !early.WarmingUp || late.WarmingUp || early.Elapsed != 750*time.Millisecond || early.Left != 3250*time.Millisecond {
		t.Errorf("early %+v", early)
	}
	f := late.Functions[0]
	if f.Name != "face" || f.PerSecond < 95 || f.PerSecond > 105 || f.P99 < 14*time.Millisecond || !f.ShareKnown || f.SharePercent < 2 || f.Outstanding > 2 {
		t.Errorf("late %+v", f)
	}
	if early.Functions[0].P99 != 0 {
		t.Errorf("p99 %v while warming up, want none", early.Functions[0].P99)
	}
}

func TestRunSpecErrors(t *testing.T) {
	for want, change := range map[string]func(*loadgen.Spec){
		"duration of 0s":                     func(s *loadgen.Spec) { s.Duration = 0 },
		"warm-up of -1s":                     func(s *loadgen.Spec) { s.Warmup = -time.Second },
		"no function":                        func(s *loadgen.Spec) { s.Functions = nil },
		`function "face" is listed twice`:    func(s *loadgen.Spec) { s.Functions = append(s.Functions, s.Functions[0]) },
		`function "face": objective of 0s`:   func(s *loadgen.Spec) { s.Functions[0].SLO = 0 },
		`function "face": rate of NaN`:       func(s *loadgen.Spec) { s.Functions[0].PerSecond = math.NaN() },
		`function "face": -1 streams`:        func(s *loadgen.Spec) { s.Functions[0].Streams = -1 },
		`function "face": no pictures`:       func(s *loadgen.Spec) { s.Functions[0].Pictures = nil },
		`function "face": deadline of -1s`:   func(s *loadgen.Spec) { s.Functions[0].Deadline = -time.Second },
		`function "face": camera of 0 frame`: func(s *loadgen.Spec) { s.Functions[0].Arrivals.Shape = arrival.Video },
		`a.csv:3: function "fase"`: func(s *loadgen.Spec) {
			s.Schedule = arrival.Schedule{{Function: "fase", Where: "a.csv:3"}}
		},
	} {
		spec := constant(t, 10, time.Second)
		change(&spec)
		_, err := loadgen.Run(context.Background(), spec, loadgen.Options{Dial: new(loadfake.System).Dial})
		if err == nil || !strings.HasPrefix(err.Error(), "check load: "+want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestRunStartFails(t *testing.T) {
	system := &loadfake.System{}
	for name, test := range map[string]struct {
		change func(*loadgen.Options)
		want   string
	}{
		"no socket": {func(o *loadgen.Options) {
			o.Dial = func(ctx context.Context, f loadgen.Function, stream int, deliver func(*client.Result)) (loadgen.Sender, error) {
				if stream == 2 {
					return nil, errors.New("too many open files")
				}
				return system.Dial(ctx, f, stream, deliver)
			}
		}, "dial face: stream 2: too many open files"},
		"no manager": {func(o *loadgen.Options) {
			o.Status = func(context.Context) (control.Status, error) {
				return control.Status{}, errors.New("connection refused")
			}
		}, "connection refused"},
		"no reference": {func(o *loadgen.Options) { o.Reference = book{} }, "compute reference answers of face: picture 0: model fell over"},
	} {
		spec := constant(t, 10, time.Second)
		spec.Functions[0].Streams = 3
		o := loadgen.Options{Dial: system.Dial}
		test.change(&o)
		if _, err := loadgen.Run(context.Background(), spec, o); err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if open := system.Open(); open != 0 {
			t.Errorf("%s: %d senders are left open", name, open)
		}
	}
}
