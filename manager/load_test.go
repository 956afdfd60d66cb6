package manager

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/pair"
	"github.com/penstock/penstock/manager/share"
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

// Two batches in flight on a GPU are busy once, for as long as either runs.
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
	all = all.next() // what is counted is taken; the third began before that
	batch(8, 12, 24)
	if want := 6 * time.Millisecond; all.busy != want {
		t.Errorf("busy %v, want %v: what nobody else ran in", all.busy, want)
	}
	batch(1, 13, 20) // ended before, and came late: all of it was counted
	batch(1, 30, 31)
	if want := 7 * time.Millisecond; all.busy != want {
		t.Errorf("busy %v, want %v", all.busy, want)
	}
	// One of 8 that took 6 ms more, and one of 1; the one that took nothing shows nothing.
	if p := all.pace; p.Mean() != 4.5 {
		t.Errorf("batches of %v on average, want two, of 8 and 1", p.Mean())
	}
}

// A function that turns requests away does not look as if it just made it.
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

// A quota that does not bind says nothing of the share: times are stretched to it.
func TestMeasurementsAreTakenToTheShare(t *testing.T) {
	const tail = 30 * time.Millisecond
	const us = time.Microsecond
	for _, c := range []struct {
		name       string
		cpu        time.Duration // of a request
		cpus       int
		percent    float64
		busy       time.Duration // of a request, measured
		tail       time.Duration
		throughput float64
	}{
		{"the quota binds", 800 * us, 4, 25, 2000 * us, tail, 500},
		{"the quota binds just so", 800 * us, 4, 25, 800 * us, tail, 1250},
		{"the quota does not bind", 800 * us, 4, 25, 300 * us, tail + 500*us, 1250},
		{"half of one CPU", 800 * us, 1, 50, 800 * us, tail + 800*us, 625},
		{"CPUs are not known: one", 800 * us, 0, 50, 800 * us, tail + 800*us, 625},
		{"CPU time is not known", 0, 4, 25, 400 * us, tail, 2500},
		{"the share is not known", 800 * us, 4, 0, 400 * us, tail, 2500},
		// 10 ms and a tick of 4 at a tenth: more than what was measured and stretched.
		{"the tick overruns the quota", 10_000 * us, 1, 10, 10_000 * us, 140_000 * us, 10},
		{"the measured tail is beyond that", 10_000 * us, 1, 90, 12_000 * us, tail, 1e6 / 12_000.},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := &instance{m: &Manager{observed: control.Observed{CPUs: c.cpus}}, cpuPerRequest: c.cpu}
			measured := tally{answered: 1, ran: 8, busy: 8 * c.busy}
			measured.latencies[0] = tail
			gotTail, gotThroughput := in.atShare(&measured, c.percent)
			if d := gotTail - c.tail; d.Abs() > time.Microsecond {
				t.Errorf("tail %v, want %v", gotTail, c.tail)
			}
			if d := gotThroughput/c.throughput - 1; d > 1e-6 || d < -1e-6 {
				t.Errorf("throughput %v a second, want %v", gotThroughput, c.throughput)
			}
		})
	}
}

// A smaller share of a GPU makes every batch slower: what is measured is the share's.
func TestMeasurementsOnAGPUAreTakenAsTheyAre(t *testing.T) {
	m := &Manager{observed: control.Observed{CPUs: 1}}
	m.device.gpu = &control.ObservedDevice{}
	in := &instance{m: m, cpuPerRequest: 10 * time.Millisecond}
	measured := tally{answered: 1, ran: 8, busy: 8 * time.Millisecond}
	measured.latencies[0] = 3 * time.Millisecond
	if tail, throughput := in.atShare(&measured, 10); tail != 3*time.Millisecond || throughput != 1000 {
		t.Errorf("tail %v, throughput %v a second; want 3ms and 1000", tail, throughput)
	}
}

func TestTheMarginForBurstsIsThatOfTheBatches(t *testing.T) {
	for size, want := range map[float64]float64{0: 1.5, 1: 1.5, 4: 1.1625, 45: 1.06} {
		if got := burstMargin(size); math.Abs(got-want) > 1e-9 {
			t.Errorf("batches of %v: %v, want %v", size, got, want)
		}
	}
}

