package batching

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"pgregory.net/rapid"
)

// device returns the time of a batch of that padded size.
type device func(padded int) time.Duration

func linear(fixed, each time.Duration) device {
	return func(n int) time.Duration { return fixed + time.Duration(n)*each }
}

// upTo returns every batch size up to n.
func upTo(n int) []int {
	ladder := make([]int, n)
	for i := range ladder {
		ladder[i] = i + 1
	}
	return ladder
}

func newRule(t rapid.TB, name string, c Config) *Rule {
	t.Helper()
	r, err := New(name, c)
	must.OK(t, err)
	return r
}

// run runs full batches back to back and returns the last state. For each batch it
// reports whether a request missed the objective that arrived just after the previous
// batch began. A batch of 1 cannot be made smaller and counts as in time.
func run(r *Rule, s State, d device, batches int, report func(missed bool)) State {
	for range batches {
		previous := seconds(s.previous)
		n := r.Size(s)
		took := d(r.Pad(n))
		report(n > 1 && previous+took > r.cfg.SLO)
		s = r.Next(s, Observation{Batch: n, Padded: r.Pad(n), Elapsed: took, Waited: previous})
	}
	return s
}

// saturate calls run and counts the misses in the second half.
func saturate(r *Rule, s State, d device, batches int) (State, int) {
	beyond := 0
	i := 0
	s = run(r, s, d, batches, func(missed bool) {
		if missed && i >= batches/2 {
			beyond++
		}
		i++
	})
	return s, beyond
}

// best is the largest prepared size of which two in a row fit the objective.
func best(r *Rule, d device) int {
	n := 1
	for next := r.step(n); next > n && 2*d(next) <= r.cfg.SLO; next = r.step(n) {
		n = next
	}
	return n
}

func TestNewErrors(t *testing.T) {
	for _, c := range []struct {
		rule string
		cfg  Config
		want string
	}{
		{"clipper", Config{SLO: time.Second, Ladder: upTo(1)}, `"clipper"`},
		{"", Config{SLO: time.Second, Ladder: upTo(1)}, "unknown"},
		{SLAB, Config{Ladder: upTo(8)}, "wrong settings"},
		{SLAB, Config{SLO: time.Second}, "wrong settings"},
		{SLAB, Config{SLO: time.Second, Ladder: []int{0, 4}}, "Ladder:[0 4]"},
		{AIMD, Config{SLO: time.Second, Ladder: []int{1, 4, 4}}, "Ladder:[1 4 4]"},
		{AIMD, Config{SLO: time.Second, Ladder: []int{4, 1}}, "Ladder:[4 1]"},
	} {
		_, err := New(c.rule, c.cfg)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%s, %+v) = %v, want it to say %q", c.rule, c.cfg, err, c.want)
		}
	}
}

// Size is the largest step within the limit, Pad the next step above.
func TestSizeAndPad(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: time.Second, Ladder: []int{1, 2, 4, 8}})
	for _, c := range []struct {
		limit float64
		size  int
	}{{0, 1}, {1, 1}, {1.99, 1}, {2, 2}, {3.9, 2}, {7, 4}, {8, 8}, {100, 8}} {
		if got := r.Size(State{Limit: c.limit}); got != c.size {
			t.Errorf("Size at limit %v = %d, want %d", c.limit, got, c.size)
		}
	}
	for n, want := range map[int]int{1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 9} {
		if got := r.Pad(n); got != want {
			t.Errorf("Pad(%d) = %d, want %d", n, got, want)
		}
	}
	every := newRule(t, SLAB, Config{SLO: time.Second, Ladder: upTo(5)})
	if got := every.Size(State{Limit: 9.5}); got != 5 {
		t.Errorf("Size beyond the largest = %d, want 5", got)
	}
	if got := every.Pad(3); got != 3 {
		t.Errorf("Pad(3) with every size = %d, want 3", got)
	}
}

