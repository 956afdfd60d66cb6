package datapath

import "time"

// pace is how fast a queue's process answers, as measured from its answers. It covers what the process shares its device
// with, so it is right for unequal devices and for unequal shares. Port.mu guards it.
type pace struct {
	batch time.Duration // from the dispatch of a request's batch to its results
	each  time.Duration // per request, while requests wait
}

// paceRequests is how many requests a mean remembers: a few batches.
const paceRequests = 32

// observe takes in an answered request. Its batch took that long; each is its part of the time in which batches ran.
func (m *pace) observe(batch, each time.Duration) {
	if m.batch == 0 {
		*m = pace{batch, each}
		return
	}
	m.batch += (batch - m.batch) / paceRequests
	m.each += (each - m.each) / paceRequests
}

// answersIn estimates in how long another request would be answered. A process that has answered none is like the others.
// The caller holds Port.mu.
func (q *Queue) answersIn() time.Duration {
	m := &q.pace
	if m.batch == 0 {
		m = &q.port.pace
	}
	return m.batch + time.Duration(q.inFlight)*m.each
}
