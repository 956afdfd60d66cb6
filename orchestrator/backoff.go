package orchestrator

import "time"

// Backoff between the generations of a place that fail early: an immediate restart
// of what cannot live would only take CPU from the others, and one much later
// would leave a place without its shadow.
const (
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 5 * time.Second
	// goodLife is how long a process has to live for its end to be no early failure.
	goodLife = 10 * time.Second
)

// backoff counts the early failures of a place, one after the other. The zero
// value has seen none.
type backoff struct {
	failures int
	last     string // why the last one failed, early or not
	until    time.Time
	tooFew   int // the most groups of multiprocessors that a process ended for as too few
}

// outgrew notes an end on so many groups of multiprocessors, too few for the model. It
// reports false where the place has failed on as many before: the first time the manager
// gives it more of them, and the next process need not wait.
func (b *backoff) outgrew(groups int, reason string) bool {
	if groups <= b.tooFew {
		return false
	}
	b.tooFew, b.last = groups, reason
	return true
}

// ended notes an end at now after a life of lived.
func (b *backoff) ended(now time.Time, lived time.Duration, failed bool, reason string) {
	switch {
	case lived >= goodLife:
		*b = backoff{}
		if failed {
			b.last = reason
		}
	case failed:
		b.failures++
		b.last = reason
		b.until = now.Add(b.delay())
	}
}

// delay is how long the next start waits: 100 ms, doubled with each further
// failure, 5 s at most.
func (b *backoff) delay() time.Duration {
	if b.failures == 0 {
		return 0
	}
	d := backoffFirst
	for i := 1; i < b.failures && d < backoffMost; i++ {
		d *= 2
	}
	return min(d, backoffMost)
}
