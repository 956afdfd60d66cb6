package shm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"golang.org/x/sys/unix"
)

// takers returns the turns of n processes, the same for all levels. Each process maps the file by itself.
func takers(t *testing.T, n int) (*Turns, []*Turn) {
	t.Helper()
	turns, processes := newTurns(t, n, false)
	var all []*Turn
	for _, p := range processes {
		all = append(all, p.Turns[0])
	}
	return turns, all
}

func newTurns(t *testing.T, n int, perLevel bool) (*Turns, []*ProcessTurns) {
	t.Helper()
	turns, err := NewTurns("test-turns", perLevel)
	must.OK(t, err)
	t.Cleanup(func() { turns.Close() })
	var all []*ProcessTurns
	for range n {
		entry, err := turns.Join()
		must.OK(t, err)
		fd, err := unix.FcntlInt(turns.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
		must.OK(t, err)
		p, err := OpenTurns(os.NewFile(uintptr(fd), "turns"), entry)
		must.OK(t, err)
		t.Cleanup(func() { p.Close() })
		all = append(all, p)
	}
	return turns, all
}

// has reports whether the turn is a process's, without waiting.
func (t *Turn) has() bool { return turnOwner(t.words.owner.Load()) == t.entry }

const turnLimit = int64(time.Minute)

func TestTurnOrder(t *testing.T) {
	_, p := takers(t, 6)
	if !p[0].Take(Rank{}, 0) {
		t.Fatal("a free turn was not taken")
	}
	for i, r := range []Rank{{0, 1}, {2, 50}, {2, 40}, {5, 90}, {0, 0}} {
		if p[i+1].Take(r, 0) {
			t.Fatalf("process %d has the turn of process 0", i+1)
		}
	}
	last := p[0]
	for _, i := range []int{4, 3, 2, 5, 1} {
		last.Release()
		if last = p[i]; !last.has() {
			t.Fatalf("the turn is of entry %d, want %d", turnOwner(last.words.owner.Load()), i)
		}
		if !last.Take(Rank{}, 0) {
			t.Fatalf("process %d does not get its turn", i)
		}
	}
	last.Release()
	if entry := turnOwner(last.words.owner.Load()); entry != freeTurn {
		t.Errorf("the turn is of entry %d, want it free", entry)
	}
}

func TestTurnRelease(t *testing.T) {
	t.Run("a wait", func(t *testing.T) {
		_, p := takers(t, 3)
		p[0].Take(Rank{}, 0)
		p[1].Take(Rank{Level: 5}, 0)
		p[2].Take(Rank{}, 0)
		p[1].Release()
		p[0].Release()
		if !p[2].has() {
			t.Error("the turn went to a process that had given up its wait")
		}
	})
	t.Run("a turn that was not taken up", func(t *testing.T) {
		_, p := takers(t, 2)
		p[0].Take(Rank{}, 0)
		p[1].Take(Rank{}, 0)
		p[0].Release()
		p[1].Release()
		if !p[0].Take(Rank{}, 0) {
			t.Error("the turn is not free")
		}
	})
	t.Run("another's turn", func(t *testing.T) {
		_, p := takers(t, 2)
		p[0].Take(Rank{}, 0)
		p[1].Release()
		if !p[0].has() {
			t.Error("a process ended the turn of another")
		}
	})
}

// Processes take turns, give up waits and turns at random. At most one has the turn, and no turn is lost:
// each wait for a turn ends.
func TestTurnRandom(t *testing.T) {
	const processes, rounds = 5, 2000
	turns, p := takers(t, processes)
	var inside atomic.Int32
	var group sync.WaitGroup
	for i, turn := range p {
		group.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range rounds {
				rank := Rank{Level: random.Uint32N(3), Deadline: Now() + random.Int64N(1000)}
				until := Now() + turnLimit
				if random.IntN(4) == 0 {
					until = 0
				}
				if !turn.Take(rank, until) {
					if until != 0 {
						t.Errorf("process %d has waited for its turn too long", i)
						return
					}
					turn.Release()
					continue
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d processes have the turn", n)
				}
				inside.Add(-1)
				turn.Release()
			}
		})
	}
	group.Wait()
	if word := turns.levels[0].owner.Load(); turnOwner(word) != freeTurn {
		t.Errorf("the turn is of entry %d at the end", turnOwner(word))
	}
	for i := range turns.levels[0].waiting {
		if set := turns.levels[0].waiting[i].Load(); set != 0 {
			t.Errorf("entries %x wait at the end", set)
		}
	}
}

