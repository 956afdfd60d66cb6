// Package adaptive is a mutual exclusion lock for threads that are waited for within
// microseconds: who finds it taken looks for a while before it sleeps, and is woken by the
// kernel.
package adaptive

import (
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/shm/internal/futex"
)

// Mutex is a lock that is held for microseconds, and never over what waits. The zero value
// is free. It must not be copied once it has been used.
//
// A sync.Mutex puts a goroutine to sleep after a microsecond. If that goroutine is locked
// to its thread, another thread of Go's scheduler has to find it before the first can be
// woken: two wakes, by a thread that has an ordinary priority and has to wait for a CPU
// itself. And once someone has waited for a millisecond a sync.Mutex is handed from one
// waiter to the next in turn, so that everybody sleeps. Under an overrun that was the
// state in which a manager stayed (docs/adr/0015-locks-of-the-data-path.md).
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

// looks go between two readings of the clock.
const looks = 32

// Lock takes the lock, and waits for it as long as it takes.
func (m *Mutex) Lock() {
	if !m.state.CompareAndSwap(free, taken) && !m.look() {
		for m.state.Swap(awaited) != free {
			futex.Wait(&m.state, awaited, 0)
		}
	}
}

// look reports whether the lock was taken while looking.
func (m *Mutex) look() bool {
	for until := shm.Now() + int64(look); ; {
		for range looks {
			if m.state.Load() == free && m.state.CompareAndSwap(free, taken) {
				return true
			}
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
		futex.WakeOne(&m.state)
	}
}
