package client

import "time"

// origin is the zero of times within this package, which are nanoseconds of Go's monotonic clock. It is before the
// first request, so that 0 can mean "never".
var origin = time.Now().Add(-time.Second)

func nanotime() int64 { return int64(time.Since(origin)) }

// timeAt returns the time of a number of nanoseconds; the zero time for 0.
func timeAt(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return origin.Add(time.Duration(nanos))
}