// A load that becomes another one is judged at once, not when averages have forgotten.
func TestALoadThatStepsIsAnotherLoad(t *testing.T) {
	for _, c := range []struct {
		name  string
		rates []float64
		want  []bool
	}{
		{"steady", []float64{100, 112, 88, 120, 95}, []bool{false, false, false, false, false}},
		{"one burst", []float64{100, 200, 100, 60, 100}, []bool{false, false, false, false, false}},
		{"a step up", []float64{100, 100, 300, 300}, []bool{false, false, false, true}},
		{"a fall", []float64{100, 100, 30, 30, 30, 30}, []bool{false, false, false, false, false, true}},
		{"a pause", []float64{100, 100, 10, 10, 10, 100}, []bool{false, false, false, false, false, false}},
		{"to and fro", []float64{100, 200, 50, 200, 50}, []bool{false, false, false, false, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l instanceLoad
			for i, rate := range c.rates {
				if got := l.stepped(int(rate), time.Second); got != c.want[i] {
					t.Errorf("rate %d, %v: stepped %v, want %v", i, rate, got, c.want[i])
				}
				l.rate.Add(rate)
			}
		})
	}
}

// The mean of a load that was says nothing of the one that comes: nobody is cut for it
// between the two.
func TestNobodyIsCutWhileItsLoadRises(t *testing.T) {
	b := newNode(t, "cpu", nil, "governor", named("a", 40))
	b.turns()
	in, now := b.instance("a", 0), time.Now()
	in.f.slo = 50 * time.Millisecond
	b.cfg.Shares.Tune = false // until it could be cut
	look := func(requests int) {
		b.goThrough(in, &now, enoughTime, requests, 5*time.Millisecond, 5*time.Millisecond)
	}
	for range 6 {
		look(400)
	}
	b.cfg.Shares.Tune = true
	look(900)
	if got := in.pair.Share(); got != 40 || in.load.known {
		t.Errorf("it has %v %% of 40 after one look at twice the load, observed %+v", got, in.load.observed)
	}
	look(400)
	if got := in.pair.Share(); got >= 40 {
		t.Errorf("it has %v %% of 40 when that was one burst, observed %+v", got, in.load.observed)
	}
}

// A ticker is a little early or late. A share stays for a hold-down, and not by chance for
// an interval more.
func TestAHoldDownEndsWithTheLookThatIsMeant(t *testing.T) {
	cfg := configs.Shares{MinimumPercent: 5, DefaultPercent: 30, ThresholdPercent: 5, HoldDown: time.Second, Interval: 200 * time.Millisecond}
	shares, err := share.NewController(shareConfig(cfg))
	if err != nil {
		t.Fatal(err)
	}
	id := share.ID{IF: "a"}
	if err := shares.Add(id, 40); err != nil {
		t.Fatal(err)
	}
	const early = 100 * time.Microsecond
	shares.Step(early, nil)
	short := map[share.ID]share.Observation{id: {Latency: 75 * time.Millisecond, SLO: 50 * time.Millisecond, Throughput: 100, ArrivalRate: 50}}
	if p := shares.Step(800*time.Millisecond, short); len(p.Changes) != 0 {
		t.Errorf("changes %+v a look before the end of the hold-down", p.Changes)
	}
	if p := shares.Step(time.Second, short); len(p.Changes) != 1 {
		t.Errorf("changes %+v at its end, want one", p.Changes)
	}
}

// The next burst needs what the last one did.
func TestAPauseBetweenBurstsIsNoLoad(t *testing.T) {
	var l instanceLoad
	for look := range 120 {
		rate := 1000
		if look/3%2 == 1 {
			rate = 200
		}
		if l.stepped(rate, time.Second) {
			l.aside, l.rate = 0, share.EWMA{}
		}
		l.rate.Add(float64(rate))
		if mean, _ := l.rate.Mean(); mean < 600 {
			t.Fatalf("look %d: %v a second where bursts of 1000 come and go", look, mean)
		}
	}
}

// A few requests come now and then more, and now and then fewer, and nothing has changed.
func TestALoadOfFewRequestsDoesNotStepByChance(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const looks = 1000
	for _, rate := range []float64{1, 2, 5, 12} { // a second
		var l instanceLoad
		steps := 0
		for range looks {
			arrived := 0
			for at := random.ExpFloat64() / rate; at < enoughTime.Seconds(); at += random.ExpFloat64() / rate {
				arrived++
			}
			if l.stepped(arrived, enoughTime) {
				l.aside, l.rate = 0, share.EWMA{}
				steps++
			}
			l.rate.Add(float64(arrived) / enoughTime.Seconds())
		}
		if steps > looks/100 {
			t.Errorf("%v requests a second step %d times in %d looks", rate, steps, looks)
		}
	}
}

