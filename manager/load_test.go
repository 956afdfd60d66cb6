package manager

import (
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

const ms = int64(time.Millisecond)

func TestTheTailIsTheNearestRankOfWhatWasKept(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to int // latencies in milliseconds, each once, the largest first
		want     time.Duration
	}{
		{"nothing", 1, 0, 0},
		{"one", 7, 7, 7 * time.Millisecond},
		{"two", 1, 2, 2 * time.Millisecond},
		{"a hundred", 1, 100, 95 * time.Millisecond},
		// 512 ... 1 ms are the latest: rank 0.95 x 511 from below.
		{"more than are kept", 1, 1000, 486 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all tally
			for i := c.to; i >= c.from; i-- {
				all.answer(shm.Request{Whole: 0}, shm.Result{Status: uint8(wire.StatusOK), Batch: 1, Inferred: int64(i) * ms}, 0, 0)
			}
			if got := all.tail(); got != c.want {
				t.Errorf("tail %v, want %v", got, c.want)
			}
		})
	}
}

func TestATallyCountsABatchOnceOverItsRequests(t *testing.T) {
	var all tally
	for range 4 {
		r := shm.Request{FirstPiece: 1 * ms, Whole: 3 * ms}
		all.arrive(r)
		all.answer(r, shm.Result{Status: uint8(wire.StatusOK), Batch: 4, Dispatched: 5 * ms, Inferred: 13 * ms}, 20*ms, time.Hour)
	}
	if all.arrived != 4 || all.answered != 4 || all.ran != 4 {
		t.Errorf("arrived %d, answered %d, ran %d; want 4 of each", all.arrived, all.answered, all.ran)
	}
	if want := 8 * time.Millisecond; all.busy != want {
		t.Errorf("busy %v, want %v: one batch", all.busy, want)
	}
	if want := 8 * time.Millisecond; all.aggregation != want {
		t.Errorf("aggregation %v, want %v", all.aggregation, want)
	}
	if want := 10 * time.Millisecond; all.tail() != want {
		t.Errorf("tail %v, want %v: whole to the end of the batch", all.tail(), want)
	}
}

// The time of two batches in flight on a GPU counts once, for as long as either runs.
func TestATallyCountsTheTimeOfTwoBatchesInFlightOnce(t *testing.T) {
	var all tally
	batch := func(requests int, dispatched, inferred int64) {
		for range requests {
			all.answer(shm.Request{}, shm.Result{
				Status: uint8(wire.StatusOK), Batch: uint16(requests), Dispatched: dispatched * ms, Inferred: inferred * ms,
			}, inferred*ms, time.Hour)
		}
	}
	batch(4, 0, 10)
	batch(2, 5, 18)
	all = all.next() // a new window; the third batch began before it
	batch(8, 12, 24)
	if want := 6 * time.Millisecond; all.busy != want {
		t.Errorf("busy %v, want %v: what nobody else ran in", all.busy, want)
	}
	batch(1, 13, 20) // ended earlier and was reported late: all of it was counted
	batch(1, 30, 31)
	if want := 7 * time.Millisecond; all.busy != want {
		t.Errorf("busy %v, want %v", all.busy, want)
	}
}

// A function that rejects requests must not seem to have just met its objective.
func TestALateRequestCountsAsMoreThanItsObjective(t *testing.T) {
	const late = 50 * time.Millisecond
	for _, c := range []struct {
		name string
		now  int64
		want time.Duration
	}{
		{"turned away early", 10 * ms, late},
		{"turned away after longer than that", 80 * ms, 80 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all tally
			all.answer(shm.Request{}, shm.Result{Status: uint8(wire.StatusLate)}, c.now, late)
			if all.answered != 1 || all.ran != 0 || all.tail() != c.want {
				t.Errorf("answered %d, ran %d, tail %v; want 1, 0, %v", all.answered, all.ran, all.tail(), c.want)
			}
		})
	}
}

