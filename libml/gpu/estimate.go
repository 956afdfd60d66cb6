package gpu

import "time"

// estimate is how long recent batches of one size took, in nanoseconds: an
// exponential mean, and the mean distance from it. The zero value is an unknown
// time.
type estimate struct {
	mean, deviation float64
}

const (
	// newWeight is the weight of a new measurement.
	newWeight = 1.0 / 8
	// wakeEarly is how long before the expected time a nap ends at the latest: the
	// kernel wakes a thread some microseconds late.
	wakeEarly = float64(15 * time.Microsecond)
	// minNap is the shortest nap that is worth the system call.
	minNap = float64(10 * time.Microsecond)
	// pollTime is how long Wait polls a batch beyond its expected time, or from
	// the beginning if nothing is known.
	pollTime = float64(50 * time.Microsecond)
)

// add updates the estimate with a batch's time. If a batch ends during a nap, Wait
// notices it when the nap ends, which is before the mean. So the mean decreases
// and the deviation grows until naps end in time again.
func (e *estimate) add(ns int64) {
	took := float64(ns)
	if e.mean == 0 {
		e.mean, e.deviation = took, took/4
		return
	}
	off := took - e.mean
	if off < 0 {
		off = -off
	}
	e.deviation += (off - e.deviation) * newWeight
	e.mean += (took - e.mean) * newWeight
}

// nap returns how long to sleep, waited nanoseconds after the beginning; 0: check
// now. A batch that is expected soon is polled. A late or unknown batch is checked
// after naps of a sixteenth of the time that it has taken.
func (e *estimate) nap(waited int64) int64 {
	now := float64(waited)
	early, late := e.mean-3*e.deviation-wakeEarly, e.mean+4*e.deviation+pollTime
	switch n := early - now; {
	case n >= minNap:
		return int64(n)
	case now < late:
		return 0
	}
	return int64(max(now/16, minNap))
}
