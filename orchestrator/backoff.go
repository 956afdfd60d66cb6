package orchestrator

import "time"

// The backoff between generations of a place that fail early. An immediate restart of a
// process that cannot live would only take CPU time from the others. A much later
// restart would leave the place without its shadow.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
	// minLifetime is the min lifetime of a process whose end does not count as an early
	// failure.
	minLifetime = 10 * time.Second
)

// backoff counts the consecutive early failures of a place. The zero value has seen
// none.
type backoff struct {
	failures  int
	last      string // why the last one failed, early or not
	until     time.Time
	maxTooFew int     // the most groups of multiprocessors that proved to be too few
	wrong     float64 // the last share at which the model answered wrongly
}

// recordTooFew notes that a process ended because so many groups of multiprocessors are too
// few for the model. It returns false if the place has already failed on as many. The
// first time, the manager assigns more groups, and the next process need not wait.
func (b *backoff) recordTooFew(groups int, reason string) bool {
	if groups <= b.maxTooFew {
		return false
	}
	b.maxTooFew, b.last = groups, reason
	return true
}

// recordWrong notes that a process ended because its model answers wrongly at a share. It returns
// false if the last one did so at the same share, or had the whole device. Otherwise the manager
// chooses another share, and the next process need not wait.
func (b *backoff) recordWrong(percent float64, reason string) bool {
	if percent == b.wrong || percent <= 0 || percent >= 100 {
		return false
	}
	b.wrong, b.last = percent, reason
	return true
}

// ended notes that a process ended at now, after it had lived for lived.
func (b *backoff) ended(now time.Time, lived time.Duration, failed bool, reason string) {
	switch {
	case lived >= minLifetime:
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

// delay is how long the next start waits: 100 ms, doubled with each further failure, max
// 5 s.
func (b *backoff) delay() time.Duration {
	if b.failures == 0 {
		return 0
	}
	d := minBackoff
	for i := 1; i < b.failures && d < maxBackoff; i++ {
		d *= 2
	}
	return min(d, maxBackoff)
}
