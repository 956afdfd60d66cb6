// Package futex is sleeping in the kernel on a word of memory that processes
// share (futex(2)): the waiter names the value that it has seen, so a change
// between its look and its sleep is not missed.
package futex

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations, from linux/futex.h. None carries FUTEX_PRIVATE_FLAG: the waiter is
// another process. FUTEX_WAIT_BITSET is the wait whose timeout is absolute.
const (
	opWake       = 1
	opWaitBitset = 9
	anyBit       = 0xffffffff
)

// Wait sleeps while *word is seen, until a wake or the deadline (nanoseconds of
// CLOCK_MONOTONIC, absolute, so that an early return does not stretch the wait;
// 0 for none). It reports whether the deadline passed, and may also return for
// no reason at all. The mapping may be read-only.
//
// The call goes through syscall.Syscall6, which tells Go's scheduler that this
// thread may be gone for long. Callers are locked to their threads, so that
// nothing else is delayed by it.
func Wait(word *atomic.Uint32, seen uint32, deadline int64) (timedOut bool) {
	var ts unix.Timespec
	var until *unix.Timespec
	if deadline != 0 {
		ts = unix.NsecToTimespec(max(deadline, 0))
		until = &ts
	}
	_, _, errno := syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWaitBitset,
		uintptr(seen), uintptr(unsafe.Pointer(until)), 0, anyBit)
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR:
		return false
	case unix.ETIMEDOUT:
		return true
	}
	// A bad address or operation: the caller's mapping is gone.
	panic(fmt.Sprintf("futex wait: %v", errno))
}

// Wake wakes all who wait on word. It never sleeps, so the scheduler is not
// told.
func Wake(word *atomic.Uint32) { wake(word, 1<<31-1) }

// WakeOne wakes one of them. It never sleeps either.
func WakeOne(word *atomic.Uint32) { wake(word, 1) }

func wake(word *atomic.Uint32, most uintptr) {
	syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWake, most, 0, 0, 0)
}

// Ring changes a doorbell and wakes all who wait on it.
func Ring(bell *atomic.Uint32) {
	bell.Add(1)
	Wake(bell)
}
