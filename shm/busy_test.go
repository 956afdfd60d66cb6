package shm

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// busyFile returns a new busy file and its path.
func busyFile(t testing.TB) (*BusyFile, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "busy")
	return openBusyFile(t, path), path
}

func openBusyFile(t testing.TB, path string) *BusyFile {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	must.OK(t, err)
	b, err := OpenBusyFile(f)
	must.OK(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

func openBusyBit(t testing.TB, file *BusyFile) *BusyBit {
	t.Helper()
	bit, err := tryBusyBit(t, file)
	must.OK(t, err)
	t.Cleanup(func() { bit.Close() })
	return bit
}

func tryBusyBit(t testing.TB, file *BusyFile) (*BusyBit, error) {
	t.Helper()
	word, locks, err := file.Files()
	must.OK(t, err)
	fd, err := unix.FcntlInt(word.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must.OK(t, err)
	return OpenBusyBit(os.NewFile(uintptr(fd), "busy"), locks)
}

func expectWord(t *testing.T, file *BusyFile, want uint64, when string) {
	t.Helper()
	if got := file.words.word.Load(); got != want {
		t.Fatalf("%s: the busy word is %#x, want %#x", when, got, want)
	}
}

func TestBusyWord(t *testing.T) {
	file, path := busyFile(t)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the file has mode %v, %v; want that guests of other users may read it", info.Mode(), err)
	}
	a, b := openBusyBit(t, file), openBusyBit(t, file)
	now := Now()
	for _, bit := range []*BusyBit{a, a, b} {
		if !bit.Begin(now) {
			t.Fatal("a batch set no bit")
		}
	}
	expectWord(t, file, 0b11, "three batches of two processes")
	a.End()
	expectWord(t, file, 0b11, "one batch each")
	a.End()
	expectWord(t, file, 0b10, "one batch of the second")
	b.End()
	expectWord(t, file, 0, "no batch")

	for range BusyBits - 3 {
		openBusyBit(t, file)
	}
	last, err := tryBusyBit(t, file)
	must.OK(t, err)
	if _, err := tryBusyBit(t, file); !errors.Is(err, ErrNoBit) {
		t.Errorf("one process too many: %v, want ErrNoBit", err)
	}
	last.Begin(now)
	last.Close()
	expectWord(t, file, 0, "a process has given its bit back")
	openBusyBit(t, file)
}

// TestBusySweep kills a process with a batch in flight. It has the files as descriptors 3 and 4.
func TestBusySweep(t *testing.T) {
	if os.Getenv("BUSY_BIT") != "" { // that process
		bit, err := OpenBusyBit(os.NewFile(3, "busy"), os.NewFile(4, "locks"))
		must.OK(t, err)
		bit.Begin(Now())
		unix.Pause() // Go would end a program that waits for nothing
	}
	file, path := busyFile(t)
	alive := openBusyBit(t, file)
	word, locks, err := file.Files()
	must.OK(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestBusySweep$")
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), "BUSY_BIT=1"), []*os.File{word, locks}
	must.OK(t, cmd.Start())
	locks.Close()
	wait.For(t, "the bit of the other process", func() bool { return file.words.word.Load() == 0b10 })
	now := file.words.times.since.Load() // on a busy machine, maxBusy can have passed since
	alive.Begin(now)
	sweep := func() {
		must.OK(t, file.Sweep())
	}
	sweep()
	expectWord(t, file, 0b11, "both run")
	cmd.Process.Kill()
	cmd.Wait()
	next := openBusyBit(t, file) // of the same number
	expectWord(t, file, 0b01, "another process took the bit of the killed one")
	next.Begin(now)
	sweep()
	expectWord(t, file, 0b11, "both run again")

	// Processes of a manager that has ended are ending, too.
	again := openBusyFile(t, path)
	expectWord(t, again, 0, "the manager started again")
	alive.Begin(Now())
	must.OK(t, again.Sweep())
	expectWord(t, again, 0, "a process of the former manager set its bit")
}

// TestBusyPause runs batches without pauses. Guests can begin while the word is 0.
func TestBusyPause(t *testing.T) {
	const ms = int64(time.Millisecond)
	for _, row := range []struct {
		name            string
		batch, gap      int64 // of each process
		processes       int
		atLeast, atMost float64 // part of the time
		shown           float64 // min part of the batches that set a bit
	}{
		{"one, back to back", 6 * ms, 0, 1, 0.1, 0.25, 0.7},
		{"two", 6 * ms, 0, 2, 0.1, 0.25, 0.7},
		{"two, 20 ms", 20 * ms, 0, 2, 0.1, 0.25, 0.6},
		{"two, 40 ms", 40 * ms, 0, 2, 0.08, 0.3, 0.5},
		{"three, 60 ms", 60 * ms, 0, 3, 0.08, 0.4, 0.4},
		{"one, 150 ms", 150 * ms, 0, 1, 0.08, 0.6, 0.3},
		{"two, 150 ms", 150 * ms, 0, 2, 0.08, 0.6, 0.2},
		{"half busy", 5 * ms, 5 * ms, 1, 0.5, 0.5, 1},
		{"four fifths busy", 8 * ms, 2 * ms, 1, 0.2, 0.2, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			file, _ := busyFile(t)
			type state struct {
				bit          *BusyBit
				ends, begins int64
				running, set bool
			}
			var all []*state
			for i := range row.processes {
				all = append(all, &state{bit: openBusyBit(t, file), begins: int64(i) * row.batch / int64(row.processes)})
			}
			const end = 20_000 * ms
			open, begun, shown := int64(0), 0, 0
			for now := int64(0); now < end; now += ms / 2 {
				for _, p := range all {
					if p.running && now >= p.ends {
						if p.running = false; p.set {
							p.bit.endAt(now)
						}
						p.begins = now + row.gap
					}
					if !p.running && now >= p.begins {
						p.running, p.ends, p.set = true, now+row.batch, p.bit.Begin(now)
						begun++
						if p.set {
							shown++
						}
					}
				}
				if file.words.word.Load() == 0 {
					open += ms / 2
				}
			}
			part, bits := float64(open)/float64(end), float64(shown)/float64(begun)
			if part < row.atLeast-0.001 || part > row.atMost+0.001 || bits < row.shown {
				t.Errorf("guests had %.3f of the time, and %.2f of the batches a bit; want %.2f to %.2f, and %.2f or more", part, bits, row.atLeast, row.atMost, row.shown)
			}
		})
	}
}