// SLAB finds the best batch size within a few batches.
func TestSLABConverges(t *testing.T) {
	for _, c := range []struct {
		name        string
		slo         time.Duration
		fixed, each time.Duration
		ladder      []int
	}{
		{"VGG-19, 25 ms", 25 * time.Millisecond, 6600 * time.Microsecond, 1550 * time.Microsecond, upTo(32)},
		{"VGG-19, 50 ms", 50 * time.Millisecond, 6600 * time.Microsecond, 1550 * time.Microsecond, upTo(32)},
		{"VGG-19, 100 ms", 100 * time.Millisecond, 6600 * time.Microsecond, 1550 * time.Microsecond, upTo(32)},
		{"ResNet-50, 25 ms", 25 * time.Millisecond, time.Millisecond, 500 * time.Microsecond, upTo(32)},
		{"all in the start", 25 * time.Millisecond, 10 * time.Millisecond, 100 * time.Microsecond, upTo(32)},
		{"on a ladder", 50 * time.Millisecond, 5 * time.Millisecond, time.Millisecond, []int{1, 2, 4, 8, 16, 32}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRule(t, SLAB, Config{SLO: c.slo, Ladder: c.ladder})
			d := linear(c.fixed, c.each)
			s, _ := saturate(r, r.Start(), d, 12)
			// The distance corresponds to the tail of an unknown deviation.
			if n := r.Size(s); 2*d(r.step(n)) < c.slo*85/100 || n > best(r, d) {
				t.Errorf("size after 12 batches = %d, want near %d and not above", n, best(r, d))
			}
			s, _ = saturate(r, s, d, 100)
			if n := r.Size(s); 2*d(r.step(n)) < c.slo*97/100 || n > best(r, d) {
				t.Errorf("size after 112 batches = %d, want %d or just below", n, best(r, d))
			}
		})
	}
}

// anyDevice draws a device, an objective that it can meet at batch 1, and a rule.
func anyDevice(t *rapid.T, name string) (*Rule, time.Duration, time.Duration) {
	slo := time.Duration(rapid.IntRange(5, 500).Draw(t, "slo_ms")) * time.Millisecond
	one := time.Duration(rapid.Float64Range(0.01, 0.4).Draw(t, "batch of 1, part of slo") * float64(slo))
	fixed := time.Duration(rapid.Float64Range(0, 0.99).Draw(t, "fixed part") * float64(one))
	c := Config{SLO: slo, Ladder: upTo(64)}
	if rapid.Bool().Draw(t, "ladder") {
		c.Ladder = []int{1, 2, 4, 8, 16, 32, 64}
	}
	return newRule(t, name, c), fixed, one - fixed
}

// A noisyDevice is a linear device whose batches deviate by 3 %.
type noisyDevice struct {
	fixed, each time.Duration
	seed        uint64
}

func (n noisyDevice) device() device {
	noise, mean := rand.New(rand.NewPCG(n.seed, 0)), linear(n.fixed, n.each)
	return func(size int) time.Duration {
		return time.Duration(float64(mean(size)) * math.Exp(0.03*noise.NormFloat64()))
	}
}

// checkSettled runs r on d under saturation until it settles. It fails if r then misses
// the objective in more than 1 % of the batches, or for a while in far more.
//
// The objective is a rate, so the sample is large. If a larger batch costs almost
// nothing more, the true rate is 0.4 %. Misses come in clusters, because the model
// remembers seven batches: one run of 500 batches in 200 then has 8 misses (1.6 %). So a
// window of 500 only shows whether SLAB settled above the objective.
func checkSettled(t rapid.TB, r *Rule, d device) {
	t.Helper()
	const settling, window, windows = 500, 500, 20

	s := run(r, r.Start(), d, settling, func(bool) {})
	total := 0
	for i := range windows {
		beyond := 0
		s = run(r, s, d, window, func(missed bool) {
			if missed {
				beyond++
			}
		})
		if beyond > window/20 {
			t.Fatalf("window %d: %d of %d batches beyond the objective, limit %.2f", i, beyond, window, s.Limit)
		}
		total += beyond
	}
	if total > windows*window/100 {
		t.Fatalf("%d of %d batches beyond the objective, limit %.2f", total, windows*window, s.Limit)
	}
}

