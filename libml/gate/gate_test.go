package gate

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/shm"
)

// fakeTurn is the turn of a process next to others. The test sets free, alone and awaited.
type fakeTurn struct {
	free, alone, awaited bool
	asked, passed        []shm.Rank
	releases             int
	sleep                chan struct{} // closed: no sleep
}

func (f *fakeTurn) Ask(r shm.Rank) (bool, uint32) {
	f.asked = append(f.asked, r)
	return f.free, 7
}
func (f *fakeTurn) Sleep(uint32, int64) { <-f.sleep }
func (f *fakeTurn) Alone(int64) bool    { return f.alone }
func (f *fakeTurn) Awaited() bool       { return f.awaited }
func (f *fakeTurn) First(shm.Rank) bool { return !f.awaited }
func (f *fakeTurn) Pass(r shm.Rank)     { f.passed = append(f.passed, r) }
func (f *fakeTurn) Release()            { f.releases++ }

// newEntry returns the entry of a process that has one turn for all levels.
func newEntry(f turn) *Entry { return &Entry{levels: []*level{{turn: f}}} }

// newGate returns the gate of a loop at level 3 that takes turns, with a full balance.
func newGate(entry *Entry) *Gate {
	account := NewAccount(0, Config{Level: 3, Framework: DemotedByTurn{}, Exclusive: true, Objective: time.Hour, Terms: Terms{0.5, 3}, Times: make([]time.Duration, 9), Size: 1})
	return New(account, nil, entry, func() bool { return true }, nil)
}

func TestAdmit(t *testing.T) {
	const ms = int64(time.Millisecond)
	batch := lane.Job{Deadline: 50 * ms, Batch: 10 * time.Millisecond, Requests: 1}
	demoted := batch
	demoted.Demoted = true
	for _, c := range []struct {
		name    string
		batch   lane.Job
		edit    func(g *Gate, f *fakeTurn)
		ok      bool
		retryAt int64
		asked   []shm.Rank
	}{
		{"free", batch, func(_ *Gate, f *fakeTurn) { f.free = true }, true, 40 * ms, []shm.Rank{{Level: 3, Deadline: 50 * ms}}},
		{"demoted", demoted, func(_ *Gate, f *fakeTurn) { f.free = true }, true, 40 * ms, []shm.Rank{{Deadline: 50 * ms}}},
		{"another process's turn", batch, nil, false, ms, []shm.Rank{{Level: 3, Deadline: 50 * ms}}},
		{"another member's batch", batch, func(g *Gate, _ *fakeTurn) { g.visit.of.levels[0].running = 1 }, false, 200_000, nil},
		{"next to another member's batch", batch, func(g *Gate, f *fakeTurn) { g.visit.of.levels[0].running, f.alone = 1, true }, true, 40 * ms, nil},
		{"model not in memory", batch, func(g *Gate, _ *fakeTurn) { g.Resident = func() bool { return false } }, false, 40 * ms, nil},
		{"another level is ordered", batch, func(g *Gate, f *fakeTurn) {
			f.free = true
			g.Account.Guaranteed(0, Terms{0.5, budget.MaxLevel}, 1)
		}, true, 40 * ms, []shm.Rank{{Level: uint32(budget.MaxLevel), Deadline: 50 * ms}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeTurn{}
			g := newGate(newEntry(f))
			if c.edit != nil {
				c.edit(g, f)
			}
			ok, retryAt := g.Admit(0, 0, 1, c.batch)
			if ok != c.ok || retryAt != c.retryAt || !slices.Equal(f.asked, c.asked) {
				t.Errorf("admitted %v, again at %d, asked %+v; want %v, %d, %+v", ok, retryAt, f.asked, c.ok, c.retryAt, c.asked)
			}
		})
	}
	t.Run("lane", func(t *testing.T) {
		s, err := NewLanes(1, lane.EDF, Unlimited)
		must.OK(t, err)
		a, b := newGate(nil), newGate(nil)
		a.Place, b.Place = joinLanes(t, s, 1).Place, joinLanes(t, s, 1).Place
		if ok, _ := a.Admit(0, 0, 1, batch); !ok {
			t.Fatal("no batch may begin in a free lane")
		}
		if ok, retryAt := b.Admit(0, 0, 1, batch); ok || retryAt != 40*ms {
			t.Errorf("admitted %v, again at %d; want the turn of another member, until the request is late", ok, retryAt)
		}
		a.Resident = func() bool { return false }
		a.Admit(0, 0, 1, batch)
		if ok, _ := b.Admit(0, 0, 1, batch); !ok {
			t.Error("a member without its model keeps its turn")
		}
	})
	t.Run("late soon", func(t *testing.T) {
		g := newGate(nil)
		g.Resident = func() bool { return false }
		for deadline, want := range map[int64]int64{0: ms, 1 << 60: 100 * ms} {
			if _, retryAt := g.Admit(0, 0, 1, lane.Job{Deadline: deadline}); retryAt != want {
				t.Errorf("deadline %d: again at %d, want %d", deadline, retryAt, want)
			}
		}
	})
}