// TestBusyFileShrunk shrinks the file, which a faulty process of a function can do.
func TestBusyFileShrunk(t *testing.T) {
	file, path := busyFile(t)
	bit := openBusyBit(t, file)
	bit.Begin(Now())
	must.OK(t, os.Truncate(path, 0))
	bit.End()
	if bit.Begin(Now()) {
		t.Error("a bit was set in a file without bytes")
	}
	if err := file.Sweep(); err == nil || !strings.Contains(err.Error(), "shrunk") {
		t.Errorf("sweep: %v, want an error that says why", err)
	}
}

func TestBusyNonsense(t *testing.T) {
	file, _ := busyFile(t)
	a := openBusyBit(t, file)
	for _, since := range []int64{math.MinInt64, -1, math.MaxInt64} {
		for _, idle := range []int64{math.MinInt64, -1, math.MaxInt64} {
			file.words.times.since.Store(since)
			file.words.times.idle.Store(idle)
			file.words.times.paused.Store(true)
			now, set := Now(), false
			for end := now + 2*int64(maxBusy+minPause); now < end && !set; now += int64(time.Millisecond) {
				if set = a.Begin(now); set {
					a.endAt(now)
				}
			}
			if !set {
				t.Errorf("times of %d and %d keep a process from its bit", since, idle)
			}
		}
	}
}

func TestBusyThreads(t *testing.T) {
	file, _ := busyFile(t)
	var threads sync.WaitGroup
	for range 4 {
		bit := openBusyBit(t, file)
		for range 2 {
			threads.Go(func() {
				for range 2000 {
					if !bit.Begin(Now()) {
						continue
					}
					if file.words.word.Load()&bit.bit == 0 {
						t.Error("a batch runs, and the bit is not set")
					}
					bit.End()
				}
			})
		}
	}
	threads.Wait()
	expectWord(t, file, 0, "all batches have ended")
}

// endAt is End at a time of the test.
func (b *BusyBit) endAt(now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.batches--; b.batches == 0 {
		b.words.end(now, b.bit)
	}
}

func BenchmarkBusyBit(b *testing.B) {
	file, _ := busyFile(b)
	bit := openBusyBit(b, file)
	for b.Loop() {
		if bit.Begin(Now()) {
			bit.End()
		}
	}
}
