package loop

import (
	"math"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/shm"
)

// takeTurns lets the process take turns per level with another one, whose turns it returns.
func (h *harness) takeTurns() *shm.ProcessTurns {
	h.TB.Helper()
	turns, err := shm.NewTurns("test-turns", true)
	must.OK(h.TB, err)
	h.TB.Cleanup(func() { turns.Close() })
	join := func() (*os.File, int) {
		entry, err := turns.Join()
		must.OK(h.TB, err)
		return h.Dup(turns.File()), entry
	}
	h.entry, err = gate.OpenEntry(join())
	must.OK(h.TB, err)
	h.TB.Cleanup(h.entry.Close)
	other, err := shm.OpenTurns(join())
	must.OK(h.TB, err)
	h.TB.Cleanup(func() { other.Close() })
	return other
}

// With turns per level a batch within the guarantee waits only for those of its level, also next to a demoted one in
// flight. Streams have the levels, and demoted batches need a framework that is able to run them.
func TestTurnPerLevel(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	other := h.takeTurns().Turns
	f := h.Fake()
	l := accounted(h, f)
	other[5].Take(shm.Rank{Level: 5}, 0)
	other[3].Take(shm.Rank{Level: 3}, 0)
	release := h.GPU.HoldDemoted()
	l.emptyBalance()
	h.Publish(0, h.Picture(0), nil)
	l.beginOne(t)
	if l.flights.count != 1 || !l.flights.newest().Demoted {
		t.Fatalf("%d batches in flight, want a demoted one", l.flights.count)
	}
	l.refillBalance()
	h.Publish(1, h.Picture(1), nil)
	if l.take(); !l.mayBegin() {
		t.Fatal("a batch of another level may not begin")
	}
	stopsWaiting := func(why string, stop func()) {
		t.Helper()
		if ok, _ := l.admit(); ok {
			t.Fatal("a batch begins in the turn of another process of its level")
		}
		before := other[3].Awaited()
		if stop(); !before || other[3].Awaited() {
			t.Errorf("%s: the loop waits for its turn: %v, then %v; want it to stop", why, before, other[3].Awaited())
		}
	}
	stopsWaiting("the ring must be released", func() {
		l.Ending.Store(true)
		l.await()
		l.Ending.Store(false)
	})
	stopsWaiting("the batch is beyond the guarantee now", func() {
		l.emptyBalance()
		l.mayBegin()
		l.refillBalance()
	})
	other[3].Release()
	if l.beginOne(t); !l.await() {
		t.Fatal("another batch may begin next to two")
	}
	must.OK(t, l.finish())
	if got := h.Replies(1); !slices.Equal(got, []uint32{1}) {
		t.Fatalf("answered slot %d first, want 1", got)
	}
	if !other[3].Take(shm.Rank{Level: 3}, 0) || other[0].Take(shm.Rank{}, 0) {
		t.Error("after the batch its turn is free, and that of the demoted one is not")
	}
	release()
	must.OK(t, l.finish())
	h.Answered(h.Replies(1)[0], h.Picture(0))
	if !other[0].Take(shm.Rank{}, 0) {
		t.Error("the demoted batch kept its turn")
	}
	h.Publish(2, h.Picture(2), nil)
	l.retryAt = math.MaxInt64
	if l.take(); !l.mayBegin() {
		t.Error("with nothing in flight a batch is delayed, and would lose its place among those that wait")
	}
}

// The loop naps until the batch in flight ends, or until another one may begin next to it. A batch that waits for its
// process's turn ends the nap.
func TestNapsWithTurns(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	other := h.takeTurns().Turns[3]
	l := accounted(h, h.Fake())
	const takes, lead = 20 * time.Minute, time.Minute
	begin := func(slot uint32) {
		t.Helper()
		l.Queue.State, l.Queue.Lead = l.Queue.Rule.Warm(l.Queue.Rule.Start(), 1, takes), lead
		h.Publish(slot, h.Picture(byte(slot)), nil)
		l.beginOne(t)
		l.refillBalance()
		h.Publish(slot+1, h.Picture(byte(slot+1)), nil)
		l.take()
	}
	naps := func(why string, before time.Duration) {
		t.Helper()
		if l.mayBegin() {
			t.Fatal("a batch may begin")
		}
		at := l.Queue.Running[0].Dispatched
		if got, want := l.left(at), l.Queue.Left(0, at)-before; got != want {
			t.Errorf("%s: %v are left to nap, want %v", why, got, want)
		}
	}
	release := sync.OnceFunc(h.Hold())
	defer func() { release() }()
	l.refillBalance()
	begin(0)
	naps("the next batch may join", lead)
	other.Take(shm.Rank{Level: 3}, 0)
	naps("another process waits for this turn", 0)
	other.Release()
	release()
	must.OK(t, l.finish()) // the next batch has begun
	must.OK(t, l.finish())
	h.Replies(2)

	release = sync.OnceFunc(h.GPU.HoldDemoted())
	l.emptyBalance()
	begin(2)
	other.Take(shm.Rank{Level: 3}, 0)
	if await, err := l.beginNext(); !await || err != nil {
		t.Fatalf("a batch begins in another process's turn, or not next to a demoted one: %v", err)
	}
	l.retryAt = math.MaxInt64
	naps("the next batch waits for its turn", 0)
	other.Release()
	l.nap()
	l.beginOne(t)
	release()
	for range 2 {
		must.OK(t, l.finish())
	}
	h.Replies(2)
}