// The limit never settles above the objective.
func TestSLABObjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, fixed, each := anyDevice(t, SLAB)
		n := noisyDevice{fixed, each, rapid.Uint64().Draw(t, "seed")}
		checkSettled(t, r, n.device())
	})
}

// In this draw 6 of the batches 500 to 999 are beyond the objective. That is chance;
// SLAB did not settle there.
func TestSLABFlatDevice(t *testing.T) {
	slo := 5 * time.Millisecond
	one := time.Duration(0.4 * float64(slo))
	fixed := time.Duration(0.99 * float64(one))
	n := noisyDevice{fixed: fixed, each: one - fixed, seed: 0xef}

	r := newRule(t, SLAB, Config{SLO: slo, Ladder: upTo(64)})
	if _, beyond := saturate(r, r.Start(), n.device(), 1000); beyond != 6 {
		t.Errorf("%d of the batches 500 to 999 beyond the objective, want the 6 that were seen", beyond)
	}
	checkSettled(t, r, n.device())
}

// The objective is so tight that the device can only meet it with one request per batch:
// the limit is 1 and stays there after every probe.
func TestSLABSlowDevice(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 50 * time.Millisecond, Ladder: upTo(32)})
	s, beyond := saturate(r, r.Start(), linear(0, 20*time.Millisecond), 2000)
	if s.Limit >= 2 || beyond > 10 {
		t.Errorf("limit %.2f with %d of 1000 batches beyond, want 1 and at most 10 probes", s.Limit, beyond)
	}
}

func TestSLABDeviceChanges(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 100 * time.Millisecond, Ladder: upTo(64)})
	whole, half := linear(4*time.Millisecond, time.Millisecond), linear(8*time.Millisecond, 2*time.Millisecond)
	s, _ := saturate(r, r.Start(), whole, 200)
	before := s.Limit
	s, _ = saturate(r, s, half, 4)
	if 2*half(r.Size(s)) > r.cfg.SLO {
		t.Errorf("size %d four batches after the device slowed down: two take %v", r.Size(s), 2*half(r.Size(s)))
	}
	s, _ = saturate(r, s, whole, 8)
	if s.Limit < 0.8*before {
		t.Errorf("limit %.1f eight batches after the device recovered, was %.1f", s.Limit, before)
	}
}

// A device may be faster than the line through the observations: TensorRT's VGG-19 on a
// V100 takes 13.7, 22.6, 25.2, 30.5, 41.0 ms at 1, 2, 4, 8, 16.
func TestSLABStep(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 80 * time.Millisecond, Ladder: []int{1, 2, 4, 8, 16}})
	times := map[int]time.Duration{1: 13700, 2: 22600, 4: 25200, 8: 30500, 16: 41000}
	s, _ := saturate(r, r.Start(), func(n int) time.Duration { return times[n] * time.Microsecond }, 1000)
	if r.Size(s) != 8 {
		t.Errorf("size %d, want 8: two of 8 take 61 ms of 80, two of 16 82", r.Size(s))
	}
}

// One outlier does not change the limit.
func TestSLABOutlier(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 100 * time.Millisecond, Ladder: upTo(64)})
	d := linear(4*time.Millisecond, time.Millisecond)
	s, _ := saturate(r, r.Start(), d, 200)
	n := r.Size(s)
	after := r.Next(s, Observation{Batch: n, Padded: n, Elapsed: 5 * d(n), Waited: d(n)})
	if after.Limit < 0.9*s.Limit {
		t.Errorf("one batch of five times its time took the limit from %.1f to %.1f", s.Limit, after.Limit)
	}
}

// Batches far below the limit do not raise it.
func TestSLABSmallBatches(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 100 * time.Millisecond, Ladder: upTo(64)})
	s := r.Start()
	s.Limit = 16
	for range 1000 {
		s = r.Next(s, Observation{Batch: 3, Padded: 3, Elapsed: 5 * time.Millisecond})
	}
	if s.Limit != 16 {
		t.Errorf("limit %.2f after batches of 3 at limit 16, want 16", s.Limit)
	}
	if s = r.Next(s, Observation{Batch: 14, Padded: 14, Elapsed: 16 * time.Millisecond}); s.Limit <= 16 {
		t.Errorf("limit %.2f after a batch of 14 with headroom, want more than 16", s.Limit)
	}
}