// TestWait has one member of a worker sleep until the turn comes. Meanwhile others use the gate.
func TestWait(t *testing.T) {
	f := &fakeTurn{sleep: make(chan struct{})}
	entry := newEntry(f)
	a, b := newGate(entry), newGate(entry)
	if a.Wait(1) {
		t.Error("waits for a turn that was not asked for")
	}
	if ok, _ := a.Admit(0, 0, 1, lane.Job{}); ok {
		t.Fatal("a batch begins in another's turn")
	}
	done := make(chan bool)
	go func() { done <- a.Wait(1) }()
	if ok, _ := b.Admit(0, 0, 1, lane.Job{}); ok {
		t.Error("a batch begins in another's turn")
	}
	b.Withdraw(0)
	if f.releases != 0 {
		t.Error("a member that withdrew gave up the turn of another")
	}
	close(f.sleep)
	if !<-done {
		t.Error("did not wait for the turn")
	}
	f.free = true
	if ok, _ := a.Admit(0, 0, 1, lane.Job{}); !ok || a.Wait(1) {
		t.Error("a batch in its turn does not begin")
	}
	begun := a.Begin(0, 0, batching.Choice{Batch: 1, Padded: 1})
	a.End(0, &begun, nil)
	if f.releases != 1 {
		t.Errorf("the turn was given up %d times, want once", f.releases)
	}
}

// Each level has its own turns: a batch waits only for those of its level.
func TestLevels(t *testing.T) {
	entry, turns := &Entry{}, []*fakeTurn{}
	for range shm.TurnLevels {
		f := &fakeTurn{free: true}
		turns = append(turns, f)
		entry.levels = append(entry.levels, &level{turn: f})
	}
	g := newGate(entry)
	admit := func(demoted bool) bool {
		ok, _ := g.Admit(0, 0, 1, lane.Job{Demoted: demoted})
		return ok
	}
	if !admit(true) {
		t.Fatal("a demoted batch does not begin")
	}
	demoted := g.Begin(0, 0, batching.Choice{Batch: 1, Padded: 1, Demoted: true})
	turns[0].awaited = true
	if g.Joins(0, g.Rank(0, 1, true, 0)) || !g.Joins(0, g.Rank(0, 1, false, 0)) {
		t.Error("next to a demoted batch that others wait for only one of another level may begin")
	}
	turns[0].awaited = false
	if !g.Joins(0, g.Rank(0, 1, true, 0)) {
		t.Error("no second demoted batch may begin although no other process waits")
	}
	turns[3].free = false
	if admit(false) {
		t.Error("a batch begins in another process's turn of its level")
	}
	g.Account.level = 4
	g.Account.Guaranteed(0, Terms{0.5, 5}, 1)
	if !admit(false) || turns[3].releases != 1 {
		t.Errorf("at another level the batch begins, and no longer waits for the first one's turn: released %d times", turns[3].releases)
	}
	guaranteed := g.Begin(0, 1, batching.Choice{Batch: 1, Padded: 1})
	if g.End(0, &guaranteed, nil); turns[4].releases != 1 || turns[0].releases != 0 {
		t.Errorf("after the batch of level 4 turns were released %d and %d times, want once and never", turns[4].releases, turns[0].releases)
	}
	next := g.Rank(0, 1, true, 5)
	if g.End(0, &demoted, &next); turns[0].releases != 0 || !slices.Equal(turns[0].passed, []shm.Rank{next}) {
		t.Errorf("the turn was not passed to the first of this and the next batch: %+v", turns[0])
	}
	if g.StopWaiting(); turns[0].releases != 1 {
		t.Error("the loop keeps the turn for a batch that does not come")
	}
}

