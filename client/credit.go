package client

import "time"

// credit is how many more requests may be sent. Each answer says it anew, as
// of when it left the manager; requests that the manager had not seen by then
// are taken off.
//
// An answer that says 0 while nothing else is in flight would be the last word
// for ever, so after a pause one request is sent as a probe; the pauses double
// while the answers stay at 0.
type credit struct {
	more    int
	pause   time.Duration // before the next probe; 0 for the first pause
	probeAt int64         // 0 while no pause runs
	// roundTrip estimates the time that a datagram and its answer spend
	// outside the manager.
	roundTrip int64
}

// The pauses before probes: the first is shorter than a batch of most models,
// the last keeps a full manager's probes few.
const (
	firstPause = time.Millisecond
	lastPause  = 128 * time.Millisecond
)

// may reports whether a request may be sent now, with so many in flight, and
// whether it is a probe.
func (c *credit) may(now int64, inFlight int) (ok, probe bool) {
	switch {
	case c.more > 0:
		return true, false
	case inFlight > 0:
		return false, false
	case c.probeAt == 0:
		c.pause = min(max(2*c.pause, firstPause), lastPause)
		c.probeAt = now + int64(c.pause)
	}
	return now >= c.probeAt, now >= c.probeAt
}

// sent takes note of a request that may allowed.
func (c *credit) sent(probe bool) {
	c.probeAt = 0
	if !probe {
		c.more--
	}
}

// answered takes note of an answer's credit, given that the manager had not
// seen unseen of the requests in flight.
func (c *credit) answered(granted, unseen int) {
	c.more = max(granted-unseen, 0)
	c.probeAt = 0
	if granted > 0 {
		c.pause = 0
	}
}

// unanswered takes note of a request that ended without an answer: what it
// took is free again.
func (c *credit) unanswered() { c.more++ }

// traveled takes note of how long a request and its answer were outside the
// manager.
func (c *credit) traveled(nanos int64) {
	nanos = max(nanos, 0)
	if c.roundTrip == 0 {
		c.roundTrip = nanos
		return
	}
	c.roundTrip += (nanos - c.roundTrip) / 8 // RFC 6298's gain
}