// One process ends its turn while another gives up its wait. The turn is free afterwards, whichever came
// first.
func TestTurnGivenUp(t *testing.T) {
	_, p := takers(t, 2)
	const rounds = 5000
	var round, ended atomic.Int32
	var group sync.WaitGroup
	group.Go(func() {
		for i := range int32(rounds) {
			for round.Load() == i {
				runtime.Gosched()
			}
			p[1].Take(Rank{}, 0)
			p[1].Release()
			ended.Add(1)
		}
	})
	for i := range int32(rounds) {
		p[0].Take(Rank{}, 0)
		round.Add(1)
		for range i % 64 { // the other one gets further before the turn ends
			ended.Load()
		}
		p[0].Release()
		for ended.Load() == i {
			runtime.Gosched()
		}
		if entry := turnOwner(p[0].words.owner.Load()); entry != freeTurn {
			t.Errorf("round %d: the turn is of entry %d", i, entry)
			p[entry].Release()
		}
	}
	group.Wait()
}

func TestTurnsLeave(t *testing.T) {
	turns, p := takers(t, 3)
	p[0].Take(Rank{}, 0)
	p[1].Take(Rank{Level: 1}, 0)
	p[2].Take(Rank{}, 0)
	turns.Leave(p[1].entry) // it dies while it waits
	turns.Leave(p[0].entry) // it dies with the turn
	if !p[2].has() {
		t.Fatalf("the turn is of entry %d, want 2", turnOwner(p[2].words.owner.Load()))
	}
	p[2].Release()
	if entry, err := turns.Join(); err != nil || entry != p[0].entry {
		t.Errorf("the next process gets entry %d, %v; want %d again", entry, err, p[0].entry)
	}
}

func TestTurnsJoin(t *testing.T) {
	turns, _ := takers(t, 0)
	for range TurnEntries {
		if _, err := turns.Join(); err != nil {
			t.Fatal(err)
		}
	}
	if entry, err := turns.Join(); err == nil {
		t.Errorf("one more process gets entry %d", entry)
	}
}

func TestTurnsWatch(t *testing.T) {
	t.Run("a turn without others", func(t *testing.T) {
		turns, p := takers(t, 2)
		p[1].Take(Rank{}, 0)
		p[0].Take(Rank{}, 0)
		p[1].Release() // process 0 has waited for the turn that it has
		for _, now := range []int64{1, 2, 1 + int64(TurnPatience), 3 * int64(TurnPatience)} {
			if entry, overdue := turns.Watch(now); overdue || !p[0].has() {
				t.Fatalf("entry %d is overdue: %v", entry, overdue)
			}
		}
	})
	t.Run("a turn that others wait for", func(t *testing.T) {
		turns, p := takers(t, 2)
		p[0].Take(Rank{}, 0)
		p[1].Take(Rank{}, 0)
		turns.Watch(1)
		if _, overdue := turns.Watch(int64(TurnPatience)); overdue || !p[0].has() {
			t.Fatal("the turn was passed on too early")
		}
		if entry, overdue := turns.Watch(1 + int64(TurnPatience)); !overdue || entry != p[0].entry || !p[1].has() {
			t.Fatalf("entry %d is overdue: %v; want the turn to pass from 0 to 1", entry, overdue)
		}
		p[0].Release() // it does not know
		if !p[1].has() {
			t.Error("a process ended the turn of the next one")
		}
	})
	t.Run("turns that move", func(t *testing.T) {
		turns, p := takers(t, 3)
		p[0].Take(Rank{}, 0)
		for i, now := range []int64{1, int64(TurnPatience) / 2, int64(TurnPatience), 2 * int64(TurnPatience)} {
			p[(i+1)%3].Take(Rank{}, 0)
			if entry, overdue := turns.Watch(now); overdue {
				t.Fatalf("entry %d is overdue", entry)
			}
			p[i%3].Release()
			if !p[(i+1)%3].has() {
				t.Fatalf("turn %d was lost", i)
			}
		}
	})
	t.Run("nonsense", func(t *testing.T) {
		turns, p := takers(t, 2)
		for _, word := range []uint64{math.MaxUint64, TurnEntries, TurnEntries + 1, 77, 1 << 31} {
			turns.levels[0].owner.Store(word)
			turns.levels[0].waiting[1].Store(1 << 3) // no process has this entry
			turns.levels[0].waiting[3].Store(math.MaxUint64)
			p[1].Take(Rank{}, 0)
			turns.Watch(1)
			if _, overdue := turns.Watch(2); overdue || !p[1].has() {
				t.Fatalf("owner %#x: the turn is of entry %d, want 1", word, turnOwner(turns.levels[0].owner.Load()))
			}
			p[1].Release()
		}
	})
}