// If requests never wait for a running batch (bursts to an idle device), a batch may
// take the whole rest of the objective, not half.
func TestSLABWait(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 50 * time.Millisecond, Ladder: upTo(64)})
	d := linear(4*time.Millisecond, time.Millisecond)
	s := r.Start()
	for range 300 {
		n := r.Size(s)
		s = r.Next(s, Observation{Batch: n, Padded: n, Elapsed: d(n)})
	}
	if took := d(r.Size(s)); took < 40*time.Millisecond || took > 50*time.Millisecond {
		t.Errorf("a batch of %d takes %v of 50ms without waiting, want 40 to 50", r.Size(s), took)
	}
	s, _ = saturate(r, s, d, 100)
	if took := d(r.Size(s)); took > 25*time.Millisecond {
		t.Errorf("a batch of %d takes %v behind another one, want half of 50ms at most", r.Size(s), took)
	}
}

// The limit leaves time for the aggregation.
func TestSLABAggregation(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 100 * time.Millisecond, Ladder: upTo(64)})
	d := linear(4*time.Millisecond, time.Millisecond)
	s := r.Start()
	for range 300 {
		n := r.Size(s)
		s = r.Next(s, Observation{Batch: n, Padded: n, Elapsed: d(n), Waited: d(n), Aggregated: 40 * time.Millisecond})
	}
	if took := d(r.Size(s)); took > 30*time.Millisecond || took < 25*time.Millisecond {
		t.Errorf("a batch takes %v, want just under (100 - 40) / 2 ms", took)
	}
}

// The longer a request was in the backlog, the longer it waited; the rule must ignore
// that.
func TestBacklog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, fixed, each := anyDevice(t, SLAB)
		s, _ := saturate(r, r.Start(), linear(fixed, each), rapid.IntRange(1, 50).Draw(t, "batches"))
		began := int64(time.Hour)
		ended := began + int64(linear(fixed, each)(r.Size(s)))
		whole := began - rapid.Int64Range(0, int64(time.Minute)).Draw(t, "older than the running batch by")
		fresh := []Request{{Whole: began}}
		backlog := []Request{{Whole: began}, {Slot: 1, Whole: whole}, {Slot: 2, Whole: ended}}
		o := Observation{Batch: r.Size(s), Padded: r.Pad(r.Size(s)), Elapsed: time.Duration(ended - began)}
		o.Waited = WaitForRunning(fresh, began, ended)
		alone := r.Next(s, o)
		o.Waited = WaitForRunning(backlog, began, ended)
		if queued := r.Next(s, o); queued != alone {
			t.Fatalf("limit %v behind a backlog, %v without", queued.Limit, alone.Limit)
		}
		o.Late = rapid.IntRange(0, 1000).Draw(t, "late")
		if dropping := r.Next(s, o); dropping.Limit < alone.Limit {
			t.Fatalf("limit %v when backlog is answered late, %v without", dropping.Limit, alone.Limit)
		}
	})
}

// Only the wait for the running batch counts.
func TestWaitForRunning(t *testing.T) {
	for _, c := range []struct {
		name         string
		wholes       []int64
		began, ended int64
		want         time.Duration
	}{
		{"nothing pending", nil, 10, 20, 0},
		{"came in the middle", []int64{14}, 10, 20, 6},
		{"came before it began", []int64{3}, 10, 20, 10},
		{"came after it ended", []int64{25}, 10, 20, 0},
		{"the oldest counts", []int64{19, 12, 25}, 10, 20, 8},
		{"before the first batch", []int64{5}, 0, 0, 0},
	} {
		var pending []Request
		for _, w := range c.wholes {
			pending = append(pending, Request{Whole: w})
		}
		if got := WaitForRunning(pending, c.began, c.ended); got != c.want {
			t.Errorf("%s: waited %d, want %d", c.name, got, c.want)
		}
	}
}

