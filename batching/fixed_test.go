package batching

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRule(t, One, Config{SLO: 25 * time.Millisecond, Ladder: []int{1, 2, 4, 8}})
		s := r.Start()
		for range rapid.IntRange(1, 50).Draw(t, "batches") {
			if r.Size(s) != 1 {
				t.Fatalf("size is %d, want 1", r.Size(s))
			}
			s = r.Next(s, observed(t, r, s))
			pending := []Request{{Whole: 1 << 40, Deadline: 2 << 40}}
			if at := r.ReadyAt(s, pending); at != math.MinInt64 {
				t.Fatalf("ready at %d, want at once", at)
			}
		}
	})
}

// observed draws a possible observation of a dispatch.
func observed(t *rapid.T, r *Rule, s State) Observation {
	n := rapid.IntRange(0, r.Size(s)).Draw(t, "batch")
	o := Observation{
		Batch: n, Padded: r.Pad(n), Late: rapid.IntRange(0, 5).Draw(t, "late"),
		Elapsed: time.Duration(rapid.Int64Range(1, 1e9).Draw(t, "elapsed")), Waited: time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "waited")),
	}
	if n == 0 {
		o.Padded = 0
	}
	return o
}

// A batch of a fixed size begins when it is full, or its oldest request has waited for the delay.
func TestFixedReadyAt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ladder := []int{1, 2, 4, 8, 16}
		size := rapid.SampledFrom(ladder).Draw(t, "size")
		delay := time.Duration(rapid.Int64Range(0, 1000).Draw(t, "delay"))
		r := newRule(t, Fixed, Config{SLO: time.Second, Ladder: ladder, Fixed: size, Delay: delay})
		s := r.Start()
		for range rapid.IntRange(0, 20).Draw(t, "batches") {
			s = r.Next(s, observed(t, r, s)) // the rule learns nothing that changes its limit
		}
		if r.Size(s) != size {
			t.Fatalf("size is %d, want %d", r.Size(s), size)
		}
		pending := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Request {
			return Request{
				Slot: rapid.Uint32Range(0, 1000).Draw(t, "slot"), Whole: rapid.Int64Range(0, 10000).Draw(t, "whole"), Deadline: 1 << 40,
			}
		}), 1, 40).Draw(t, "pending")
		at := r.ReadyAt(s, pending)
		oldest := slices.MinFunc(pending, func(a, b Request) int { return int(a.Whole - b.Whole) }).Whole
		switch {
		case len(pending) >= size && at != math.MinInt64:
			t.Fatalf("a full batch is ready at %d, want at once", at)
		case len(pending) < size && at != oldest+int64(delay):
			t.Fatalf("%d of %d are ready at %d; the oldest is of %d, and may wait for %d", len(pending), size, at, oldest, delay)
		}
		// The rule takes all requests, although padding costs: here a batch of 16
		// takes 16 times as long as a batch of one.
		inProportion := func(n int) time.Duration { return time.Duration(r.Pad(n)) }
		if batch, late := r.Pick(s, pending, 0, false, inProportion); batch != min(size, len(pending)) || late != 0 {
			t.Fatalf("batch of %d and %d late of %d, want %d", batch, late, len(pending), min(size, len(pending)))
		}
	})
}

// A process with partial warm-up has small batch sizes first.
func TestFixedSize(t *testing.T) {
	cfg := Config{SLO: time.Second, Ladder: []int{1}, Fixed: 8, Delay: time.Millisecond}
	r := newRule(t, Fixed, cfg)
	s := r.Start()
	if r.Size(s) != 1 || r.ReadyAt(s, make([]Request, 1)) != math.MinInt64 {
		t.Errorf("size is %d with a ladder of 1, ready at %d", r.Size(s), r.ReadyAt(s, make([]Request, 1)))
	}
	cfg.Ladder = []int{1, 2, 4, 8, 16}
	grown := newRule(t, Fixed, cfg)
	if s = grown.Grown(s, r); grown.Size(s) != 8 {
		t.Errorf("size is %d when it has grown, want 8", grown.Size(s))
	}
}

func TestSince(t *testing.T) {
	batch := []Request{{Whole: 30}, {Whole: 10}, {Whole: 20}}
	for _, c := range []struct {
		rule string
		size int
		wait time.Duration
		want int64
	}{{SLAB, 0, 0, 10}, {AIMD, 0, 0, 10}, {One, 0, 0, 10}, {Fixed, 3, 100, 30}, {Fixed, 2, 100, 30}, {Fixed, 3, 15, 25}, {Fixed, 4, 100, 110}, {Fixed, 8, 0, 10}} {
		r := newRule(t, c.rule, Config{SLO: time.Second, Ladder: upTo(8), Fixed: c.size, Delay: c.wait})
		if got := r.Since(r.Start(), batch); got != c.want {
			t.Errorf("%s of %d with a delay of %d: since %d, want %d", c.rule, c.size, c.wait, got, c.want)
		}
	}
}

func TestFixedErrors(t *testing.T) {
	for _, c := range []Config{{SLO: time.Second, Ladder: upTo(8)}, {SLO: time.Second, Ladder: upTo(8), Fixed: 4, Delay: -1}} {
		if _, err := New(Fixed, c); err == nil || !strings.Contains(err.Error(), "wrong settings") {
			t.Errorf("New(fixed, %+v) = %v", c, err)
		}
	}
}

func TestReadyAtAllocations(t *testing.T) {
	r := newRule(t, Fixed, Config{SLO: time.Second, Ladder: upTo(32), Fixed: 32, Delay: time.Millisecond})
	s, pending := r.Start(), make([]Request, 31)
	if n := testing.AllocsPerRun(100, func() { r.ReadyAt(s, pending) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
