package futex

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
)

// shared maps one page twice: for writing, and read-only.
func shared(t *testing.T) (writable, readOnly *atomic.Uint32) {
	t.Helper()
	fd, err := unix.MemfdCreate("futex-test", unix.MFD_CLOEXEC)
	must.OK(t, err)
	defer unix.Close(fd)
	must.OK(t, unix.Ftruncate(fd, 4096))
	mapped := func(prot int) *atomic.Uint32 {
		mem, err := unix.Mmap(fd, 0, 4096, prot, unix.MAP_SHARED)
		must.OK(t, err)
		t.Cleanup(func() { unix.Munmap(mem) })
		return (*atomic.Uint32)(unsafe.Pointer(&mem[0]))
	}
	return mapped(unix.PROT_READ | unix.PROT_WRITE), mapped(unix.PROT_READ)
}

func monotonic(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	must.OK(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return ts.Nano()
}

func TestRingReadOnlyMapping(t *testing.T) {
	writable, readOnly := shared(t)
	for i := range uint32(100) {
		done := make(chan bool)
		go func() {
			timedOut := false
			for readOnly.Load() == i && !timedOut {
				timedOut = Wait(readOnly, i, monotonic(t)+int64(time.Minute))
			}
			done <- timedOut
		}()
		time.Sleep(time.Duration(i%4) * 100 * time.Microsecond)
		Ring(writable)
		if <-done {
			t.Fatal("the sleeper was not woken")
		}
	}
}

func TestWaitChangedValue(t *testing.T) {
	writable, readOnly := shared(t)
	writable.Store(5)
	if Wait(readOnly, 4, 0) {
		t.Error("timed out without a deadline")
	}
}

func TestWaitDeadline(t *testing.T) {
	_, word := shared(t)
	for _, wait := range []time.Duration{-time.Hour, 0, time.Millisecond} {
		deadline := monotonic(t) + int64(wait)
		for !Wait(word, 0, deadline) { // a signal may end it early
		}
		if now := monotonic(t); now < deadline {
			t.Errorf("%v before the deadline", time.Duration(deadline-now))
		}
	}
	if !Wait(word, 0, -1) {
		t.Error("a deadline before the clock began has not passed")
	}
}

// awaitSleep waits until a thread of this process sleeps in the kernel (proc_pid_stat(5)).
func awaitSleep(t *testing.T, thread int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", thread))
		must.OK(t, err)
		if _, state, _ := bytes.Cut(stat, []byte(") ")); bytes.HasPrefix(state, []byte("S")) {
			return
		}
	}
	t.Fatalf("thread %d does not sleep", thread)
}

// Several threads wait on a private word: one wake wakes exactly one of them.
func TestWakeOneOwn(t *testing.T) {
	word := new(atomic.Uint32)
	const waiters = 3
	woken := make(chan bool, waiters)
	threads := make(chan int, waiters)
	for range waiters {
		go func() {
			runtime.LockOSThread()
			threads <- unix.Gettid()
			for word.Load() == 0 {
				WaitOwn(word, 0)
				woken <- true
			}
		}()
	}
	for range waiters {
		awaitSleep(t, <-threads)
	}
	for i := range 2 * waiters {
		WakeOneOwn(word)
		select {
		case <-woken:
		case <-time.After(time.Minute):
			t.Fatalf("wake %d woke nobody", i+1)
		}
		select {
		case <-woken: // an interrupt may wake one without cause, but seldom
			t.Fatalf("wake %d woke two", i+1)
		case <-time.After(10 * time.Millisecond):
		}
	}
	word.Store(1)
	WaitOwn(word, 0) // the value differs: returns at once
	for range waiters {
		WakeOneOwn(word)
		<-woken
	}
}

// BenchmarkWakeNone measures how long the kernel takes to find the waiters of a word that
// has none. If the word may be shared with another process, the kernel looks up its page.
func BenchmarkWakeNone(b *testing.B) {
	word := new(atomic.Uint32)
	b.Run("shared", func(b *testing.B) {
		for b.Loop() {
			wake(word, 1, 0)
		}
	})
	b.Run("own", func(b *testing.B) {
		for b.Loop() {
			WakeOneOwn(word)
		}
	})
}
