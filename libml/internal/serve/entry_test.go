package serve

import (
	"math"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// newTurnHarness returns a harness on a GPU whose processes take turns, the same for all levels.
func newTurnHarness(t *testing.T) *harness { return newLevelHarness(t, false) }

// newLevelHarness returns a harness on a GPU whose processes take turns.
func newLevelHarness(t *testing.T, perLevel bool) *harness {
	t.Helper()
	h := newGPUHarness(t, functiontest.Card())
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
	h.TB.Helper()
	entry, err := h.turns.Join()
	must.OK(h.TB, err)
	p, err := shm.OpenTurns(h.Dup(h.turns.File()), entry)
	must.OK(h.TB, err)
	h.TB.Cleanup(func() { p.Close() })
	return p.Turns
}

// takingTurns starts a process that owns the ring.
func (h *harness) takingTurns(f *functiontest.Fake) *child {
	h.TB.Helper()
	c := h.start(1, f.Build, nil)
	c.order(h.wake)
	c.await(control.Ready)
	f.Serve()
	h.Channel.SetEpoch(1)
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
			f := h.Fake()
			c := h.takingTurns(f)
			running, waiting := h.other(), h.other()
			if !running.Take(shm.Rank{}, 0) {
				t.Fatal("an idle process has the turn")
			}
			h.Publish(0, h.Picture(1), nil)
			wait.For(t, "the process waits for its turn", func() bool { return isAwaited(running) })
			if waiting.Take(r, 0) {
				t.Fatal("two processes have the turn")
			}
			if sizes, _ := f.History(); len(sizes) > 0 {
				t.Fatalf("batches of %v ran in another's turn", sizes)
			}
			running.Release()
			first := r.Level > uint32(h.wake.Level)
			if first {
				if !waiting.Take(r, 0) {
					t.Error("a higher level did not get the turn")
				}
				if sizes, _ := f.History(); len(sizes) > 0 {
					t.Errorf("batches of %v ran in another's turn", sizes)
				}
				waiting.Release()
			}
			h.Answered(h.Replies(1)[0], h.Picture(1))
			if !first && !waiting.Take(r, shm.Now()+int64(functiontest.Patience)) {
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
		f := h.Fake()
		c := h.takingTurns(f)
		running := h.other()
		running.Take(shm.Rank{}, 0)
		h.Publish(0, h.Picture(1), func(r *shm.Request, _ []shm.Fragment) { r.Deadline = shm.Now() + int64(20*time.Millisecond) })
		if slot := h.Replies(1)[0]; h.Status(slot) != wire.StatusLate {
			t.Errorf("a request that waited for the turn too long is %v, want late", h.Status(slot))
		}
		wait.For(t, "the process stops waiting", func() bool { return !isAwaited(running) })
		c.drained()
	})

	t.Run("a drain", func(t *testing.T) {
		h := newTurnHarness(t)
		f := h.Fake()
		c := h.takingTurns(f)
		running := h.other()
		running.Take(shm.Rank{}, 0)
		h.Publish(0, h.Picture(1), nil)
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
	f := h.Fake()
	c := h.takingTurns(f)
	running := h.other()
	running.Take(shm.Rank{}, 0)
	h.Publish(0, h.Picture(1), nil)
	wait.For(t, "the process waits for its turn", func() bool { return isAwaited(running) })
	release := h.Hold()
	running.Release()
	began := func() int {
		sizes, _ := f.History()
		return len(sizes)
	}
	wait.For(t, "a batch runs", func() bool { return began() > 0 })
	if running.Take(shm.Rank{Level: 5}, 0) {
		t.Error("two processes have the turn")
	}
	const more = 16
	for slot := range uint32(more) {
		h.Publish(slot+1, h.Picture(1), nil)
	}
	if running.Take(shm.Rank{Level: 5}, shm.Now()+int64(20*time.Millisecond)) {
		t.Error("two processes have the turn")
	}
	if n := began(); n != 1 {
		t.Errorf("%d batches began in one turn, want 1", n)
	}
	release()
	if !running.Take(shm.Rank{Level: 5}, shm.Now()+int64(functiontest.Patience)) {
		t.Error("the process did not pass on its turn")
	}
	if n := began(); n != 1 {
		t.Errorf("%d batches began before the next turn, want 1", n)
	}
	running.Release()
	h.Replies(1 + more)
	c.drained()
}

// In a turn for all levels a batch uses the whole device, and any framework's batch can be demoted. With turns per level,
// streams have the levels.
func TestAccountInTurn(t *testing.T) {
	for _, perLevel := range []bool{false, true} {
		h := newLevelHarness(t, perLevel)
		f := h.Fake()
		f.Fixed = true
		p := h.linked(f)
		for i := range p.sizes.warm {
			p.sizes.warm[i].alone = 3*time.Millisecond + time.Duration(p.sizes.warm[i].size)*time.Millisecond
		}
		a := p.newAccount()
		if whole := a.Cost(1) == a.Time(1); whole == perLevel {
			t.Errorf("per level %v: a batch of %v costs %v", perLevel, a.Time(1), a.Cost(1))
		}
		a.Balance().Charge(shm.Now(), time.Hour)
		if guaranteed, _ := a.Guaranteed(shm.Now(), p.orders.terms(), 1); guaranteed {
			t.Errorf("per level %v: a batch beyond the guarantee is within it", perLevel)
		}
		if prioritized := p.memory.prioritized != nil; prioritized != perLevel {
			t.Errorf("per level %v: the process has streams of other priorities: %v", perLevel, prioritized)
		}
	}
}

// A function that was not kept when its process started gets the level of its objective later.
func TestLevelRises(t *testing.T) {
	h := newLevelHarness(t, true)
	h.wake.Level, h.SLO = budget.MinLevel, 25*time.Millisecond
	const level = 3
	f := h.Fake()
	c := h.takingTurns(f)
	turn := h.others()[level]
	if !turn.Take(shm.Rank{}, 0) {
		t.Fatal("an idle process has the turn")
	}
	c.order(control.Order{Do: control.DoShare, GuaranteePercent: 50, Level: level})
	for slot := uint32(0); !turn.Awaited(); slot++ { // a batch before the order may run at the old level
		h.Publish(slot, h.Picture(1), nil)
		wait.For(t, "a batch waits for the turn of that level", func() bool {
			done, err := h.Channel.Receive(make([]uint32, 1), shm.Now())
			return turn.Awaited() || err == nil && done > 0
		})
	}
	turn.Release()
	c.drained()
}