// More headroom never leads to a smaller limit.
func TestHeadroom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, fixed, each := anyDevice(t, SLAB)
		more := r.cfg
		more.SLO = time.Duration(float64(r.cfg.SLO) * rapid.Float64Range(1, 4).Draw(t, "objective times"))
		wide := newRule(t, SLAB, more)
		d := linear(fixed, each)
		a, _ := saturate(r, r.Start(), d, 120)
		b, _ := saturate(wide, wide.Start(), d, 120)
		if wide.Size(b) < r.Size(a) {
			t.Fatalf("size %d at %v, %d at %v", r.Size(a), r.cfg.SLO, wide.Size(b), more.SLO)
		}
	})
}

// Overload raises the limit, and its end lowers the limit again.
func TestOverload(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 100 * time.Millisecond, Ladder: upTo(64)})
	d := linear(10*time.Millisecond, time.Millisecond)
	calm, _ := saturate(r, r.Start(), d, 200)
	s := calm
	for range 20 {
		n := r.Size(s)
		s = r.Next(s, Observation{Batch: n, Padded: n, Elapsed: d(n), Waited: d(n), Late: n})
	}
	if took := d(r.Size(s)); took < 60*time.Millisecond || took > 67*time.Millisecond {
		t.Errorf("a batch takes %v in overload, want just under two thirds of 100ms", took)
	}
	s, _ = saturate(r, s, d, 500)
	if s.Limit > 1.05*calm.Limit {
		t.Errorf("limit %.1f after the overload, %.1f before", s.Limit, calm.Limit)
	}
}

// After warm-up the limit grows at once.
func TestWarm(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 50 * time.Millisecond, Ladder: []int{1, 4, 16, 64}})
	d := linear(4*time.Millisecond, time.Millisecond)
	s := r.Start()
	for _, n := range r.cfg.Ladder {
		s = r.Warm(s, n, d(n))
	}
	if r.Size(s) != 1 || s.Fit != fitUnknown {
		t.Fatalf("warming moved the limit to %v, fit %v", s.Limit, s.Fit)
	}
	if s = r.Next(s, Observation{Batch: 1, Padded: 1, Elapsed: d(1)}); r.Size(s) != 16 {
		t.Errorf("size %d after the first request, want 16", r.Size(s))
	}
	if cold := r.Warm(r.Start(), 0, 0); cold != r.Start() {
		t.Error("a warm-up of nothing changed the state")
	}
}

// A rule that gets more sizes reaches the limit of a warmed-up rule within a few
// batches. That also holds in overload, with an objective that two batches of 1 hardly
// fit.
func TestGrown(t *testing.T) {
	ladder := []int{1, 2, 4, 8, 16, 32}
	for name, c := range map[string]struct {
		slo  time.Duration
		late int
	}{"with room": {50 * time.Millisecond, 0}, "in overload": {50 * time.Millisecond, 4}, "tight, in overload": {5 * time.Millisecond, 4}} {
		t.Run(name, func(t *testing.T) {
			small := newRule(t, SLAB, Config{SLO: c.slo, Ladder: ladder[:1]})
			large := newRule(t, SLAB, Config{SLO: c.slo, Ladder: ladder})
			d := linear(2*time.Millisecond, 50*time.Microsecond)
			run := func(r *Rule, s State, batches int) State {
				for range batches {
					n := r.Size(s)
					s = r.Next(s, Observation{Batch: n, Padded: n, Elapsed: d(n), Waited: d(n), Late: c.late})
				}
				return s
			}
			warmed := large.Start()
			for _, n := range ladder {
				warmed = large.Warm(warmed, n, d(n))
			}
			warmed = run(large, warmed, 200)
			s := run(small, small.Start(), 500)
			if small.Size(s) != 1 {
				t.Fatalf("size %d of %v", small.Size(s), ladder[:1])
			}
			s = run(large, large.Grown(s, small), 12)
			if got, want := large.Size(s), large.Size(warmed); got != want {
				t.Errorf("size %d after 12 batches, want %d", got, want)
			}
		})
	}
}

