package datapath

import (
	"testing"
	"time"

	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

const ms = int64(time.Millisecond)

func TestWindowTail(t *testing.T) {
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
			var all Window
			for i := c.to; i >= c.from; i-- {
				all.Answer(shm.Request{Complete: 0}, shm.Result{Status: uint8(wire.StatusOK), Batch: 1, Inferred: int64(i) * ms}, 0, 0)
			}
			if got := all.Tail(); got != c.want {
				t.Errorf("tail %v, want %v", got, c.want)
			}
		})
	}
}

// TestWindowLonger checks that a request whose client lets it wait does not look late.
func TestWindowLonger(t *testing.T) {
	for _, c := range []struct{ deadline, inferred, want int64 }{{10, 8, 8}, {100, 95, 5}, {100, 60, 0}, {100, 110, 20}} {
		var w Window
		r := shm.Request{Deadline: c.deadline * ms}
		w.Answer(r, shm.Result{Status: uint8(wire.StatusOK), Batch: 1, Inferred: c.inferred * ms}, c.inferred*ms, 10*time.Millisecond)
		if got := int64(w.Tail()); got != c.want*ms {
			t.Errorf("deadline %d ms, inferred after %d ms: latency %d ns, want %d ms", c.deadline, c.inferred, got, c.want)
		}
	}
}

func TestWindowBatch(t *testing.T) {
	var all Window
	for range 4 {
		r := shm.Request{FirstFragment: 1 * ms, Complete: 3 * ms}
		all.Arrive(r)
		all.Answer(r, shm.Result{Status: uint8(wire.StatusOK), Batch: 4, Dispatched: 5 * ms, Inferred: 13 * ms}, 20*ms, time.Hour)
	}
	if all.Arrived != 4 || all.Answered != 4 || all.Ran != 4 {
		t.Errorf("arrived %d, answered %d, ran %d; want 4 of each", all.Arrived, all.Answered, all.Ran)
	}
	if want := 8 * time.Millisecond; all.Busy != want {
		t.Errorf("busy %v, want %v: one batch", all.Busy, want)
	}
	if want := 8 * time.Millisecond; all.Aggregation != want {
		t.Errorf("aggregation %v, want %v", all.Aggregation, want)
	}
	if want := 10 * time.Millisecond; all.Tail() != want {
		t.Errorf("tail %v, want %v: complete to the end of the batch", all.Tail(), want)
	}
}

// The time of two batches in flight on a GPU counts once, for as long as either runs.
func TestWindowOverlap(t *testing.T) {
	var all Window
	batch := func(requests int, dispatched, inferred int64) {
		for range requests {
			all.Answer(shm.Request{}, shm.Result{
				Status: uint8(wire.StatusOK), Batch: uint16(requests), Dispatched: dispatched * ms, Inferred: inferred * ms,
			}, inferred*ms, time.Hour)
		}
	}
	batch(4, 0, 10)
	batch(2, 5, 18)
	all = all.next() // a new window; the third batch began before it
	batch(8, 12, 24)
	if want := 6 * time.Millisecond; all.Busy != want {
		t.Errorf("busy %v, want %v: the time without another batch", all.Busy, want)
	}
	batch(1, 13, 20) // ended earlier and was reported late: all of it was counted
	batch(1, 30, 31)
	if want := 7 * time.Millisecond; all.Busy != want {
		t.Errorf("busy %v, want %v", all.Busy, want)
	}
}

// A function that rejects requests must not seem to have just met its objective.
func TestWindowLate(t *testing.T) {
	const objective, late = 25 * time.Millisecond, 50 * time.Millisecond
	for _, c := range []struct {
		name string
		now  int64
		want time.Duration
	}{
		{"turned away early", 10 * ms, late},
		{"turned away after longer than that", 80 * ms, 80 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all Window
			all.Answer(shm.Request{}, shm.Result{Status: uint8(wire.StatusLate)}, c.now, objective)
			if all.Answered != 1 || all.Ran != 0 || all.Tail() != c.want {
				t.Errorf("answered %d, ran %d, tail %v; want 1, 0, %v", all.Answered, all.Ran, all.Tail(), c.want)
			}
		})
	}
}

func TestBehind(t *testing.T) {
	const objective = 24 * time.Millisecond
	for _, c := range []struct {
		name            string
		waited, running time.Duration // per request
		want            bool
	}{
		{"idle", 0, time.Millisecond, false},
		{"full batches in time", 8 * time.Millisecond, 8 * time.Millisecond, false},
		{"saturated", 15 * time.Millisecond, 4 * time.Millisecond, true},
		{"saturated, large batches in flight", 8 * time.Millisecond, 16 * time.Millisecond, true},
		{"one batch exceeds the objective", 10 * time.Millisecond, 40 * time.Millisecond, false},
	} {
		var w Window
		for i := range int64(50) {
			complete := i * int64(time.Millisecond)
			r := shm.Request{FirstFragment: complete, Complete: complete}
			w = w.next()
			w.Arrive(r)
			if w.Behind(objective) {
				t.Fatalf("%s: behind before anything ran", c.name)
			}
			started := complete + int64(c.waited)
			w.Answer(r, shm.Result{Status: uint8(wire.StatusOK), Batch: 1, Dispatched: started, Inferred: started + int64(c.running)}, started, objective)
			if got := w.Behind(objective); got != c.want {
				t.Fatalf("%s: behind %v, want %v", c.name, got, c.want)
			}
		}
	}
}