// A ticker is a little early or late. A share stays for one hold-down, not by chance for
// an interval longer.
func TestAHoldDownEndsWithTheLookThatIsMeant(t *testing.T) {
	cfg := configs.Shares{MinimumPercent: 5, DefaultPercent: 30, ThresholdPercent: 5, HoldDown: time.Second, Interval: 200 * time.Millisecond}
	shares, err := gslice.NewController(shareConfig(&configs.Config{Shares: cfg}))
	if err != nil {
		t.Fatal(err)
	}
	id := gslice.ID{IF: "a"}
	if err := shares.Add(id, 40); err != nil {
		t.Fatal(err)
	}
	const early = 100 * time.Microsecond
	shares.Step(early, nil)
	short := map[gslice.ID]gslice.Observation{id: {Latency: 75 * time.Millisecond, SLO: 50 * time.Millisecond, Throughput: 100, ArrivalRate: 50}}
	if p := shares.Step(800*time.Millisecond, short); len(p.Changes) != 0 {
		t.Errorf("changes %+v a look before the end of the hold-down", p.Changes)
	}
	if p := shares.Step(time.Second, short); len(p.Changes) != 1 {
		t.Errorf("changes %+v at its end, want one", p.Changes)
	}
}

// Enough of these windows make package gslice decide.
const (
	window  = 5 * time.Second
	windows = 6
)

// goThrough runs requests through an instance for the time elapsed, and tunes it.
func (b *nodeBed) goThrough(in *instance, now *time.Time, elapsed time.Duration, requests int, tail, each time.Duration) {
	b.t.Helper()
	*now = now.Add(elapsed)
	in.f.mu.Lock()
	t := &in.tally
	t.arrived, t.answered, t.ran, t.busy = requests, requests, requests, time.Duration(requests)*each
	for i := range min(requests, keptLatencies) {
		t.latencies[i] = tail
	}
	in.f.mu.Unlock()
	b.tune(*now)
	b.turns()
}

// A request's deadline is earlier than its objective by the time reserved for the network.
func TestAFunctionIsBoundByAggregationWhereTheWayIsLeftNoTime(t *testing.T) {
	for name, c := range map[string]struct {
		tail time.Duration
		want bool
	}{"in time": {19_400 * time.Microsecond, false}, "late by the way": {19_600 * time.Microsecond, true}} {
		t.Run(name, func(t *testing.T) {
			b := newNode(t, "cpu", nil, "governor", named("a", 40))
			b.turns()
			in, now := b.instance("a", 0), time.Now()
			in.f.slo, b.cfg.Transit, b.cfg.Shares.Tune = 50*time.Millisecond, 500*time.Microsecond, false
			for range windows {
				in.f.mu.Lock()
				in.tally.aggregation = 400 * 30 * time.Millisecond
				in.f.mu.Unlock()
				b.goThrough(in, &now, window, 400, c.tail, 5*time.Millisecond)
			}
			if o, _ := in.measured.Observation(); o.AggregationBound != c.want {
				t.Errorf("bound by aggregation: %v, want %v; observed %+v", o.AggregationBound, c.want, o)
			}
		})
	}
}

func TestIdleTimesAreSummedUp(t *testing.T) {
	var none idleTimes
	if got := none.summary(); got != (control.IdleMicros{}) {
		t.Errorf("summary of nothing is %+v", got)
	}
	var few idleTimes
	for i := 100; i >= 1; i-- {
		few.add(time.Duration(i) * time.Microsecond)
	}
	if got, want := few.summary(), (control.IdleMicros{Count: 100, Last: 1, P50: 51, P99: 100, Max: 100}); got != want {
		t.Errorf("summary is %+v, want %+v", got, want)
	}
	// The maximum stays forever; percentiles are of the latest.
	var many idleTimes
	many.add(time.Second)
	for range keptIdleTimes {
		many.add(500 * time.Nanosecond)
	}
	if got, want := many.summary(), (control.IdleMicros{Count: keptIdleTimes + 1, Last: 0.5, P50: 0.5, P99: 0.5, Max: 1e6}); got != want {
		t.Errorf("summary is %+v, want %+v", got, want)
	}
}

