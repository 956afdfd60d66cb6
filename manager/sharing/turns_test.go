package sharing

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/shm"
)

// newTurns shares a GPU without MPS.
func newTurns(t *testing.T, log zerolog.Logger) *Sharing {
	t.Helper()
	cfg := configs.Default()
	s := New(Options{Config: &cfg, Dir: t.TempDir(), Log: log})
	t.Cleanup(s.Close)
	s.s.Config = &cfg
	s.Device = Device{Known: true, GPU: &control.GPU{}}
	return s
}

// openTurns opens the turns of an admitted process.
func openTurns(t *testing.T, a Admission) *shm.ProcessTurns {
	t.Helper()
	fd, err := unix.FcntlInt(a.Files[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must.OK(t, err)
	p, err := shm.OpenTurns(os.NewFile(uintptr(fd), "turns"), *a.Turn)
	must.OK(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func TestTakesTurns(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Sharing)
		want bool
	}{
		{"without MPS", func(*Sharing) {}, true},
		{"with MPS", func(s *Sharing) { s.Device.MPS = true }, true},
		{"gslice", func(s *Sharing) { s.s.Config.Shares.Policy = configs.PolicyGSLICE }, false},
		{"time slices as a baseline", func(s *Sharing) { s.s.Config.Lab.TimeSlicing = true }, false},
		{"on a CPU", func(s *Sharing) { s.Device.GPU = nil }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTurns(t, zerolog.Nop())
			c.edit(s)
			if a, err := s.Admit(1); err != nil || (a.Turn != nil) != c.want {
				t.Errorf("entry %v, %v; want one: %v", a.Turn, err, c.want)
			}
		})
	}
}

func TestTurnEntries(t *testing.T) {
	s := newTurns(t, zerolog.Nop())
	join := func(pid int) int {
		t.Helper()
		a, err := s.Admit(pid)
		if err != nil || a.Turn == nil {
			t.Fatalf("process %d: entry %v, %v", pid, a.Turn, err)
		}
		a.Close()
		return *a.Turn
	}
	worker, other := join(10), join(11)
	if again := join(10); again != worker || other == worker {
		t.Errorf("entries %d and %d of one process, %d of another", worker, again, other)
	}
	s.Leave(10)
	if next := join(12); next == worker {
		t.Error("a worker's entry was freed although a member is left")
	}
	s.Leave(10)
	s.Leave(10) // harmless
	if next := join(13); next != worker {
		t.Errorf("the next process gets entry %d, want %d again", next, worker)
	}
	for pid := 100; len(s.turns.holders) < shm.TurnEntries; pid++ {
		join(pid)
	}
	for member := range 2 { // members of a worker
		if a, err := s.Admit(99); a.Turn != nil || err != nil {
			t.Errorf("one process too many, member %d: entry %v, %v; want it to take no turns", member, a.Turn, err)
		}
		s.Leave(13)
	}
	s.Leave(99)
	s.Leave(99)
	if next := join(99); next != worker {
		t.Errorf("a worker whose members all have ended gets entry %d, want %d, which is free", next, worker)
	}
}

// The device changes when the orchestrator opens it again: MPS starts now, or no longer, or priorities do not hold.
func TestTurnsFollowTheDevice(t *testing.T) {
	s := newTurns(t, zerolog.Nop())
	levels := func(pid int) int {
		t.Helper()
		a, err := s.Admit(pid)
		must.OK(t, err)
		defer a.Close()
		return len(openTurns(t, a).Turns)
	}
	fails := &control.GPU{Priorities: &control.StreamPriorities{}}
	for pid, c := range []struct {
		name string
		now  Device
		want int
	}{
		{"without MPS", s.Device, 1},
		{"with MPS", Device{Known: true, MPS: true, GPU: s.Device.GPU}, shm.TurnLevels},
		{"priorities do not hold", Device{Known: true, MPS: true, GPU: fails}, 1},
		{"with MPS again", Device{Known: true, MPS: true, GPU: s.Device.GPU}, shm.TurnLevels},
	} {
		s.Device = c.now
		if got := levels(pid); got != c.want {
			t.Errorf("%s: a process has turns of %d levels, want %d", c.name, got, c.want)
		}
		if got := levels(0); got != 1 {
			t.Errorf("%s: another member of the first process has turns of %d levels, want 1 as before", c.name, got)
		}
	}
}

// A process that hangs or ends in its turn, of a level or of all, does not keep it.
func TestWatchTurns(t *testing.T) {
	for level := -1; level < shm.TurnLevels; level++ {
		t.Run(fmt.Sprint(level), func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			s := newTurns(t, zerolog.New(&log))
			s.Device.MPS = level >= 0
			open := func(pid int) *shm.Turn {
				t.Helper()
				a, err := s.Admit(pid)
				must.OK(t, err)
				a.Close()
				return openTurns(t, a).Turns[max(0, level)]
			}
			hangs, waits := open(10), open(11)
			for range 2 { // it is logged once
				hangs.Take(shm.Rank{}, 0)
				waits.Take(shm.Rank{}, 0)
				wait.For(t, "the turn to be passed on", func() bool {
					s.Watch()
					return waits.Take(shm.Rank{}, 0)
				})
				waits.Release()
			}
			if text, reported := log.String(), level != 0; strings.Count(text, "keeps the GPU") == 1 != reported || strings.Contains(text, `"pid":10`) != reported {
				t.Errorf("the log says %q, want process 10 once: %v; higher levels may keep a demoted batch waiting", text, reported)
			}
			hangs.Take(shm.Rank{}, 0)
			waits.Take(shm.Rank{}, 0)
			s.Leave(10)
			if !waits.Take(shm.Rank{}, 0) {
				t.Error("a process that ended kept its turn")
			}
		})
	}
}
