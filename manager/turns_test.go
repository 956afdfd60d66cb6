package manager

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/shm"
)

// newNodeWithoutMPS is newGuaranteedNode on a GPU without MPS.
func newNodeWithoutMPS(t *testing.T, functions ...configs.Function) *nodeBed {
	t.Helper()
	gpu := h200()
	gpu.GroupSMs = nil
	b := newNode(t, "cuda", gpu, mechanismTimeSlicing)
	b.cfg.Shares.Policy = configs.PolicyGuarantee
	t.Cleanup(b.Manager.turns.close)
	for _, f := range functions {
		if err := b.add(f); err != nil {
			t.Fatal(err)
		}
	}
	b.turns()
	return b
}

func TestTakesTurns(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*nodeBed)
		want bool
	}{
		{"without MPS", func(*nodeBed) {}, true},
		{"with MPS", func(b *nodeBed) { b.Manager.device.mps = true }, false},
		{"gslice", func(b *nodeBed) { b.cfg.Shares.Policy = configs.PolicyGSLICE }, false},
		{"time slices as a baseline", func(b *nodeBed) { b.cfg.Lab.TimeSlicing = true }, false},
		{"on a CPU", func(b *nodeBed) { b.Manager.device.gpu = nil }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newNodeWithoutMPS(t, objective("a", time.Second))
			c.edit(b)
			entry, err := b.joinTurns(1)
			if err != nil || (entry != nil) != c.want || b.takesTurns() != c.want {
				t.Errorf("entry %v, %v; takes turns: %v, want %v", entry, err, b.takesTurns(), c.want)
			}
		})
	}
}

func TestTurnEntries(t *testing.T) {
	b := newNodeWithoutMPS(t)
	join := func(pid int) int {
		t.Helper()
		entry, err := b.joinTurns(pid)
		if err != nil || entry == nil {
			t.Fatalf("process %d: entry %v, %v", pid, entry, err)
		}
		return *entry
	}
	worker, other := join(10), join(11)
	if again := join(10); again != worker || other == worker {
		t.Errorf("entries %d and %d of one process, %d of another", worker, again, other)
	}
	b.Manager.turns.leave(10)
	if next := join(12); next == worker {
		t.Error("a worker's entry was freed although a member is left")
	}
	b.Manager.turns.leave(10)
	b.Manager.turns.leave(10) // harmless
	if next := join(13); next != worker {
		t.Errorf("the next process gets entry %d, want %d again", next, worker)
	}
	for pid := 100; len(b.Manager.turns.entries) < shm.TurnEntries; pid++ {
		join(pid)
	}
	if entry, err := b.joinTurns(99); entry != nil || err != nil {
		t.Errorf("one process too many: entry %v, %v; want it to take no turns", entry, err)
	}
}

func TestWatchTurns(t *testing.T) {
	b := newNodeWithoutMPS(t)
	var log bytes.Buffer
	b.log = zerolog.New(&log)
	open := func(pid int) *shm.Turn {
		t.Helper()
		entry, err := b.joinTurns(pid)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.FcntlInt(b.Manager.turns.shared.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		turn, err := shm.OpenTurn(os.NewFile(uintptr(fd), "turns"), *entry)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { turn.Close() })
		return turn
	}
	hangs, waits := open(10), open(11)
	for range 2 { // it is logged once
		hangs.Take(shm.Rank{}, 0)
		waits.Take(shm.Rank{}, 0)
		for end := time.Now().Add(time.Minute); !waits.Take(shm.Rank{}, 0); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the turn was not passed on")
			}
			b.watch()
		}
		waits.Release()
	}
	if text := log.String(); strings.Count(text, "keeps the GPU") != 1 || !strings.Contains(text, `"pid":10`) {
		t.Errorf("the log says %q, want process 10 once", text)
	}
	hangs.Take(shm.Rank{}, 0)
	waits.Take(shm.Rank{}, 0)
	b.Manager.turns.leave(10)
	if !waits.Take(shm.Rank{}, 0) {
		t.Error("a process that ended kept its turn")
	}
}

func TestBatchCaps(t *testing.T) {
	b := newNodeWithoutMPS(t, objective("quick", 10*time.Millisecond), objective("slow", time.Second))
	sizes := testCard().Batches
	b.instance("slow", 0).batching.Limit = float64(sizes[len(sizes)-1])
	for range 3 {
		b.load("quick", 10, time.Millisecond)
		b.load("slow", 10000, 3*time.Millisecond)
	}
	slow := b.wanted("slow")[control.Serve]
	if slow.MaxBatch != 2 {
		t.Errorf("batches of slow have up to %d requests of 3 ms, want 2: quick has 10 ms and takes 1 itself", slow.MaxBatch)
	}
	if n := b.wanted("quick")[control.Serve].MaxBatch; n != 0 {
		t.Errorf("batches of quick have up to %d requests, want no limit", n)
	}
	if s := b.status("quick").Guarantee; s.Unprotected != control.UnprotectedByDevice || s.Infeasible != "" {
		t.Errorf("status %+v", s)
	}
	b.Manager.device.mps = true
	b.guarantees()
	b.turn()
	if n := b.wanted("slow")[control.Serve].MaxBatch; n != 0 {
		t.Errorf("batches of slow have up to %d requests with MPS, want no limit", n)
	}
}
