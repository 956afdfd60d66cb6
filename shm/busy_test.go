package shm

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
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
	if err != nil {
		t.Fatal(err)
	}
	b, err := OpenBusyFile(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func openBusyBit(t testing.TB, file *BusyFile) *BusyBit {
	t.Helper()
	bit, err := tryBusyBit(t, file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bit.Close() })
	return bit
}

func tryBusyBit(t testing.TB, file *BusyFile) (*BusyBit, error) {
	t.Helper()
	f, err := file.File()
	if err != nil {
		t.Fatal(err)
	}
	return OpenBusyBit(f)
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
	if !a.Begin(now) || !a.Begin(now) || !b.Begin(now) {
		t.Fatal("a batch was not shown")
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
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryBusyBit(t, file); !errors.Is(err, ErrNoBit) {
		t.Errorf("one process too many: %v, want ErrNoBit", err)
	}
	last.Begin(now)
	last.Close()
	expectWord(t, file, 0, "a process has given its bit back")
	openBusyBit(t, file)
}

// TestBusySweep kills a process with a batch in flight.
func TestBusySweep(t *testing.T) {
	if path := os.Getenv("BUSY_FILE"); path != "" { // that process
		openBusyBit(t, openBusyFile(t, path)).Begin(Now())
		select {}
	}
	file, path := busyFile(t)
	alive := openBusyBit(t, file)
	alive.Begin(Now())
	cmd := exec.Command(os.Args[0], "-test.run=^TestBusySweep$")
	cmd.Env = append(os.Environ(), "BUSY_FILE="+path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for file.words.word.Load() != 0b11 {
		time.Sleep(time.Millisecond)
	}
	sweep := func() {
		if err := file.Sweep(); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	expectWord(t, file, 0b11, "both run")
	cmd.Process.Kill()
	cmd.Wait()
	sweep()
	expectWord(t, file, 0b01, "one was killed")

	// A manager that starts again finds the file and the process that runs on.
	again := openBusyFile(t, path)
	if err := again.Sweep(); err != nil {
		t.Fatal(err)
	}
	expectWord(t, again, 0b01, "the manager started again")
	alive.End()
	expectWord(t, again, 0, "the batch ended")
}

// TestBusyPause has two processes of which one is always busy.
func TestBusyPause(t *testing.T) {
	const ms = int64(time.Millisecond)
	file, _ := busyFile(t)
	a, b := openBusyBit(t, file), openBusyBit(t, file)
	// Each batch takes 6 ms, and the processes begin in turn, 3 ms apart.
	begun := map[*BusyBit]bool{a: a.Begin(0)}
	var pauses []int64 // when guests could begin
	began, open := int64(0), false
	for now := 3 * ms; now < 1000*ms; now += 3 * ms {
		p := a
		if now/ms%2 == 1 {
			p = b
		}
		if begun[p] {
			p.End()
		}
		if idle := file.words.word.Load() == 0; idle != open {
			if open = idle; idle {
				began = now
			} else {
				pauses = append(pauses, now-began)
			}
		}
		begun[p] = p.Begin(now)
	}
	var sum int64
	for _, p := range pauses {
		sum += p
	}
	// 20 ms, less the batches that ran when the pause began, and up to the next batch after it.
	if n := int64(len(pauses)); n < 7 || n > 9 || sum < 12*ms*n || sum > 24*ms*n {
		t.Errorf("guests had %d turns of %v in a second, want eight of 12 to 24 ms", len(pauses), time.Duration(sum/max(1, n)))
	}

	// Functions that pause anyway make no further pauses.
	file, _ = busyFile(t)
	a = openBusyBit(t, file)
	for now := int64(0); now < 1000*ms; now += 10 * ms {
		if !a.Begin(now) {
			t.Fatalf("no bit at %v", time.Duration(now))
		}
		a.End()
	}
}

func TestBusyNonsense(t *testing.T) {
	file, _ := busyFile(t)
	a := openBusyBit(t, file)
	for _, nonsense := range []int64{math.MinInt64, -1, math.MaxInt64} {
		file.words.times.since.Store(nonsense)
		file.words.times.resume.Store(nonsense)
		if now := Now(); !a.Begin(now) || file.words.times.since.Load() != now {
			t.Errorf("times of %d keep a process from its bit", nonsense)
		}
		a.End()
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
					if file.words.word.Load()&bit.mask == 0 {
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

func BenchmarkBusyBit(b *testing.B) {
	file, _ := busyFile(b)
	bit := openBusyBit(b, file)
	for b.Loop() {
		if bit.Begin(Now()) {
			bit.End()
		}
	}
}
