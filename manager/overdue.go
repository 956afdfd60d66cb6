package manager

import (
	"time"

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
// The reply thread looks for such requests only in a turn without a reply. While replies
// come, the process is well, and its own answer is on the way.

const (
	// overdueGrace is how long after its deadline a process may still answer a request:
	// a healthy process is late by less. Together with the way back to the client it is
	// below 50 ms, after which a client may rely on an answer.
	overdueGrace = int64(25 * time.Millisecond)
	// lookEvery is how often the reply thread looks while a request is in flight. A
	// request that comes later may be due earlier.
	lookEvery = int64(20 * time.Millisecond)
	// replyPatience is how long the reply thread sleeps while nothing is in flight. The
	// control loop wakes it when a request is (instance.rouse).
	replyPatience = int64(time.Second)
)

// sleepUntil returns when the reply thread looks next if no reply comes before.
func (t *replyTurn) sleepUntil(now int64) int64 {
	if t.nextOverdue == 0 {
		t.in.resting.Store(true)
		return now + replyPatience
	}
	t.in.resting.Store(false)
	return max(min(now+lookEvery, t.nextOverdue), now+int64(time.Millisecond))
}

// rouse wakes a reply thread that rests although a request is in flight. The control
// loop calls it at each tick, because publishing a request must not cost a system call.
func (in *instance) rouse() {
	if !in.resting.Load() {
		return
	}
	in.f.mu.Lock()
	flying := in.inFlight > 0
	in.f.mu.Unlock()
	if flying {
		in.channel.Wake()
	}
}

// answerOverdue answers `late` for requests in flight whose deadline has passed.
func (t *replyTurn) answerOverdue(now int64) {
	t.overdue, t.nextOverdue = t.in.overdue(now, t.overdue[:0])
	if len(t.overdue) == 0 {
		return
	}

	before := len(t.stages)
	t.each(t.overdue, t.answerLate)
	if n := len(t.stages) - before; n > 0 && !t.stalled {
		t.stalled = true
		t.in.log.Warn().Int("requests", n).Msg("process has not answered; its requests end late at their deadline")
	}
}

// overdue appends the slots whose requests are due for `late`. It returns when the next
// one will be; 0 if none is in flight. A node that runs late requests has no deadline to
// keep.
func (in *instance) overdue(now int64, slots []uint32) (_ []uint32, next int64) {
	f := in.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if in.inFlight == 0 || f.m.cfg.Lab.RunLate {
		return slots, 0
	}

	next = now + replyPatience
	for i := range f.flights {
		if fl := &f.flights[i]; fl.instance != in || fl.answered {
			continue
		}
		at := f.table.Request(uint32(i)).Deadline + overdueGrace
		if at <= now {
			slots = append(slots, uint32(i))
		} else {
			next = min(next, at)
		}
	}
	return slots, next
}

// answerLate answers in place of a process. The caller holds the mu of the slot's owner
// and function.mu.
func (t *replyTurn) answerLate(slot uint32) {
	f := t.in.f
	owner := f.owners[slot].Load()
	a, side := f.receivers[owner].aggregate, &t.sides[owner]
	origin, ok := a.Origin(slot)
	if fl := &f.flights[slot]; !ok || fl.instance != t.in {
		return
	}

	now := shm.Now()
	result := wire.Result{
		Status: wire.StatusLate, ModelVersion: f.version.Load(),
		Aggregate: time.Duration(origin.Whole - origin.Received), Queue: time.Duration(now - origin.Whole),
	}
	said := shm.Result{Status: uint8(wire.StatusLate)}
	t.in.tally.answer(f.table.Request(slot), said, now, lateFactor*f.slo)
	a.AnswerEarly(now, slot, &result)
	f.flights[slot].answered = true
	f.results[wire.StatusLate].Add(1)
	side.out.result(origin.From, origin.RequestID, &result, nil, false)
	t.stages = append(t.stages, stageTimes{Origin: origin, result: said})
}
