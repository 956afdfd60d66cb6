package serve

import (
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// newTurnHarness returns a harness on a GPU whose processes take turns, the same for all levels.
func newTurnHarness(t *testing.T) *harness { return newLevelHarness(t, false) }

// newLevelHarness returns a harness on a GPU whose processes take turns.
func newLevelHarness(t *testing.T, perLevel bool) *harness {
	t.Helper()
	h := newGPUHarness(t, testCard())
	var err error
	h.turns, err = shm.NewTurns("test-turns", perLevel)
	must.OK(t, err)
	t.Cleanup(func() { h.turns.Close() })
	h.wake = control.Order{Do: control.DoWake, GuaranteePercent: 50, Level: 3}
	return h
}

// other returns the turn of another process, of all levels.
func (h *harness) other() *shm.Turn { return h.others()[0] }

// others returns the turns of another process.
func (h *harness) others() []*shm.Turn {
	h.t.Helper()
	entry, err := h.turns.Join()
	must.OK(h.t, err)
	p, err := shm.OpenTurns(h.dup(h.turns.File()), entry)
	must.OK(h.t, err)
	h.t.Cleanup(func() { p.Close() })
	return p.Turns
}

// takingTurns starts a process that owns the ring.
func (h *harness) takingTurns(f *fake) *child {
	h.t.Helper()
	c := h.start(1, f.build, nil)
	c.order(h.wake)
	c.await(control.Ready)
	f.serve()
	h.channel.SetEpoch(1)
	c.await(control.Active)
	return c
}

// never is a time of shm.Now.
const never = math.MaxInt64 / 2

// isAwaited reports whether another process waits for the turn that this one has.
func isAwaited(turn *shm.Turn) bool { return !turn.Alone(never) }

func TestGPUTurn(t *testing.T) {
	lead := func(r shm.Rank) func(*testing.T) {
		return func(t *testing.T) {
			h := newTurnHarness(t)
			f := h.fake()
			c := h.takingTurns(f)
			running, waiting := h.other(), h.other()
			if !running.Take(shm.Rank{}, 0) {
				t.Fatal("an idle process has the turn")
			}
			h.publish(0, h.picture(1), nil)
			wait.For(t, "the process waits for its turn", func() bool { return isAwaited(running) })
			if waiting.Take(r, 0) {
				t.Fatal("two processes have the turn")
			}
			if sizes, _ := f.history(); len(sizes) > 0 {
				t.Fatalf("batches of %v ran in another's turn", sizes)
			}
			running.Release()
			first := r.Level > uint32(h.wake.Level)
			if first {
				if !waiting.Take(r, 0) {
					t.Error("a higher level did not get the turn")
				}
				if sizes, _ := f.history(); len(sizes) > 0 {
					t.Errorf("batches of %v ran in another's turn", sizes)
				}
				waiting.Release()
			}
			h.answered(h.replies(1)[0], h.picture(1))
			if !first && !waiting.Take(r, shm.Now()+int64(patience)) {
				t.Error("the process did not pass on its turn")
			}
			c.drained()
		}
	}
	t.Run("a higher level goes first", lead(shm.Rank{Level: 5, Deadline: never}))
	t.Run("a lower level goes last", lead(shm.Rank{Level: 2}))
	t.Run("a later deadline goes last", lead(shm.Rank{Level: 3, Deadline: never}))
	t.Run("demoted work goes last", lead(shm.Rank{}))

	t.Run("late requests", func(t *testing.T) {
		h := newTurnHarness(t)
		f := h.fake()
		c := h.takingTurns(f)
		running := h.other()
		running.Take(shm.Rank{}, 0)
		h.publish(0, h.picture(1), func(r *shm.Request, _ []shm.Fragment) { r.Deadline = shm.Now() + int64(20*time.Millisecond) })
		if slot := h.replies(1)[0]; h.status(slot) != wire.StatusLate {
			t.Errorf("a request that waited for the turn too long is %v, want late", h.status(slot))
		}
		wait.For(t, "the process stops waiting", func() bool { return !isAwaited(running) })
		c.drained()
	})

	t.Run("a drain", func(t *testing.T) {
		h := newTurnHarness(t)
		f := h.fake()
		c := h.takingTurns(f)
		running := h.other()
		running.Take(shm.Rank{}, 0)
		h.publish(0, h.picture(1), nil)
		wait.For(t, "the process waits for its turn", func() bool { return isAwaited(running) })
		c.drained()
		if isAwaited(running) {
			t.Error("a process that has ended waits for its turn")
		}
	})
}

// Batches of one process run one at a time while another one uses the GPU.
func TestGPUTurnInFlight(t *testing.T) {
	h := newTurnHarness(t)
	f := h.fake()
	c := h.takingTurns(f)
	running := h.other()
	running.Take(shm.Rank{}, 0)
	h.publish(0, h.picture(1), nil)
	wait.For(t, "the process waits for its turn", func() bool { return isAwaited(running) })
	release := h.hold()
	running.Release()
	began := func() int {
		sizes, _ := f.history()
		return len(sizes)
	}
	wait.For(t, "a batch runs", func() bool { return began() > 0 })
	if running.Take(shm.Rank{Level: 5}, 0) {
		t.Error("two processes have the turn")
	}
	const more = 16
	for slot := range uint32(more) {
		h.publish(slot+1, h.picture(1), nil)
	}
	if running.Take(shm.Rank{Level: 5}, shm.Now()+int64(20*time.Millisecond)) {
		t.Error("two processes have the turn")
	}
	if n := began(); n != 1 {
		t.Errorf("%d batches began in one turn, want 1", n)
	}
	release()
	if !running.Take(shm.Rank{Level: 5}, shm.Now()+int64(patience)) {
		t.Error("the process did not pass on its turn")
	}
	if n := began(); n != 1 {
		t.Errorf("%d batches began before the next turn, want 1", n)
	}
	running.Release()
	h.replies(1 + more)
	c.drained()
}

// With turns per level a batch within the guarantee waits only for those of its level, also next to a demoted one in
// flight. Streams have the levels, and demoted batches need a framework that is able to run them.
func TestTurnPerLevel(t *testing.T) {
	h := newLevelHarness(t, true)
	f := h.fake()
	l := accounted(h, f)
	if l.memory.prioritized == nil {
		t.Fatal("the process has no streams of other priorities")
	}
	other := h.others()
	other[5].Take(shm.Rank{Level: 5}, 0)
	other[3].Take(shm.Rank{Level: 3}, 0)
	release := h.gpu.HoldDemoted()
	l.emptyBalance()
	h.publish(0, h.picture(0), nil)
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
	h.publish(1, h.picture(1), nil)
	if l.take(); !l.mayBegin() {
		t.Fatal("a batch of another level may not begin")
	}
	if ok, _ := l.admit(); ok {
		t.Fatal("a batch begins in the turn of another process of its level")
	}
	other[3].Release()
	if begin(); !l.await() {
		t.Fatal("another batch may begin next to two")
	}
	must.OK(t, l.finish())
	if got := h.replies(1); !slices.Equal(got, []uint32{1}) {
		t.Fatalf("answered slot %d first, want 1", got)
	}
	if !other[3].Take(shm.Rank{Level: 3}, 0) || other[0].Take(shm.Rank{}, 0) {
		t.Error("after the batch its turn is free, and that of the demoted one is not")
	}
	release()
	must.OK(t, l.finish())
	h.answered(h.replies(1)[0], h.picture(0))
	if !other[0].Take(shm.Rank{}, 0) {
		t.Error("the demoted batch kept its turn")
	}
	h.publish(2, h.picture(2), nil)
	l.retryAt = never
	if l.take(); !l.mayBegin() {
		t.Error("with nothing in flight a batch is delayed, and would lose its place among those that wait")
	}
}

// TestWorkerTurnEntry has a worker join with an entry, leave, and join with another one.
func TestWorkerTurnEntry(t *testing.T) {
	h := newTurnHarness(t)
	p := &process{membership: membership{worker: &worker{}}}
	open := func(entry int) *gate.Entry {
		t.Helper()
		turn, err := p.openEntry(control.Attached{Turn: &entry}, []*os.File{h.dup(h.turns.File())})
		must.OK(t, err)
		return turn
	}
	first := open(3)
	if second := open(3); second != first {
		t.Error("two members of a worker have two turns")
	}
	if third := open(4); third == first || third.Number() != 4 {
		t.Errorf("the worker has entry %d, want 4", third.Number())
	}
}

// In its turn a batch uses the whole device, and any framework's batch can be demoted.
func TestAccountInTurn(t *testing.T) {
	h := newTurnHarness(t)
	f := h.fake()
	f.fixed = true
	l := h.loop(f)
	l.setAccount(gate.Config{Exclusive: true, Times: times(8, 3*time.Millisecond, time.Millisecond)})
	if got := l.gate.Account.Cost(1); got != 4*time.Millisecond {
		t.Errorf("a batch of 4ms costs %v", got)
	}
	l.emptyBalance()
	if l.guaranteed(shm.Now()) {
		t.Error("a batch beyond the guarantee is not demoted")
	}
	if l.memory.prioritized != nil {
		t.Error("the process has streams of other priorities")
	}
}

func TestMaxBatch(t *testing.T) {
	h := newTurnHarness(t)
	f := h.fake()
	h.wake.MaxBatch = 3
	l := h.loop(f)
	l.queue.State.Limit = 8
	l.queue.Expected = func(int) time.Duration { return time.Microsecond }
	for slot := range uint32(5) {
		h.publish(slot, h.picture(1), nil)
	}
	for range 3 {
		must.OK(t, l.turn())
	}
	h.replies(5)
	if sizes, _ := f.history(); !slices.Equal(sizes, []int{2, 2, 1}) {
		t.Errorf("batches of %v, want at most 2 requests in each: the size below the limit of 3", sizes)
	}
}
