package client

import "time"

// credit is how many more requests may be sent. Each answer sets it, as of the
// time when it left the manager. Requests that the manager had not seen by then
// are subtracted.
//
// An answer with credit 0 while nothing else is in flight would block the
// client forever. Therefore, after a pause, the client sends one request as a
// probe. The pauses double while the answers stay at 0.
type credit struct {
	more    int
	pause   time.Duration // before the next probe; 0 before the first pause
	probeAt int64         // 0 if there is no pause now
	// roundTrip estimates the time, in nanoseconds, that a datagram and its
	// answer spend outside the manager.
	roundTrip int64
}

// The pauses before probes. The first is shorter than a batch of most models.
// The last limits the number of probes to a full manager.
const (
	minPause = time.Millisecond
	maxPause = 128 * time.Millisecond
)

// allow reports whether a request may be sent now, with inFlight requests in
// flight, and whether it is a probe.
func (c *credit) allow(now int64, inFlight int) (ok, probe bool) {
	switch {
	case c.more > 0:
		return true, false
	case inFlight > 0:
		return false, false
	case c.probeAt == 0:
		c.pause = min(max(2*c.pause, minPause), maxPause)
		c.probeAt = now + int64(c.pause)
	}
	return now >= c.probeAt, now >= c.probeAt
}

// recordSent records the sending of a request that allow permitted.
func (c *credit) recordSent(probe bool) {
	c.probeAt = 0
	if !probe {
		c.more--
	}
}

// recordAnswer records an answer's credit, if the manager had not seen unseen of
// the requests in flight.
func (c *credit) recordAnswer(granted, unseen int) {
	c.more = max(granted-unseen, 0)
	c.probeAt = 0
	if granted > 0 {
		c.pause = 0
	}
}

// recordUnanswered records the end of a request without an answer: it returns its
// credit.
func (c *credit) recordUnanswered() { c.more++ }

// recordRoundTrip records how long a request and its answer were outside the manager.
func (c *credit) recordRoundTrip(nanos int64) {
	nanos = max(nanos, 0)
	if c.roundTrip == 0 {
		c.roundTrip = nanos
		return
	}
	c.roundTrip += (nanos - c.roundTrip) / 8 // the gain of RFC 6298
}
