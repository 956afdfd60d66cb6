package shm

import (
	"time"

	"golang.org/x/sys/unix"
)

// clockStart and clockBase are the same instant: in Go's monotonic clock, and
// in nanoseconds of CLOCK_MONOTONIC.
var clockStart, clockBase = readClockPair()

// readClockPair reads CLOCK_MONOTONIC between two readings of Go's clock. Of
// several tries it keeps the one whose two readings are closest.
func readClockPair() (time.Time, int64) {
	var (
		start time.Time
		base  int64
		best  = time.Duration(1<<63 - 1)
	)
	for range 16 {
		before := time.Now()
		ts := monotonic()
		apart := time.Since(before)
		if apart < best {
			best = apart
			start, base = before, ts-int64(apart/2)
		}
	}
	return start, base
}

// monotonic reads CLOCK_MONOTONIC by system call.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("shm: no CLOCK_MONOTONIC: " + err.Error()) // Linux always has it
	}
	return ts.Nano()
}

// Now is CLOCK_MONOTONIC in nanoseconds, the same in all processes of a
// machine. It neither allocates nor makes a system call: Go's runtime reads
// that clock itself, and only the offset needed system calls.
func Now() int64 { return clockBase + int64(time.Since(clockStart)) }

// Nanos returns the instant t on Now's clock. t has a monotonic reading, as the times of time.Now have.
func Nanos(t time.Time) int64 { return clockBase + int64(t.Sub(clockStart)) }

// Time returns an instant of Now's clock.
func Time(nanos int64) time.Time { return clockStart.Add(time.Duration(nanos - clockBase)) }
