// Package adaptive provides a mutual exclusion lock for threads that other threads wait for
// within microseconds. A goroutine that finds it taken polls for a while before it sleeps,
// and the kernel wakes it.
package adaptive

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/futex"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/shm/cpuset"
)

// Mutex is a lock that is held for microseconds, and never across an operation that waits.
// The zero value is unlocked. It must not be copied after first use. Any goroutine may use
// it. A goroutine that is not locked to its thread keeps its P (GOMAXPROCS) for up to 10 ms
// while it sleeps.
//
// A sync.Mutex puts a goroutine to sleep after a microsecond. If that goroutine is locked to
// its thread, another thread of Go's scheduler has to find it before the first can be woken.
// Those are two wakes, by a thread of ordinary priority that has to wait for a CPU itself.
// Once a goroutine has waited for a millisecond, a sync.Mutex passes from one waiter to the
// next in turn, so that all of them sleep. Under an overrun, a manager stayed in that state
// (docs/adr/0015-the-data-path-waits-for-nobody.md).
//
// It is the third mutex of U. Drepper, Futexes Are Tricky (2011), with polling before the
// sleep. A new caller may overtake a sleeping one. No caller may take the lock again and
// again without doing something else in between.
type Mutex struct {
	state atomic.Uint32
}

const (
	free = iota
	taken
	awaited // taken, and a goroutine may sleep
)

// pollTime is how long Lock polls a taken lock: about what sleeping and being woken cost. Holders
// need less time unless the kernel takes their CPU away.
const pollTime = 50 * time.Microsecond

// alone reports whether this process has one CPU: the holder of a lock cannot free it while
// another thread polls. It is read when a lock is first found taken. A process that is pinned
// is pinned before its data path runs.
var alone = sync.OnceValue(func() bool {
	cpus, err := cpuset.OfThread(os.Getpid())
	return err == nil && len(cpus) == 1
})

// Lock takes the lock. It waits for as long as necessary.
func (m *Mutex) Lock() {
	if !m.state.CompareAndSwap(free, taken) && (alone() || !m.poll()) {
		for m.state.Swap(awaited) != free {
			futex.WaitOwn(&m.state, awaited)
		}
	}
}

// poll reports whether it took the lock while polling. Reading the clock keeps this CPU off
// its sibling's resources, and off the cache line of the lock, for 30 ns.
func (m *Mutex) poll() bool {
	for until := shm.Now() + int64(pollTime); ; {
		if m.state.Load() == free && m.state.CompareAndSwap(free, taken) {
			return true
		}
		if shm.Now() >= until {
			return false
		}
	}
}

// Unlock frees the lock. It panics if the lock is free.
func (m *Mutex) Unlock() {
	switch m.state.Swap(free) {
	case free:
		panic("adaptive: unlock of an unlocked mutex")
	case awaited:
		futex.WakeOneOwn(&m.state)
	}
}
