package loop

import (
	"math"
	"os"
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/shm"
)

// With turns per level a batch within the guarantee waits only for those of its level, also next to a demoted one in
// flight. Streams have the levels, and demoted batches need a framework that is able to run them.
func TestTurnPerLevel(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	turns, err := shm.NewTurns("test-turns", true)
	must.OK(t, err)
	t.Cleanup(func() { turns.Close() })
	join := func() (*os.File, int) {
		entry, err := turns.Join()
		must.OK(t, err)
		return h.Dup(turns.File()), entry
	}
	h.entry, err = gate.OpenEntry(join())
	must.OK(t, err)
	t.Cleanup(h.entry.Close)
	f := h.Fake()
	l := accounted(h, f)
	process, err := shm.OpenTurns(join())
	must.OK(t, err)
	t.Cleanup(func() { process.Close() })
	other := process.Turns
	other[5].Take(shm.Rank{Level: 5}, 0)
	other[3].Take(shm.Rank{Level: 3}, 0)
	release := h.GPU.HoldDemoted()
	l.emptyBalance()
	h.Publish(0, h.Picture(0), nil)
	begin := func() {
		t.Helper()
		if l.take(); !l.mayBegin() {
			t.Fatal("a batch of another level may not begin")
		}
		if ok, _ := l.admit(); !ok {
			t.Fatal("a batch does not begin in its turn")
		}
		must.OK(t, l.begin())
	}
	begin()
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
	if begin(); !l.await() {
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
