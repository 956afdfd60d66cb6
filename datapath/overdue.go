package datapath

import (
	"time"

	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// If no process answers a request, the reply thread answers `late` at its deadline. The
// slot stays in use, and counts for the client's credit, until the process returns it or
// is dead: the process may still read the request's memory or write its result.
//
//	deadline          + overdueGrace            process returns the slot, or dies
//	   │  a reply wins   │  late to the client         │  slot is free
//	───┴─────────────────┴─────────────────────────────┴───>
//
// The reply thread checks for such requests only in a turn without a reply. While replies
// come, the process is well, and its own answer is on the way.

const (
	// overdueGrace is how long after its deadline a process may still answer a request:
	// a healthy process is late by less. Together with the way back to the client it is
	// below 50 ms, after which a client may rely on an answer.
	overdueGrace = int64(25 * time.Millisecond)
	// checkEvery is how often the reply thread checks while a request is in flight. A
	// request that comes later may be due earlier.
	checkEvery = int64(20 * time.Millisecond)
	// replyPatience is how long the reply thread sleeps while nothing is in flight. The
	// control loop wakes it when a request is (Queue.Rouse).
	replyPatience = int64(time.Second)
)

// sleepUntil returns when the reply thread checks next if no reply comes before.
func (t *replyTurn) sleepUntil(now int64) int64 {
	if t.nextOverdue == 0 {
		t.queue.resting.Store(true)
		return now + replyPatience
	}
	t.queue.resting.Store(false)
	return max(min(now+checkEvery, t.nextOverdue), now+int64(time.Millisecond))
}

// answerOverdue answers `late` for requests in flight whose deadline has passed.
func (t *replyTurn) answerOverdue(now int64) {
	t.overdue, t.nextOverdue = t.queue.overdue(now, t.overdue[:0])
	if len(t.overdue) == 0 {
		return
	}

	before := len(t.answered)
	t.each(t.overdue, t.answerLate)
	if n := len(t.answered) - before; n > 0 && !t.stalled {
		t.stalled = true
		t.queue.log.Warn().Int("requests", n).Msg("process does not answer; its requests end as late at their deadline")
	}
}

// overdue appends the slots whose requests are due for `late`. It returns when the next
// one will be; 0 if none is in flight.
func (q *Queue) overdue(now int64, slots []uint32) (_ []uint32, next int64) {
	p := q.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.inFlight == 0 {
		return slots, 0
	}

	next = now + replyPatience
	for slot, fl := range q.flying {
		if fl.answered {
			continue
		}
		at := p.table.Request(slot).Deadline + overdueGrace
		if at <= now {
			slots = append(slots, slot)
		} else {
			next = min(next, at)
		}
	}
	return slots, next
}

// answerLate answers in place of a process. The caller holds the mu of the slot's owner
// and Port.mu.
func (t *replyTurn) answerLate(slot uint32) {
	p := t.port
	owner := p.owners[slot].Load()
	a, side := p.receivers[owner].aggregate, &t.sides[owner]
	origin, ok := a.Origin(slot)
	if fl := &p.flights[slot]; !ok || fl.queue != t.queue {
		return
	}

	now := shm.Now()
	result := wire.Result{
		Status: wire.StatusLate, ModelVersion: p.version.Load(),
		Aggregate: time.Duration(origin.Complete - origin.Received), Queue: time.Duration(now - origin.Complete),
	}
	t.count(slot, now, &origin, &shm.Result{Status: uint8(wire.StatusLate)}, wire.StatusLate)
	a.AnswerEarly(now, slot, &result)
	p.flights[slot].answered = true
	side.answers = append(side.answers, aggregate.Answer{To: origin.To, RequestID: origin.RequestID, Result: result})
}