// goThrough has an instance go through so many requests for so long, and looks at it.
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

// lenders is a node of two functions of 30 and 50 % on a CPU. Its look goes through an
// interval with so many requests of each; b keeps up with each in 5 ms, a lacks three
// quarters of what it needs.
func lenders(t *testing.T) (a, b *instance, look func(elapsed time.Duration, ofA, ofB int)) {
	bed := newNode(t, "cpu", nil, "governor", named("a", 30), named("b", 50))
	bed.turns()
	a, b = bed.instance("a", 0), bed.instance("b", 0)
	now := time.Now()
	for _, in := range []*instance{a, b} {
		in.f.slo = 50 * time.Millisecond
	}
	return a, b, func(elapsed time.Duration, ofA, ofB int) {
		t.Helper()
		now = now.Add(elapsed)
		for in, n := range map[*instance]int{a: ofA, b: ofB} {
			tail, each := 48*time.Millisecond, 5*time.Millisecond
			if in == a {
				tail, each = 100*time.Millisecond, elapsed/time.Duration(max(1, n))
			}
			in.f.mu.Lock()
			t := &in.tally
			t.arrived, t.answered, t.ran, t.busy = t.arrived+n, t.answered+n, t.ran+n, t.busy+time.Duration(n)*each
			for i := range min(n, keptLatencies) {
				t.latencies[i] = tail
			}
			in.f.mu.Unlock()
		}
		bed.tune(now)
		bed.turns()
	}
}

// Its neighbours have the share of a function that nobody asks, any more or yet, and it has
// it back with its first request.
func TestAFunctionThatNobodyAsksLendsItsShare(t *testing.T) {
	for name, asked := range map[string]int{"any more": 3, "yet": 0} {
		t.Run(name, func(t *testing.T) {
			a, b, look := lenders(t)
			for range asked {
				look(time.Second, 200, 70)
			}
			for i := range 60 {
				before := b.pair.Share()
				look(time.Second, 200, 0)
				if got := b.pair.Share(); i < 19 && got != 50 {
					t.Fatalf("it has %v %% after %d s without requests", got, i+1)
				} else if got > before {
					t.Fatalf("it was raised from %v to %v %% in its silence", before, got)
				}
			}
			if got := [2]float64{a.pair.Share(), b.pair.Share()}; got != [2]float64{95, 5} {
				t.Fatalf("shares %v after a minute, want 95 and 5", got)
			}
			look(time.Second, 200, 1)
			if got := [2]float64{a.pair.Share(), b.pair.Share()}; got != [2]float64{50, 50} {
				t.Errorf("shares %v a look after its first request, want 50 and 50", got)
			}
		})
	}
}

// A process that ends asks for nothing: what was lent stays lent until somebody does.
func TestWhoIsSilentStaysSoWhileNobodyServesIt(t *testing.T) {
	_, b, look := lenders(t)
	for range 30 {
		look(time.Second, 200, 0)
	}
	if b.pair = pair.New(b.f.card, 5); b.pair.Active() != nil {
		t.Fatal("somebody serves")
	}
	now := time.Now().Add(time.Hour)
	if b.hearken(now, 0, false, false); !b.silent {
		t.Error("it is heard of though nothing came")
	}
	if b.hearken(now, 1, false, false); b.silent {
		t.Error("it is silent though a request came")
	}
	if b.hearken(now.Add(time.Hour), 1, false, false); b.silent {
		t.Error("it fell silent while nobody served it")
	}
}

// A pause is no silence, and no load: what bursts need stays.
func TestAFunctionKeepsItsShareBetweenBursts(t *testing.T) {
	for _, c := range []struct{ on, off int }{{3, 3}, {2, 15}, {1, 25}} {
		_, b, look := lenders(t)
		lent := 0
		for i := range 600 {
			requests := 0
			if i%(c.on+c.off) < c.on {
				requests = 130
			}
			look(time.Second, 200, requests)
			if i > 60 && b.pair.Share() != 50 {
				lent++
			}
		}
		if lent > 0 {
			t.Errorf("bursts of %d s after pauses of %d s: for %d s it had not 50 %%", c.on, c.off, lent)
		}
	}
}

