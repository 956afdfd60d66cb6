package gpu

import "time"

// estimate is how long batches of one size took lately, in nanoseconds: a mean
// that forgets, and the mean distance from it. The zero estimate knows nothing.
type estimate struct {
	mean, deviation float64
}

const (
	// forget is the weight of what comes in.
	forget = 1.0 / 8
	// wakeEarly is how long before the expected time a nap ends at the latest: a
	// thread is woken some microseconds late.
	wakeEarly = float64(15 * time.Microsecond)
	// shortest is a nap that is worth the system call.
	shortest = float64(10 * time.Microsecond)
	// patience is how long a batch is watched past the time when it was expected, or
	// from the beginning where nothing is known.
	patience = float64(50 * time.Microsecond)
)

// add takes in how long a batch took. One that ended during a nap is seen when the
// nap ends, which is before the mean: so the mean sinks, and the deviation grows,
// until naps end in time again.
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
	e.deviation += (off - e.deviation) * forget
	e.mean += (took - e.mean) * forget
}

// nap is how long to sleep, waited nanoseconds after the beginning; 0: look now.
// A batch that is expected soon is watched. One that is late, or of which nothing
// is known, is looked at after naps of a sixteenth of the time that it has taken.
func (e *estimate) nap(waited int64) int64 {
	now := float64(waited)
	early, late := e.mean-3*e.deviation-wakeEarly, e.mean+4*e.deviation+patience
	switch n := early - now; {
	case n >= shortest:
		return int64(n)
	case now < late:
		return 0
	}
	return int64(max(now/16, shortest))
}