// A limit below the largest size does not change when sizes are added.
func TestGrownBelowLimit(t *testing.T) {
	small := newRule(t, SLAB, Config{SLO: 50 * time.Millisecond, Ladder: []int{1, 2, 4}})
	large := newRule(t, SLAB, Config{SLO: 50 * time.Millisecond, Ladder: []int{1, 2, 4, 8}})
	s := small.Start()
	s.Limit = 2.5
	if got := large.Grown(s, small); got != s {
		t.Errorf("limit %g, was %g", got.Limit, s.Limit)
	}
	aimd := newRule(t, AIMD, Config{SLO: 50 * time.Millisecond, Ladder: []int{1, 2}})
	if s := aimd.Start(); aimd.Grown(s, newRule(t, AIMD, Config{SLO: time.Second, Ladder: []int{1}})) != s {
		t.Error("AIMD knows no trials")
	}
}

// A fit is reported after five occurrences in a row.
func TestFit(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 50 * time.Millisecond, Ladder: upTo(8)})
	hit := Observation{Batch: 1, Padded: 1, Elapsed: 10 * time.Millisecond}
	miss := Observation{Batch: 1, Padded: 1, Elapsed: 60 * time.Millisecond}
	dropped := Observation{Late: 3}
	times := func(o Observation, n int) []Observation {
		var all []Observation
		for range n {
			all = append(all, o)
		}
		return all
	}
	for _, c := range []struct {
		name string
		seen []Observation
		want Fit
	}{
		{"nothing", nil, fitUnknown},
		{"four misses", times(miss, 4), fitUnknown},
		{"five misses", times(miss, 5), fitUnder},
		{"a hit between misses", append(append(times(miss, 4), hit), miss), fitUnknown},
		{"a hit after five misses", append(times(miss, 5), hit), fitUnknown},
		{"four hits", times(hit, 4), fitUnknown},
		{"five hits", times(hit, 5), fitOver},
		{"a miss after five hits", append(times(hit, 5), miss), fitUnknown},
		{"five dispatches with all late", times(dropped, 5), fitUnder},
	} {
		s := r.Start()
		for _, o := range c.seen {
			s.Limit = 1
			s = r.Next(s, o)
		}
		if s.Fit != c.want {
			t.Errorf("%s: fit %q, want %q", c.name, s.Fit, c.want)
		}
	}
	large := r.Start()
	for range 10 {
		large.Limit = 4
		large = r.Next(large, Observation{Batch: 4, Padded: 4, Elapsed: 60 * time.Millisecond})
	}
	if large.Fit != fitUnknown {
		t.Errorf("misses at limit 4 reported as %q: the limit has room to shrink", large.Fit)
	}
}

// The estimate is a tail, and contains the padding.
func TestExpected(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 100 * time.Millisecond, Ladder: []int{1, 2, 4, 8, 16}})
	noise := rand.New(rand.NewPCG(1, 1))
	clean := linear(4*time.Millisecond, time.Millisecond)
	d := func(n int) time.Duration {
		return time.Duration(float64(clean(n)) * math.Exp(0.05*noise.NormFloat64()))
	}
	s, _ := saturate(r, r.Start(), d, 500)
	if r.Expected(s, 9) != r.Expected(s, 16) {
		t.Errorf("9 take %v and 16 %v, both run as 16", r.Expected(s, 9), r.Expected(s, 16))
	}
	over := 0
	for range 10000 {
		if d(16) > r.Expected(s, 16) {
			over++
		}
	}
	if over == 0 || over > 300 {
		t.Errorf("%d of 10000 batches take longer than expected, want a tail of about 1 %%", over)
	}
	if got := r.Expected(r.Start(), 4); got != 0 {
		t.Errorf("expected %v before anything was seen, want 0", got)
	}
}