// Processes wait only for those of their level.
func TestTurnLevels(t *testing.T) {
	for level := range TurnLevels {
		_, p := newTurns(t, 2, true)
		if len(p[0].Turns) != TurnLevels {
			t.Fatalf("turns of %d levels, want %d", len(p[0].Turns), TurnLevels)
		}
		p[0].Turns[level].Take(Rank{Level: uint32(level)}, 0)
		for l, turn := range p[1].Turns {
			if got := turn.Take(Rank{Level: uint32(l)}, 0); got != (l != level) {
				t.Errorf("process 0 has the turn of level %d; process 1 has that of level %d: %v", level, l, got)
			}
		}
	}
}

// A faulty process has the turn, of a level or of all, while two others wait. The first of them has it TurnPatience later,
// and then the second.
func TestFaultyTurns(t *testing.T) {
	const step = TurnPatience / 5 // of Watch
	first := Rank{Level: math.MaxUint32, Deadline: math.MinInt64}
	faults := map[string]struct {
		begins func(turns *Turns, faulty *Turn)
		lives  func(faulty *Turn) // at each step
	}{
		"ends":                     {begins: func(turns *Turns, faulty *Turn) { turns.Leave(faulty.entry) }},
		"hangs":                    {},
		"has ever earlier batches": {lives: func(faulty *Turn) { faulty.Pass(first); faulty.Ask(first) }},
		"claims that others had turns": {lives: func(faulty *Turn) {
			faulty.words.tenant.since.Store(Now())
			faulty.words.owner.Store(nextTurn(faulty.words.owner.Load(), faulty.entry))
		}},
		"waits for the turn that it has": {lives: func(faulty *Turn) { faulty.wait(first) }},
	}
	for level := -1; level < TurnLevels; level++ {
		for name, fault := range faults {
			t.Run(fmt.Sprintf("level %d %s", level, name), func(t *testing.T) {
				turns, p := newTurns(t, 3, level >= 0)
				of := func(i int) *Turn { return p[i].Turns[max(0, level)] }
				rank := func(i int) Rank { return Rank{uint32(max(0, level)), int64(i)} }
				faulty := of(0)
				for i := range p {
					if got := of(i).Take(rank(i), 0); got != (i == 0) {
						t.Fatalf("process %d has the turn: %v", i, got)
					}
				}
				if fault.begins != nil {
					fault.begins(turns, faulty)
				}
				now, reported := int64(1), false
				for i := 1; i < len(p); i++ {
					asked := now
					for !of(i).Take(rank(i), 0) {
						if now-asked > int64(TurnPatience+step) {
							t.Fatalf("process %d waits longer than TurnPatience", i)
						}
						if fault.lives != nil {
							fault.lives(faulty)
						}
						entry, overdue := turns.Watch(now)
						reported = reported || overdue && entry == faulty.entry
						now += int64(step)
					}
					of(i).Release()
				}
				if want := level != 0 && (name == "hangs" || name == "waits for the turn that it has"); reported != want {
					t.Errorf("reported as overdue: %v, want %v", reported, want)
				}
			})
		}
	}
}

