// Package futex is sleeping in the kernel on a word of memory, which processes share or
// which is one's own (futex(2)): the waiter names the value that it has seen, so a change
// between its look and its sleep is not missed.
package futex

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations, from linux/futex.h. Without FUTEX_PRIVATE_FLAG the waiter may be another
// process. FUTEX_WAIT_BITSET is the wait whose timeout is absolute.
const (
	opWake       = 1
	opWaitBitset = 9
	private      = 128
	anyBit       = 0xffffffff
)

// Wait sleeps while *word is seen, until a wake or the deadline (nanoseconds of
// CLOCK_MONOTONIC, absolute, so that an early return does not stretch the wait;
// 0 for none). It reports whether the deadline passed, and may also return for
// no reason at all. The mapping may be read-only.
//
// The call goes through syscall.Syscall6, which tells Go's scheduler that this
// thread may be gone for long. Callers are locked to their threads, or do not mind that
// goroutines behind them are delayed by up to 10 ms.
func Wait(word *atomic.Uint32, seen uint32, deadline int64) (timedOut bool) {
	return wait(word, seen, deadline, 0)
}

// WaitOwn is Wait, without a deadline, on a word that is this process's alone: on any of Go's
// variables. The kernel then knows the word by its address, and does not look its page up.
func WaitOwn(word *atomic.Uint32, seen uint32) { wait(word, seen, 0, private) }

func wait(word *atomic.Uint32, seen uint32, deadline int64, flag uintptr) (timedOut bool) {
	var ts unix.Timespec
	var until *unix.Timespec
	if deadline != 0 {
		ts = unix.NsecToTimespec(max(deadline, 0))
		until = &ts
	}
	_, _, errno := syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWaitBitset|flag,
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

// wakeWaiters wakes all who wait on word. It never sleeps, so the scheduler is not
// told.
func wakeWaiters(word *atomic.Uint32) { wake(word, 1<<31-1, 0) }

// WakeOneOwn wakes one of those who are in WaitOwn on word. It never sleeps either.
func WakeOneOwn(word *atomic.Uint32) { wake(word, 1, private) }

func wake(word *atomic.Uint32, most, flag uintptr) {
	syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWake|flag, most, 0, 0, 0)
}

// Ring changes a doorbell and wakes all who wait on it.
func Ring(bell *atomic.Uint32) {
	bell.Add(1)
	wakeWaiters(bell)
}