// AIMD adds a quarter per full batch, and removes a tenth after a miss.
func TestAIMD(t *testing.T) {
	r := newRule(t, AIMD, Config{SLO: 50 * time.Millisecond, Ladder: upTo(12)})
	s := r.Start()
	s.Limit = 10
	up := r.Next(s, Observation{Batch: 10, Padded: 10, Elapsed: 20 * time.Millisecond})
	if up.Limit != 10.25 {
		t.Errorf("limit %v after a full batch in time, want 10.25", up.Limit)
	}
	if idle := r.Next(s, Observation{Batch: 2, Padded: 2, Elapsed: 20 * time.Millisecond}); idle.Limit != 10 {
		t.Errorf("limit %v after a small batch, want 10", idle.Limit)
	}
	down := r.Next(s, Observation{Batch: 10, Padded: 10, Elapsed: 60 * time.Millisecond})
	if down.Limit != 9 {
		t.Errorf("limit %v after a miss, want 9", down.Limit)
	}
	s.Limit = 12
	if top := r.Next(s, Observation{Batch: 12, Padded: 12, Elapsed: time.Millisecond}); top.Limit != 12 {
		t.Errorf("limit %v beyond the largest batch", top.Limit)
	}
}

// After any observations a state stays usable.
func TestAnyObservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, _, _ := anyDevice(t, rapid.SampledFrom([]string{SLAB, AIMD}).Draw(t, "rule"))
		s := r.Start()
		for range rapid.IntRange(1, 60).Draw(t, "observations") {
			n := rapid.IntRange(0, 64).Draw(t, "batch")
			s = r.Next(s, Observation{
				Batch: n, Padded: r.Pad(max(1, n)),
				Elapsed:    time.Duration(rapid.Int64Range(-1, int64(time.Hour)).Draw(t, "elapsed")),
				Aggregated: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "aggregated")),
				Waited:     time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "waited")),
				Late:       rapid.IntRange(0, 3).Draw(t, "late"),
			})
			if math.IsNaN(s.Limit) || s.Limit < 1 || s.Limit > 64 {
				t.Fatalf("limit %v", s.Limit)
			}
			if e := r.Expected(s, 8); e < 0 || e < r.Expected(s, 1) {
				t.Fatalf("8 are expected to take %v, 1 %v", e, r.Expected(s, 1))
			}
		}
	})
}

func TestNextAllocations(t *testing.T) {
	for _, name := range []string{SLAB, AIMD} {
		r := newRule(t, name, Config{SLO: 50 * time.Millisecond, Ladder: []int{1, 2, 4, 8}})
		s := r.Start()
		o := Observation{Batch: 1, Padded: 1, Elapsed: time.Millisecond, Late: 1}
		if n := testing.AllocsPerRun(100, func() { s = r.Next(s, o); r.Expected(s, 3) }); n != 0 {
			t.Errorf("%s: %v allocations a batch", name, n)
		}
	}
}

// Requests that arrive too late by themselves (with tiny deadlines of the client) say
// nothing about the device.
func TestLateRequests(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 50 * time.Millisecond, Ladder: upTo(8)})
	s, _ := saturate(r, r.Start(), linear(time.Millisecond, time.Millisecond), 50)
	before := r.Expected(s, 8)
	for range 1000 {
		s = r.Next(s, Observation{Late: 1})
	}
	if got := r.Expected(s, 8); got != before {
		t.Errorf("8 are expected to take %v after late requests, were %v", got, before)
	}
}

// The rule follows a drift even if it is too slow to be noticed from batch to batch.
func TestSLABFollowsADrift(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: 200 * time.Millisecond, Ladder: upTo(64)})
	speed := 1.0
	d := func(n int) time.Duration {
		return time.Duration(float64(linear(4*time.Millisecond, time.Millisecond)(n)) * speed)
	}
	s, _ := saturate(r, r.Start(), d, 100)
	for range 300 {
		speed *= 1.004 // 3.3 times as slow at the end
		s, _ = saturate(r, s, d, 1)
	}
	if off := float64(r.Expected(s, r.Size(s))) / float64(d(r.Size(s))); off < 0.95 || off > 1.2 {
		t.Errorf("expects %.2f of what a batch takes after the device slowed down", off)
	}
}