func TestWhatAProcessSaysMustBeSane(t *testing.T) {
	const whole, now = 100, 200
	in := func(dispatched, gathered, inferred int64) shm.Result {
		return shm.Result{Dispatched: dispatched, Gathered: gathered, Inferred: inferred}
	}
	for _, c := range []struct {
		name    string
		status  wire.Status
		kind    wire.Kind
		batch   uint16
		payload int
		said    shm.Result
		want    bool
	}{
		{"ok", wire.StatusOK, wire.KindTopK, 1, 5 * wire.ClassSize, in(110, 120, 130), true},
		{"ok, all at once", wire.StatusOK, wire.KindRaw, 1, 4, in(whole, whole, whole), true},
		{"ok, this very moment", wire.StatusOK, wire.KindRaw, 1, 4, in(now, now, now), true},
		{"no box in the picture", wire.StatusOK, wire.KindBoxes, 1, 0, in(110, 120, 130), true},
		{"two boxes", wire.StatusOK, wire.KindBoxes, 9, 2 * wire.BoxSize, in(110, 120, 130), true},
		{"a box and a byte", wire.StatusOK, wire.KindBoxes, 1, wire.BoxSize + 1, in(110, 120, 130), false},
		{"half a class", wire.StatusOK, wire.KindTopK, 1, wire.ClassSize / 2, in(110, 120, 130), false},
		{"half a number", wire.StatusOK, wire.KindRaw, 1, 6, in(110, 120, 130), false},
		{"ok of no kind", wire.StatusOK, wire.KindNone, 1, 0, in(110, 120, 130), false},
		{"ok of a kind that is none", wire.StatusOK, wire.NumKinds, 1, 0, in(110, 120, 130), false},
		{"ok in no batch", wire.StatusOK, wire.KindRaw, 0, 4, in(110, 120, 130), false},
		{"ok, never run", wire.StatusOK, wire.KindRaw, 1, 4, in(0, 0, 0), false},
		{"dispatched before it was whole", wire.StatusOK, wire.KindRaw, 1, 4, in(99, 120, 130), false},
		{"gathered before dispatched", wire.StatusOK, wire.KindRaw, 1, 4, in(120, 119, 130), false},
		{"inferred before gathered", wire.StatusOK, wire.KindRaw, 1, 4, in(110, 130, 129), false},
		{"inferred tomorrow", wire.StatusOK, wire.KindRaw, 1, 4, in(110, 120, now+1), false},
		{"before the machine was on", wire.StatusOK, wire.KindRaw, 1, 4, in(-1<<63, -1<<63, -1<<63), false},
		{"late", wire.StatusLate, wire.KindNone, 0, 0, in(0, 0, 0), true},
		{"late, but run", wire.StatusLate, wire.KindNone, 1, 0, in(110, 120, 130), false},
		{"failed before it ran", wire.StatusFailed, wire.KindNone, 0, 0, in(0, 0, 0), true},
		{"failed in its batch", wire.StatusFailed, wire.KindNone, 4, 0, in(110, 120, 130), true},
		{"failed half way", wire.StatusFailed, wire.KindNone, 4, 0, in(110, 0, 0), false},
		{"incomplete is the manager's word", wire.StatusIncomplete, wire.KindNone, 0, 0, in(0, 0, 0), false},
		{"busy is the manager's word", wire.StatusBusy, wire.KindNone, 0, 0, in(0, 0, 0), false},
		{"refused is the manager's word", wire.StatusRefused, wire.KindNone, 0, 0, in(0, 0, 0), false},
		{"a status that is none", wire.NumStatuses, wire.KindNone, 0, 0, in(0, 0, 0), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := wire.Result{Status: c.status, Kind: c.kind, Batch: c.batch}
			if got := sane(&r, &c.said, c.payload, whole, now); got != c.want {
				t.Errorf("sane = %v, want %v", got, c.want)
			}
		})
	}
}

// Measurements become shares. As Algorithm 1 says, an instance gets more if its batches
// take too long, and less if it has time to spare.
func TestSharesFollowMeasurements(t *testing.T) {
	for _, c := range []struct {
		name       string
		tail, each time.Duration
		cpu        time.Duration // per request
		want       float64
	}{
		{"latency is short", 75 * time.Millisecond, time.Millisecond, 0, 60.5},
		{"throughput is short", 10 * time.Millisecond, 15 * time.Millisecond, 0, 48},
		{"within the threshold", 49 * time.Millisecond, 12 * time.Millisecond, 0, 40},
		{"both are over", 10 * time.Millisecond, 5 * time.Millisecond, 0, 16},
		{"a quota has CPU time for less than was measured", 10 * time.Millisecond, 5 * time.Millisecond, 12 * time.Millisecond, 48},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newNode(t, "cpu", nil, "cgroup-v2", named("a", 40))
			b.turns()
			in, now := b.instance("a", 0), time.Now()
			in.f.slo = 50*time.Millisecond + b.cfg.Transit
			for range windows {
				in.measured.cpuPerRequest = c.cpu
				b.goThrough(in, &now, window, 400, c.tail, c.each) // 80 per second
			}
			if got := in.sharePercent(); got < c.want-1 || got > c.want+1 {
				o, _ := in.measured.Observation()
				t.Errorf("share %v %%, want %v; observed %+v", got, c.want, o)
			}
		})
	}
}
