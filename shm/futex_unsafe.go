package shm

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of futex(2), from linux/futex.h. None carries FUTEX_PRIVATE_FLAG:
// the waiter is another process.
const (
	futexWake          = 1
	futexWaitBitset    = 9
	futexBitsetMatches = 0xffffffff
)

// futexWait sleeps while *word is seen, until a wake or the deadline
// (nanoseconds of Now, absolute, so that an early return does not stretch the
// wait; 0 for none). It reports whether the deadline passed; it may also return
// for no reason at all. The mapping may be read-only.
//
// The call goes through syscall.Syscall6, which tells the scheduler that this
// thread may be gone for long.
func futexWait(word *atomic.Uint32, seen uint32, deadline int64) (timedOut bool) {
	var ts unix.Timespec
	var at *unix.Timespec
	if deadline != 0 {
		ts = unix.NsecToTimespec(max(deadline, 0))
		at = &ts
	}
	_, _, errno := syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitBitset,
		uintptr(seen), uintptr(unsafe.Pointer(at)), 0, futexBitsetMatches)
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR:
		return false
	case unix.ETIMEDOUT:
		return true
	}
	panic(fmt.Sprintf("shm: futex wait: %v", errno)) // a bad address or operation: this package's mistake
}

// futexWakeAll wakes all who wait on word. It never sleeps, so the scheduler is
// not told.
func futexWakeAll(word *atomic.Uint32) {
	syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1<<31-1, 0, 0, 0)
}

// ringBell changes a doorbell and wakes all who wait on it.
func ringBell(bell *atomic.Uint32) {
	bell.Add(1)
	futexWakeAll(bell)
}
