package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// Go's monotonic clock is CLOCK_MONOTONIC, read through the vDSO, but it only provides
// differences. The absolute value comes from one system call.
var clockBase, clockStart = joinClocks(time.Now, monotonic)

// joinClocks reads both clocks, the kernel's between two readings of Go's, and returns the
// same instant on each. Of several tries, it uses the fastest. If the thread was interrupted
// in the middle, Now would be wrong by that time for the whole life of the process.
func joinClocks(now func() time.Time, kernel func() int64) (base time.Time, start int64) {
	const tries = 16
	least := time.Duration(1<<63 - 1)
	for range tries {
		before := now()
		at := kernel()
		if took := now().Sub(before); took < least {
			least, base, start = took, before, at-int64(took/2)
		}
	}
	return base, start
}

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("client: no monotonic clock: " + err.Error()) // Linux always has it
	}
	return ts.Nano()
}

// Now is CLOCK_MONOTONIC in nanoseconds, the clock of all times in this package. It is the
// same in all processes of a machine.
func Now() int64 { return clockStart + int64(time.Since(clockBase)) }