// Where nobody is short, silence moves nothing: a change costs a process's start.
func TestNothingMovesWhereNobodyIsShort(t *testing.T) {
	b := newNode(t, "cpu", nil, "governor", named("a", 30), named("b", 30), named("c", 30))
	b.turns()
	in, now := b.instance("a", 0), time.Now()
	in.f.slo = 50 * time.Millisecond
	for range 60 {
		b.goThrough(in, &now, time.Second, 130, 47*time.Millisecond, 5*time.Millisecond)
	}
	for _, f := range b.functions {
		if got := f.instances[0].pair.Share(); got != 30 || f.swaps.Load() != 0 {
			t.Errorf("%s has %v %% after %d swaps, want 30 and none", f.name, got, f.swaps.Load())
		}
	}
}

// answerAll has an instance run requests one at a time, each in so long, and answer as many
// more late.
func answerAll(in *instance, n, late int, each time.Duration) {
	in.f.mu.Lock()
	defer in.f.mu.Unlock()
	at := in.tally.running.inferred + 1
	for range n {
		in.tally.arrive(shm.Request{})
		in.tally.answer(shm.Request{}, shm.Result{Status: uint8(wire.StatusOK), Batch: 1, Dispatched: at, Inferred: at + int64(each)}, 0, 0)
		at += int64(each)
	}
	for range late {
		in.tally.arrive(shm.Request{})
		in.tally.answer(shm.Request{}, shm.Result{Status: uint8(wire.StatusLate)}, 0, lateFactor*in.f.slo)
	}
}

// An operator is told of an objective that cannot be met, once, and when that is so no
// more; and the function has an equal part at most.
func TestAnObjectiveThatNoShareMeetsIsTold(t *testing.T) {
	b := newNode(t, "cpu", nil, "governor", named("a", 40), named("b", 30), named("c", 20))
	b.turns()
	var log bytes.Buffer
	in, now := b.instance("a", 0), time.Now()
	in.log = zerolog.New(&log)
	in.f.slo, b.cfg.Transit = 2*time.Millisecond, 0
	in.cpuPerRequest = 70 * time.Millisecond // says nothing: it is of late ones, too
	look := func(each time.Duration) {
		now = now.Add(2 * time.Second)
		answerAll(in, 4, 96, each)
		b.tune(now)
		b.turns()
	}
	told := func() int { return strings.Count(log.String(), `"message":"objective cannot be met"`) }
	// 4 ms with 40 % is, for all that is known, 1.6 ms with all.
	for range 4 {
		look(4 * time.Millisecond)
	}
	if in.unmet != "" || told() != 0 {
		t.Fatalf("told of 4 ms with 40 %% within 2 ms: %s %s", in.unmet, &log)
	}
	// With more it takes no less.
	for range 20 {
		look(4 * time.Millisecond)
	}
	want := "objective 2ms cannot be met: one request takes 4ms at least on 50 % of the device, and would take 2.97ms at least on all of it; the least objective would be 2.97ms or more"
	if s := in.f.status(); s.Bound != "objective" || s.BoundWhy != want {
		t.Errorf("status %q, %q, want %q", s.Bound, s.BoundWhy, want)
	}
	if told() != 1 || !strings.Contains(log.String(), `"level":"warn"`) || !strings.Contains(log.String(), want) {
		t.Errorf("log %s, want one warning", &log)
	}
	if got := in.pair.Share(); got > 100.0/3 {
		t.Errorf("it has %v %%, want a third at most", got)
	}
	// A better model.
	in.forget()
	for range 4 {
		look(time.Millisecond)
	}
	if s := in.f.status(); s.Bound != "" || s.BoundWhy != "" || !strings.Contains(log.String(), "nothing says any more") {
		t.Errorf("status %q, %q, log %s, want it told that it is so no more", s.Bound, s.BoundWhy, &log)
	}
}