// A process that overwrites words without end delays the others, but none of them hangs.
func TestTurnHostile(t *testing.T) {
	turns, p := takers(t, 3)
	stop := make(chan struct{})
	var hostile sync.WaitGroup
	hostile.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-stop:
				return
			default:
			}
			w := p[2].words
			w.owner.Store(random.Uint64() >> random.IntN(64))
			w.waiting[random.IntN(4)].Store(random.Uint64())
			w.entries[random.IntN(3)].deadline.Store(random.Int64())
			w.entries[random.IntN(3)].bell.Store(random.Uint32())
			w.tenant.entry.Store(random.Uint32())
			time.Sleep(50 * time.Microsecond)
		}
	})
	var group sync.WaitGroup
	for _, turn := range p[:2] {
		group.Go(func() {
			for range 20 {
				turn.Take(Rank{}, Now()+int64(5*time.Millisecond))
				turn.Alone(Now())
				turn.Release()
			}
		})
	}
	group.Wait()
	close(stop)
	hostile.Wait()
	got := make(chan bool)
	go func() { got <- p[0].Take(Rank{Level: math.MaxUint32}, Now()+turnLimit) }()
	for now := int64(1); ; now += int64(TurnPatience) {
		turns.Watch(now)
		select {
		case ok := <-got:
			if !ok {
				t.Error("no turn after a minute")
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// A process keeps the turn for its next batch if that goes before those of others. Otherwise it waits.
func TestTurnPass(t *testing.T) {
	_, p := takers(t, 2)
	if ok, _ := p[0].Ask(Rank{3, 1}); !ok {
		t.Fatal("the free turn is refused")
	}
	p[1].Ask(Rank{3, 10})
	for _, c := range []struct {
		rank  Rank
		first bool
	}{{Rank{3, 9}, true}, {Rank{3, 10}, true}, {Rank{4, 11}, true}, {Rank{3, 11}, false}, {Rank{2, 1}, false}} {
		if p[0].First(c.rank) != c.first {
			t.Errorf("First(%v) is %v", c.rank, !c.first)
		}
	}
	p[0].Pass(Rank{3, 9})
	if ok, _ := p[1].Ask(Rank{3, 10}); ok {
		t.Fatal("the turn passed to a later batch")
	}
	if ok, _ := p[0].Ask(Rank{3, 9}); !ok {
		t.Fatal("the process did not keep the turn for its earlier batch")
	}
	p[0].Pass(Rank{3, 11})
	if ok, _ := p[0].Ask(Rank{3, 11}); ok {
		t.Fatal("the process kept the turn for a later batch")
	}
	if ok, _ := p[1].Ask(Rank{3, 10}); !ok {
		t.Fatal("the turn did not pass to the earlier batch")
	}
	if p[1].Release(); !p[1].Awaited() {
		t.Fatal("the process that passed the turn on does not wait")
	}
	if ok, _ := p[0].Ask(Rank{3, 11}); !ok {
		t.Fatal("the turn did not come back")
	}
}

func TestTurnAlone(t *testing.T) {
	_, p := takers(t, 2)
	if p[0].Alone(math.MaxInt64) {
		t.Error("a process that never had a turn is alone")
	}
	after := func() int64 { return p[0].words.tenant.since.Load() + int64(aloneAfter) }
	p[0].Take(Rank{}, 0)
	if p[0].Alone(after()-1) || !p[0].Alone(after()) {
		t.Error("a process is alone when no other one had a turn for a while, and not before")
	}
	p[1].Take(Rank{}, 0)
	if p[0].Alone(after()) {
		t.Error("a process is alone although another waits")
	}
	p[0].Release()
	p[1].Take(Rank{}, 0)
	p[1].Release()
	p[0].Take(Rank{}, 0)
	if p[0].Alone(after()-1) || p[1].Alone(after()) {
		t.Error("a process is alone although another has just had a turn")
	}
}

func TestOpenTurns(t *testing.T) {
	turns, _ := takers(t, 0)
	for _, entry := range []int{-1, TurnEntries} {
		fd, err := unix.FcntlInt(turns.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
		must.OK(t, err)
		if _, err := OpenTurns(os.NewFile(uintptr(fd), "turns"), entry); err == nil {
			t.Errorf("a process opened entry %d", entry)
		}
	}
	small, err := Create("test-small", 64, Options{Writable: true})
	must.OK(t, err)
	fd, err := unix.FcntlInt(small.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must.OK(t, err)
	if _, err := OpenTurns(os.NewFile(uintptr(fd), "turns"), 0); err == nil {
		t.Error("a process opened a file that is too small")
	}
	small.Close()
}

// A free turn costs no allocation and no system call.
func TestTurnAllocations(t *testing.T) {
	_, p := takers(t, 1)
	if n := testing.AllocsPerRun(100, func() {
		p[0].Take(Rank{}, 0)
		p[0].Release()
	}); n != 0 {
		t.Errorf("%v allocations per turn", n)
	}
}

func BenchmarkTurnFree(b *testing.B) {
	turns, err := NewTurns("bench-turns", false)
	must.OK(b, err)
	defer turns.Close()
	turn := &Turn{words: turns.levels[0].turnWords}
	for b.Loop() {
		turn.Take(Rank{}, 0)
		turn.Release()
	}
}
