package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// Go's monotonic clock is CLOCK_MONOTONIC, read through the vDSO, but it only
// tells differences. So the kernel is asked once for the absolute value.
var (
	clockBase  = time.Now()
	clockStart = monotonic()
)

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