// A request's deadline is what its objective leaves for the way earlier.
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
			for range 6 {
				in.f.mu.Lock()
				in.tally.aggregation = 400 * 30 * time.Millisecond
				in.f.mu.Unlock()
				b.goThrough(in, &now, enoughTime, 400, c.tail, 5*time.Millisecond)
			}
			if got := in.load.observed.AggregationBound; got != c.want {
				t.Errorf("bound by aggregation: %v, want %v; observed %+v", got, c.want, in.load.observed)
			}
		})
	}
}

// What was known of a share is still of it where a load steps and nothing of it runs.
func TestAStepOfWhichNothingRunsIsShort(t *testing.T) {
	b := newNode(t, "cpu", nil, "governor", named("a", 40))
	b.turns()
	in, now := b.instance("a", 0), time.Now()
	in.f.slo = 50 * time.Millisecond
	b.cfg.Shares.Tune = false
	for range 6 {
		b.goThrough(in, &now, enoughTime, 400, 20*time.Millisecond, 5*time.Millisecond)
	}
	for range 3 {
		now = now.Add(enoughTime)
		in.f.mu.Lock()
		in.tally.arrived = 4000
		for range 4000 {
			in.tally.answer(shm.Request{}, shm.Result{Status: uint8(wire.StatusLate)}, 0, 100*time.Millisecond)
		}
		in.f.mu.Unlock()
		b.tune(now)
	}
	if o := in.load.observed; !in.load.known || o.Throughput != 200 || o.ArrivalRate < 600 || o.Latency != 100*time.Millisecond {
		t.Errorf("known %v, observed %+v; want what came, and the throughput that was", in.load.known, o)
	}
}

// What a process does not have promises nothing: the model that is to come, sizes for
// which there was no memory, sizes that the rule leaves out.
func TestSharesAreJudgedByTheBatchSizesThatMayRun(t *testing.T) {
	for _, c := range []struct {
		name string
		rule configs.Batching
		has  []int
		want []int
	}{
		{"all", configs.Batching{Rule: configs.SLAB}, []int{1, 2, 4}, []int{1, 2, 4}},
		{"nothing is heard yet", configs.Batching{Rule: configs.SLAB}, nil, []int{1, 2, 4}},
		{"no memory for more", configs.Batching{Rule: configs.SLAB}, []int{1, 2}, []int{1, 2}},
		{"one at a time", configs.Batching{Rule: configs.One}, []int{1, 2, 4}, []int{1}},
		{"a fixed size", configs.Batching{Rule: configs.Fixed, Size: 2}, []int{1, 2, 4}, []int{1, 2}},
		{"a fixed size that is not there", configs.Batching{Rule: configs.Fixed, Size: 4}, []int{1, 2}, []int{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newNode(t, "cuda", h200(), mechanismMPS, named("a", 40))
			b.turns()
			in := b.instance("a", 0)
			next := testCard()
			next.Batches = []int{8, 16}
			in.pair.Replace(next)
			in.f.batching = c.rule
			in.seen[in.pair.Active().Generation] = sight{batches: c.has}
			if got := in.sizes(); !slices.Equal(got, c.want) {
				t.Errorf("batches of %v, want %v", got, c.want)
			}
		})
	}
}

