package client

import "math"

// queue holds the requests that wait for credit, in Send's order. Its wait is bounded
// by time: a request whose answer cannot come in time any more is late, and is dropped.
//
// The oldest request leaves first while it has at least half of its time left. Else the
// newest does. In an overload that lasts, the oldest would have spent its time here,
// and every answer would be too late. The newest is answered in time, and what is left
// over is dropped (adaptive LIFO: Maurer, Fail at Scale, ACM Queue 13(8), 2015).
type queue struct {
	list
	// objective is the function's, in nanoseconds; 0 until an answer tells it.
	objective int64
	// checkAt is when the next request is late or times out.
	checkAt int64
}

// push adds a request.
func (q *queue) push(r *request, roundTrip int64) {
	q.pushBack(r)
	q.checkAt = min(q.checkAt, q.dropAt(r, roundTrip), r.timeoutAt)
}

// setObjective notes what an answer says; 0 is an older manager, which does not say.
func (q *queue) setObjective(nanos int64) {
	if nanos == 0 || nanos == q.objective {
		return
	}
	q.objective = nanos
	q.checkAt = 0
}

// lifetime is how long after RequestOptions.Intended an answer to r is still worth having,
// 0 if that is not known.
func (q *queue) lifetime(r *request) int64 {
	if r.options.Deadline > 0 {
		return int64(r.options.Deadline)
	}
	return q.objective
}

// never is later than all times.
const never = math.MaxInt64

// dropAt is when r is late: only the round trip of its datagrams fits in then. It is
// also when the manager must have answered. Half of the lifetime at most is kept for the
// round trip: an estimate that is too high is corrected only by requests that are sent.
func (q *queue) dropAt(r *request, roundTrip int64) int64 {
	lifetime := q.lifetime(r)
	if lifetime == 0 {
		return never
	}
	return r.options.Intended + lifetime - min(roundTrip, lifetime/2)
}

// next is the request whose turn it is, nil if none waits.
func (q *queue) next(now int64) *request {
	oldest := q.head
	if oldest == nil {
		return nil
	}
	if lifetime := q.lifetime(oldest); lifetime > 0 && now-oldest.options.Intended > lifetime/2 {
		return q.tail
	}
	return oldest
}