// A batch takes the turn of the level at which it runs. A framework that cannot run it demoted runs it on streams of the
// process's level, whatever level is ordered.
func TestLevelOfTurn(t *testing.T) {
	for _, c := range []struct {
		name      string
		framework Demotable
		terms     Terms
		demoted   bool
		want      uint32
	}{
		{"within the guarantee", only{1}, Terms{0.5, 3}, false, 3},
		{"beyond it", only{1}, Terms{0.5, 3}, true, 0},
		{"beyond it, of another size", only{2}, Terms{0.5, 3}, true, 4},
		{"beyond it, without streams", nil, Terms{0.5, 3}, true, 4},
		{"within it, of another size", only{2}, Terms{0.5, 3}, false, 4},
		{"no function has a guarantee", only{2}, Terms{}, false, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGate(&Entry{levels: make([]*level, shm.TurnLevels)})
			for i := range g.visit.of.levels {
				g.visit.of.levels[i] = &level{turn: &fakeTurn{free: true}}
			}
			g.Account.level, g.Account.framework = 4, c.framework
			g.Account.terms = c.terms
			if got := g.Rank(0, 1, c.demoted, 7); got != (shm.Rank{Level: c.want, Deadline: 7}) {
				t.Errorf("rank %+v, want level %d", got, c.want)
			}
			if ok, _ := g.Admit(0, 0, 1, lane.Job{Demoted: c.demoted}); !ok || g.visit.taken != g.visit.of.levels[c.want] {
				t.Errorf("admitted %v in another turn than that of level %d", ok, c.want)
			}
		})
	}
}

// only is a framework that runs one size demoted.
type only struct{ size int }

func (o only) Demotable(_, n int) bool { return n == o.size }

// TestMembers has two members of a worker wait. The worker waits with the first of their ranks, and their batches
// run one at a time while another process uses the GPU.
func TestMembers(t *testing.T) {
	f := &fakeTurn{}
	entry := newEntry(f)
	a, b := &visit{of: entry}, &visit{of: entry}
	a.take(0, shm.Rank{Level: 4})
	b.take(0, shm.Rank{Level: 1})
	if want := []shm.Rank{{Level: 4}, {Level: 4}}; !slices.Equal(f.asked, want) {
		t.Errorf("asked with %+v, want %+v", f.asked, want)
	}
	f.free = true
	if ok, _ := a.take(0, shm.Rank{Level: 4}); !ok {
		t.Fatal("no turn")
	}
	if ok, _ := b.take(0, shm.Rank{Level: 1}); ok || b.joins(0, shm.Rank{Level: 1}) {
		t.Error("two members have a turn next to another process")
	}
	held := a.hold()
	if held.pass(a, nil); f.releases != 0 || !slices.Equal(f.passed, []shm.Rank{{Level: 1}}) {
		t.Errorf("the process no longer waits for the turn of the other member: %+v", f)
	}
	if b.withdraw(); f.releases != 1 {
		t.Error("no member waits, and the process does")
	}
}

func TestAdmitAllocations(t *testing.T) {
	f := &fakeTurn{free: true, asked: make([]shm.Rank, 0, 1<<10)}
	g := newGate(newEntry(f))
	if n := testing.AllocsPerRun(100, func() {
		if ok, _ := g.Admit(0, 0, 1, lane.Job{Deadline: 1}); !ok {
			t.Fatal("not admitted")
		}
		begun := g.Begin(0, 0, batching.Choice{Batch: 1, Padded: 1})
		g.End(1, &begun, nil)
		g.Account.End(1, false, 0, 1)
	}); n > 0 {
		t.Errorf("a batch allocates %v times", n)
	}
}