func TestABatchRanInTheSizeThatIsPrepared(t *testing.T) {
	all := tally{ladder: []int{1, 4, 16}}
	for n, want := range map[int]int{1: 1, 2: 4, 4: 4, 5: 16, 16: 16, 17: 17} {
		if got := all.prepared(n); got != want {
			t.Errorf("a batch of %d ran as one of %d, want %d", n, got, want)
		}
	}
	if next := all.next(); next.prepared(2) != 4 {
		t.Error("the next tally does not know the sizes")
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
	// The largest ever stays; percentiles are of the latest.
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

// Of few requests a tail is known badly for ever; that too many are late is known in time.
func TestAShortageOfFewRequestsIsSeenInTime(t *testing.T) {
	for _, c := range []struct {
		late  int // of 12
		moves bool
	}{{2, true}, {1, false}, {0, false}} {
		b := newNode(t, "cpu", nil, "governor", named("a", 30))
		b.turns()
		in, now := b.instance("a", 0), time.Now()
		in.f.slo, b.cfg.Transit = 50*time.Millisecond, 0
		moved := 0
		for i := range 60 { // five minutes
			now = now.Add(5 * time.Second)
			in.f.mu.Lock()
			t := &in.tally
			t.arrived, t.answered, t.ran, t.busy = 12, 12, 12, 12*20*time.Millisecond
			for j := range 12 {
				if t.latencies[j] = 30 * time.Millisecond; j < c.late && (c.late > 1 || i%2 == 0) {
					t.latencies[j] = 60 * time.Millisecond
				}
			}
			in.f.mu.Unlock()
			b.tune(now)
			b.turns()
			if moved == 0 && in.pair.Share() > 30 {
				moved = i + 1
			}
		}
		if moves := moved > 0; moves != c.moves || moved > 24 {
			t.Errorf("%d of 12 late by a fifth: %v %% at last, raised at look %d, want %v", c.late, in.pair.Share(), moved, c.moves)
		}
	}
}

// One whose requests wait for their answers is not silent, however long ago they came.
func TestWhoHasRequestsIsNotSilent(t *testing.T) {
	_, b, look := lenders(t)
	look(time.Second, 200, 1)
	b.f.mu.Lock()
	b.inFlight = 1
	b.f.mu.Unlock()
	for range 60 {
		look(time.Second, 200, 0)
	}
	if got := b.pair.Share(); got != 50 {
		t.Errorf("it has %v %% while a request of its is answered, want 50", got)
	}
}

// One that is being removed has no share to lend, and nobody is told that every second.
func TestWhoIsRemovedLendsNothing(t *testing.T) {
	b := newNode(t, "cpu", nil, "governor", named("a", 30), named("b", 50))
	b.turns()
	var log bytes.Buffer
	b.log = zerolog.New(&log)
	b.instance("b", 0).f.removing = true
	b.shareOut(b.instance("b", 0).f)
	b.tune(time.Now().Add(time.Second))
	if strings.Contains(log.String(), `"level":"error"`) {
		t.Errorf("log %s", &log)
	}
}

// Where multiprocessors come in groups two shares may be the same of them: that more of the
// device is no quicker is not shown by that.
func TestTwoSharesOfTheSameMultiprocessorsProveNothing(t *testing.T) {
	b := newNode(t, "cuda", h200(), mechanismMPS, named("a", 25), named("b", 25), named("c", 25), named("d", 25))
	b.turns()
	in, now := b.instance("a", 0), time.Now()
	in.f.slo, b.cfg.Transit = 4*time.Millisecond, 0
	for _, percent := range []float64{20, 25} {
		in.setShare(percent)
		b.turns()
		for range 8 {
			in.seen[in.pair.Active().Generation] = sight{sms: 32, batches: []int{1}}
			now = now.Add(5 * time.Second)
			answerAll(in, 8, 0, 5*time.Millisecond)
			in.measure(now)
		}
	}
	if percent, least, _ := in.reach.Best(); math.Abs(percent-100*32.0/132) > 1e-9 || least != 5*time.Millisecond {
		t.Errorf("%v with %v %%, want 5ms with 32 of 132 multiprocessors", least, percent)
	}
	if in.unmet != "" {
		t.Errorf("told: %s", in.unmet)
	}
}

// What is known of an objective is of a model.
func TestAnotherModelsObjectiveIsTriedAnew(t *testing.T) {
	b := newNode(t, "cpu", nil, "governor", named("a", 30), named("b", 30), named("c", 30))
	b.turns()
	in := b.instance("a", 0)
	in.unmet = "cannot be met"
	b.lend(in)
	in.f.config.SharePercent = 40
	in.forget()
	b.shareReplaced(in)
	b.turns()
	if in.unmet != "" || in.pair.Share() != 40 {
		t.Errorf("%q, %v %%, want 40 %% and no verdict on the new model", in.unmet, in.pair.Share())
	}
}

// The batch that ran while a share changed is of both.
func TestWhatIsQuickOfTheShareBeforeIsNotOfTheNextOne(t *testing.T) {
	b := newNode(t, "cpu", nil, "governor", named("a", 20))
	b.turns()
	in, now := b.instance("a", 0), time.Now()
	for i := range 4 {
		now = now.Add(5 * time.Second)
		if i == 1 { // the first of a share: the look before emptied what was before
			answerAll(in, 1, 0, time.Millisecond)
		}
		answerAll(in, 8, 0, 5*time.Millisecond)
		in.measure(now)
	}
	if _, least, _ := in.reach.Best(); least != 5*time.Millisecond {
		t.Errorf("%v at least, want 5ms", least)
	}
}
