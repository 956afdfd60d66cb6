// Package adaptive is a mutual exclusion lock for threads that are waited for within
// microseconds: who finds it taken looks for a while before it sleeps, and is woken by the
// kernel.
package adaptive

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/shm/cpuset"
	"github.com/penstock/penstock/shm/internal/futex"
)

// Mutex is a lock that is held for microseconds, and never over what waits. The zero value
// is free. It must not be copied once it has been used. Any goroutine may use it; one that is not
// locked to its thread keeps its place to run (GOMAXPROCS) for up to 10 ms while it sleeps.
//
// A sync.Mutex puts a goroutine to sleep after a microsecond. If that goroutine is locked
// to its thread, another thread of Go's scheduler has to find it before the first can be
// woken: two wakes, by a thread that has an ordinary priority and has to wait for a CPU
// itself. And once someone has waited for a millisecond a sync.Mutex is handed from one
// waiter to the next in turn, so that everybody sleeps. Under an overrun that was the
// state in which a manager stayed (docs/adr/0015-the-data-path-waits-for-nobody.md).
//
// It is the third mutex of U. Drepper, Futexes Are Tricky (2011), with a look before the
// sleep. Who comes may overtake who sleeps: nobody may take it again and again without
// doing something else between.
type Mutex struct {
	state atomic.Uint32
}

const (
	free = iota
	taken
	awaited // taken, and somebody may sleep
)

// look is how long a taken lock is looked at: about what sleeping and being woken cost.
// Holders need less unless the kernel takes their CPU away.
const look = 50 * time.Microsecond

// alone reports whether this process has one CPU: then whoever has a lock cannot free it
// while another looks. It is what was found when a lock was first found taken; a process
// that is pinned is so before its data path runs.
var alone = sync.OnceValue(func() bool {
	cpus, err := cpuset.OfThread(os.Getpid())
	return err == nil && len(cpus) == 1
})

// Lock takes the lock, and waits for it as long as it takes.
func (m *Mutex) Lock() {
	if !m.state.CompareAndSwap(free, taken) && (alone() || !m.look()) {
		for m.state.Swap(awaited) != free {
			futex.WaitOwn(&m.state, awaited)
		}
	}
}

// look reports whether the lock was taken while looking. To read the clock keeps a CPU from
// its sibling's way, and from the line in which the lock lies, for 30 ns.
func (m *Mutex) look() bool {
	for until := shm.Now() + int64(look); ; {
		if m.state.Load() == free && m.state.CompareAndSwap(free, taken) {
			return true
		}
		if shm.Now() >= until {
			return false
		}
	}
}

// Unlock frees the lock. It panics if nobody has it.
func (m *Mutex) Unlock() {
	switch m.state.Swap(free) {
	case free:
		panic("adaptive: unlock of a mutex that nobody has")
	case awaited:
		futex.WakeOneOwn(&m.state)
	}
}
