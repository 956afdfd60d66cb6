// Package futex sleeps in the kernel on a word of memory (futex(2)), shared with other
// processes or private. The waiter passes the value that it has read. The kernel returns at
// once if the word has changed, so no change before the sleep is missed.
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

// Wait sleeps while *word is seen, until a wake or the deadline. The deadline is absolute, in
// nanoseconds of CLOCK_MONOTONIC, 0 for none, so that an early return does not extend the
// wait. Wait reports whether the deadline passed. It may also return without cause. The
// mapping may be read-only.
//
// The call goes through syscall.Syscall6, which tells Go's scheduler that this thread may
// block for long. Callers are locked to their threads, or accept that goroutines behind them
// are delayed by up to 10 ms.
func Wait(word *atomic.Uint32, seen uint32, deadline int64) (timedOut bool) {
	return wait(word, seen, deadline, 0)
}

// WaitOwn is Wait without a deadline on a word that only this process uses, such as any Go
// variable. The kernel then identifies the word by its address and does not look up its page.
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

// wakeWaiters wakes all waiters on word. It never sleeps, so it need not notify the
// scheduler.
func wakeWaiters(word *atomic.Uint32) { wake(word, 1<<31-1, 0) }

// WakeOneOwn wakes one waiter that called WaitOwn on word. It never sleeps either.
func WakeOneOwn(word *atomic.Uint32) { wake(word, 1, private) }

func wake(word *atomic.Uint32, most, flag uintptr) {
	syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWake|flag, most, 0, 0, 0)
}

// Ring changes a doorbell and wakes all waiters on it.
func Ring(bell *atomic.Uint32) {
	bell.Add(1)
	wakeWaiters(bell)
}
