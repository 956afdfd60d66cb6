package client

import "math"

// queue holds the requests that wait for credit, in the order of Send. Time bounds their
// wait: a request that can no longer be answered in time is late, and is dropped.
//
// The oldest request is sent first while it has at least half of its time left. Otherwise the
// newest is. In a lasting overload, the oldest would have spent its time in the queue, and
// every answer would be too late. The newest is answered in time, and the rest is dropped
// (adaptive LIFO: Maurer, Fail at Scale, ACM Queue 13(8), 2015).
type queue struct {
	list
	// objective is the function's, in nanoseconds; 0 until an answer contains it.
	objective int64
	// checkAt is when the next request becomes late or times out.
	checkAt int64
}

// push adds a request.
func (q *queue) push(r *request, roundTrip int64) {
	q.pushBack(r)
	q.checkAt = min(q.checkAt, q.dropAt(r, roundTrip), r.timeoutAt)
}

// setObjective records an answer's objective; 0 is from an older manager, which does not send
// it.
func (q *queue) setObjective(nanos int64) {
	if nanos == 0 || nanos == q.objective {
		return
	}
	q.objective = nanos
	q.checkAt = 0
}

// lifetime returns how long after r.intended an answer to r is still useful, 0
// if that is not known.
func (q *queue) lifetime(r *request) int64 {
	if r.options.Deadline > 0 {
		return int64(r.options.Deadline)
	}
	return q.objective
}

// never is later than any time.
const never = math.MaxInt64

// dropAt returns when r becomes late: the time left is then only the round trip of its
// datagrams. The manager must also have answered by then. The round trip gets at most half of
// the lifetime, because only requests that are sent can correct an estimate that is too high.
func (q *queue) dropAt(r *request, roundTrip int64) int64 {
	lifetime := q.lifetime(r)
	if lifetime == 0 {
		return never
	}
	return r.intended + lifetime - min(roundTrip, lifetime/2)
}

// next returns the request to send next, nil if none waits.
func (q *queue) next(now int64) *request {
	oldest := q.head
	if oldest == nil {
		return nil
	}
	if lifetime := q.lifetime(oldest); lifetime > 0 && now-oldest.intended > lifetime/2 {
		return q.tail
	}
	return oldest
}
