package adaptive

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/shm"
)

// At most one goroutine has the lock, whether the others poll or sleep.
func TestExclusion(t *testing.T) {
	for _, held := range []time.Duration{0, 2 * pollTime} {
		t.Run(fmt.Sprintf("held for %v", held), func(t *testing.T) {
			var m Mutex
			var threads sync.WaitGroup
			inside, counted := 0, 0 // guarded by m: the race detector checks them, too
			const each, takers = 50, 6
			for range takers {
				threads.Go(func() {
					for range each {
						m.Lock()
						if inside++; inside != 1 {
							t.Errorf("%d have the lock", inside)
						}
						counted++
						time.Sleep(held)
						inside--
						m.Unlock()
					}
				})
			}
			threads.Wait()
			if counted != each*takers {
				t.Errorf("taken %d times, want %d", counted, each*takers)
			}
			if m.state.Load() != free {
				t.Errorf("the lock is left in state %d, want free", m.state.Load())
			}
		})
	}
}

// Each sleeper is woken in turn when the lock is freed: none is forgotten when others have
// come and gone meanwhile.
func TestWake(t *testing.T) {
	var m Mutex
	for range 50 {
		m.Lock()
		var threads sync.WaitGroup
		woken := 0 // guarded by m
		for range 4 {
			threads.Go(func() {
				m.Lock()
				woken++
				m.Unlock()
			})
		}
		wait.For(t, "the lock to be awaited", func() bool { return m.state.Load() == awaited })
		m.Unlock()
		ended := make(chan struct{})
		go func() {
			threads.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("somebody sleeps, and the lock is free")
		}
		if woken != 4 {
			t.Fatalf("%d of 4 had the lock", woken)
		}
	}
}

// With one CPU, a goroutine that finds the lock taken sleeps at once: the holder needs the
// CPU.
func TestOneCPU(t *testing.T) {
	before := alone
	defer func() { alone = before }()
	waiter := func(one bool) time.Duration {
		alone = func() bool { return one }
		var m Mutex
		m.Lock()
		took := make(chan time.Duration)
		go func() {
			runtime.LockOSThread()
			began := threadTime(t)
			m.Lock()
			took <- threadTime(t) - began
			m.Unlock()
		}()
		wait.For(t, "the lock to be awaited", func() bool { return m.state.Load() == awaited })
		time.Sleep(pollTime)
		m.Unlock()
		return <-took
	}
	for range 20 { // other work of the machine may count as the thread's
		if with, without := waiter(false), waiter(true); with > pollTime/2 && without < pollTime/2 {
			return
		}
	}
	t.Errorf("a thread with one CPU looked like one with several in each of 20 tries; want it to sleep at once")
}

func threadTime(t *testing.T) time.Duration {
	var ts unix.Timespec
	must.OK(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts))
	return time.Duration(ts.Nano())
}

func TestUnlockPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("unlock of a mutex that nobody has: want a panic")
		}
	}()
	var m Mutex
	m.Unlock()
}

// BenchmarkContended compares Mutex with a sync.Mutex in a small copy of the manager's data
// path. A reply thread wants a lock that receive threads hold for 15 µs of every 150 µs. The
// rest of the time they are in system calls. All are threads of their own with the data
// path's priority; other work runs with an ordinary one. The benchmark reports how long the
// reply thread waited for the lock.
func BenchmarkContended(b *testing.B) {
	const (
		receivers = 2
		hold      = 15 * time.Microsecond
		copying   = 135 * time.Microsecond
		every     = 200 * time.Microsecond
	)
	for _, kind := range []struct {
		name string
		lock sync.Locker
	}{{"sync", new(sync.Mutex)}, {"adaptive", new(Mutex)}} {
		b.Run(kind.name, func(b *testing.B) {
			var threads sync.WaitGroup
			var stop atomic.Bool
			for range receivers {
				threads.Go(func() {
					lockThread(-15)
					for !stop.Load() {
						kind.lock.Lock()
						run(hold)
						kind.lock.Unlock()
						sleepInKernel(copying)
					}
				})
			}
			threads.Go(func() { // like the control loop and the collector
				for !stop.Load() {
					run(time.Millisecond)
					runtime.Gosched()
				}
			})
			waits := make([]int64, 0, b.N)
			threads.Go(func() {
				lockThread(-15)
				for range b.N {
					began := shm.Now()
					kind.lock.Lock()
					waits = append(waits, shm.Now()-began)
					run(hold)
					kind.lock.Unlock()
					sleepInKernel(every)
				}
				stop.Store(true)
			})
			threads.Wait()
			slices.Sort(waits)
			at := func(q float64) float64 { return float64(waits[min(len(waits)-1, int(q*float64(len(waits))))]) / 1e3 }
			b.ReportMetric(at(0.5), "p50-us")
			b.ReportMetric(at(0.9), "p90-us")
			b.ReportMetric(at(0.99), "p99-us")
			b.ReportMetric(at(1), "max-us")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// lockThread does what the manager does for a thread of the data path. Without the privilege,
// both kinds of lock run at ordinary priority.
func lockThread(nice int) {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), nice)
}

func run(d time.Duration) {
	for until := shm.Now() + int64(d); shm.Now() < until; {
	}
}

// sleepInKernel is a system call that takes a while, and that Go's scheduler knows of.
func sleepInKernel(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}
