package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// Go's monotonic clock is CLOCK_MONOTONIC, read through the vDSO, but it only
// tells differences. So the kernel is asked once for the absolute value.
var clockBase, clockStart = joinClocks(time.Now, monotonic)

// joinClocks reads both clocks, the kernel's between two readings of Go's, and returns one
// instant by each. Of several tries the one counts that took the least: a thread that was
// stopped in the middle would have Now be wrong by as much for as long as the process lives.
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
		panic("client: no monotonic clock: " + err.Error()) // every Linux has one
	}
	return ts.Nano()
}

// Now is CLOCK_MONOTONIC in nanoseconds, the clock of all times in this
// package; it is the same in all processes of a machine.
func Now() int64 { return clockStart + int64(time.Since(clockBase)) }