// A model with a fixed batch has no size of 1: fewer requests run as its size.
func TestFixedModelBatch(t *testing.T) {
	for _, c := range []struct {
		rule   string
		ladder []int
		size   int // at the start, and after misses
	}{{SLAB, []int{4}, 4}, {SLAB, []int{4, 8}, 4}, {AIMD, []int{4, 8}, 4}, {Fixed, []int{4}, 4}, {One, []int{4}, 1}} {
		t.Run(fmt.Sprint(c.rule, c.ladder), func(t *testing.T) {
			r, err := New(c.rule, Config{SLO: 20 * time.Millisecond, Ladder: c.ladder, Fixed: 4})
			must.OK(t, err)
			s := r.Start()
			if got := r.Size(s); got != c.size {
				t.Errorf("takes %d requests at the start, want %d", got, c.size)
			}
			if got := r.Pad(1); got != 4 {
				t.Errorf("pads 1 request to %d, want 4", got)
			}
			// Each batch takes far longer than the objective, whatever the number of
			// requests.
			for i := range 4 * fitAfter {
				n := min(1+i%4, r.Size(s))
				s = r.Next(s, Observation{Batch: n, Padded: r.Pad(n), Elapsed: 50 * time.Millisecond})
				if got := r.Size(s); got != c.size {
					t.Fatalf("takes %d requests after %d misses, want %d", got, i+1, c.size)
				}
			}
			if s.Fit != fitUnder {
				t.Errorf("fit is %v after misses at the smallest size, want %v", s.Fit, fitUnder)
			}
		})
	}
}

// A demoted batch teaches nothing about the guaranteed ones, however long it took.
func TestDemoted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, fixed, each := anyDevice(t, SLAB)
		s, _ := saturate(r, r.Start(), linear(fixed, each), rapid.IntRange(1, 50).Draw(t, "batches"))
		before := s
		for range rapid.IntRange(1, 50).Draw(t, "demoted") {
			o := observed(t, r, s)
			o.Demoted = true
			if o.Batch == 0 {
				continue
			}
			s = r.Next(s, o)
			if longest := float64(r.cfg.SLO) / float64(r.Typical(s, 1)); s.stretch < 1 || s.stretch > longest*1.001 {
				t.Fatalf("stretch %v, want from 1 to what makes a batch of 1 late, %v", s.stretch, longest)
			}
		}
		s.stretch, s.demoted = before.stretch, before.demoted
		if s != before {
			t.Fatalf("state is %+v, was %+v", s, before)
		}
	})
}

// Demoted batches begin again within a second after the device was busy, for however
// long.
func TestDemotedRecovery(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slo := time.Duration(rapid.IntRange(5, 100).Draw(t, "slo_ms")) * time.Millisecond
		took := time.Duration(rapid.Float64Range(0.01, 0.45).Draw(t, "batch of 1, part of slo") * float64(slo))
		r := newRule(t, SLAB, Config{SLO: slo, Ladder: upTo(1)})
		s := r.Warm(r.Start(), 1, took)
		for range 50 {
			s = r.Next(s, Observation{Batch: 1, Padded: 1, Elapsed: took})
		}
		expected := func(n int) time.Duration { return r.Expected(s, n) }
		now := int64(time.Hour)
		for range rapid.IntRange(1, 20).Draw(t, "slow batches") {
			now += rapid.Int64Range(1e6, 1e10).Draw(t, "stall")
			s = r.Next(s, Observation{Batch: 1, Padded: 1, Elapsed: time.Duration(rapid.Int64Range(1e6, 1e10).Draw(t, "elapsed")), Ended: now, Demoted: true})
		}
		for end := now + int64(time.Second); ; {
			batch, late := r.Pick(s, []Request{{Deadline: now + int64(slo)}}, now, true, expected)
			if late > 0 {
				t.Fatal("a demoted batch makes a request late that a guaranteed one would answer in time")
			}
			if now > end {
				if batch == 0 {
					t.Fatalf("no demoted batch begins 1 s after a stall: stretch %v", s.stretch)
				}
				return
			}
			now += int64(took)
			if batch > 0 {
				s = r.Next(s, Observation{Batch: 1, Padded: 1, Elapsed: took, Ended: now, Demoted: true})
			}
		}
	})
}
