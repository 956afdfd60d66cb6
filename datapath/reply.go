package datapath

import (
	"errors"
	"slices"
	"time"

	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// The reply thread of a queue. Each turn has these steps:
//
//   1. Receive the slots that the process has answered, or wake.
//   2. Answer `failed` for requests that a dead process had started.
//   3. Under the mu of the request's receiver and Port.mu: end each request. From then on its slot may be reused.
//   4. Send the answers, copy a picture if one is due (pictures.go), and release the packets. The next turn gives the
//      memory of the results back to the process.
//
// A turn without a reply instead ends the requests whose deadline has passed: their
// process is stopped, hangs, or does not exist (overdue.go).
//
// The thread allocates nothing once its buffers have grown to the size of a burst.

// run is the reply thread.
func (q *Queue) run() {
	defer lockThread()() // never unlocked: the thread ends with the goroutine
	t := &replyTurn{queue: q, port: q.port, sides: make([]replySide, len(q.port.receivers))}
	slots := make([]uint32, q.port.geometry.Slots)
	for !q.stopped.Load() {
		n, err := q.channel.Receive(slots, t.sleepUntil(shm.Now()))
		if errors.Is(err, shm.ErrClosed) {
			return
		}
		if err != nil {
			q.log.Error().Err(err).Msg("cannot receive replies")
			return
		}
		t.begin()
		t.each(slots[:n], func(slot uint32) { t.answer(slot, q.channel.Result(slot), q.channel.ResultBytes(slot)) })
		// Only when no reply is left: results that a process finished before it died
		// count.
		if n == 0 {
			t.failAbandoned()
			t.answerOverdue(shm.Now())
		} else {
			t.stalled, t.nextOverdue = false, shm.Now()+checkEvery
		}
		t.finish()
	}
}

// replyTurn holds the data of one turn of a reply thread.
type replyTurn struct {
	queue     *Queue
	port      *Port
	sides     []replySide // by receiver
	answered  []Times
	abandoned []uint32  // slots that no process will answer
	owners    []uint32  // receivers of the slots that are being answered
	overdue   []uint32  // slots whose deadline has passed
	picture   *pictures // that the thread has claimed; nil for none

	nextOverdue int64 // when the next request in flight is overdue, shm.Now; 0: none is in flight
	stalled     bool  // the thread has answered `late` since the process's last reply
}

// replySide has the data for the requests of one receiver: its source sends their
// answers and releases their packets.
type replySide struct {
	events  aggregate.Events
	answers []aggregate.Answer // to be sent; the payloads are in the memory of results
	out     outbox
}

func (t *replyTurn) begin() {
	for i := range t.sides {
		t.sides[i].events.Reset()
		t.sides[i].answers = t.sides[i].answers[:0]
	}
	t.answered = t.answered[:0]
}

// each calls do for each slot under the locks that answer needs. It goes receiver by
// receiver, so that it takes each lock once. It looks up all owners before the first
// call, because an answered slot may already belong to another request.
func (t *replyTurn) each(slots []uint32, do func(slot uint32)) {
	p := t.port
	t.owners = t.owners[:0]
	for _, slot := range slots {
		t.owners = append(t.owners, p.owners[slot].Load())
	}
	for left, i := len(slots), 0; left > 0 && i < len(p.receivers); i++ {
		held := false
		for at, slot := range slots {
			if t.owners[at] != uint32(i) {
				continue
			}
			if !held {
				p.receivers[i].mu.Lock()
				p.mu.Lock()
				held = true
			}
			do(slot)
			left--
		}
		if held {
			p.mu.Unlock()
			p.receivers[i].mu.Unlock()
		}
	}
}

// answer ends one request with the process's result, if that is plausible. The caller
// holds the mu of the slot's owner and Port.mu.
func (t *replyTurn) answer(slot uint32, reported shm.Result, payload []byte) {
	p := t.port
	owner := p.owners[slot].Load()
	a, side := p.receivers[owner].aggregate, &t.sides[owner]
	if p.flights[slot].queue != t.queue {
		return // withdrawn meanwhile
	}
	now := shm.Now()
	if a.Free(now, slot, &side.events) { // answered at its deadline
		t.land(slot)
		return
	}
	origin, ok := a.Origin(slot)
	if !ok {
		return
	}
	result := wire.Result{
		Status: wire.Status(reported.Status), Kind: wire.Kind(reported.Kind), Batch: reported.Batch, ModelVersion: reported.ModelVersion,
		Aggregate: time.Duration(origin.Complete - origin.Received),
	}
	if !plausible(&result, &reported, payload, origin.Complete, now) {
		result = wire.Result{Status: wire.StatusFailed, ModelVersion: p.version.Load(), Aggregate: result.Aggregate}
		reported = shm.Result{Status: uint8(wire.StatusFailed)}
	}
	if result.Status == wire.StatusOK || reported.Inferred != 0 {
		result.Queue = time.Duration(reported.Dispatched - origin.Complete)
		result.Gather = time.Duration(reported.Gathered - reported.Dispatched)
		result.Infer = time.Duration(reported.Inferred - reported.Gathered)
		result.Reply = time.Duration(now - reported.Inferred)
	} else {
		result.Queue = time.Duration(now - origin.Complete)
	}
	if result.ModelVersion == 0 { // its process died
		result.ModelVersion = p.version.Load()
	}
	if result.Status != wire.StatusOK {
		payload, result.Kind = nil, wire.KindNone
	}
	t.count(slot, now, &origin, &reported, result.Status) // before End: then the slot may be reused
	t.claim(slot, now, &origin, &result, payload)
	a.End(now, slot, &result, payload, &side.events)
	t.land(slot)
	side.answers = append(side.answers, aggregate.Answer{To: origin.To, RequestID: origin.RequestID, Result: result, Payload: payload})
}

// count records an answer with that status. The caller holds the locks that answer needs.
func (t *replyTurn) count(slot uint32, now int64, origin *aggregate.Origin, reported *shm.Result, status wire.Status) {
	busy := t.queue.window.Answer(t.port.table.Request(slot), *reported, now, t.port.objective)
	if status == wire.StatusOK && t.port.open > 1 {
		batch := time.Duration(reported.Inferred - reported.Dispatched)
		t.queue.pace.observe(batch, busy)
		t.port.pace.observe(batch, busy)
	}
	t.port.counters.results[status].Add(1)
	t.answered = append(t.answered, Times{
		FirstFragment: origin.FirstFragment, Received: origin.Received, Complete: origin.Complete,
		Dispatched: reported.Dispatched, Gathered: reported.Gathered, Inferred: reported.Inferred,
		Batch: reported.Batch, RequestID: origin.RequestID, Status: status,
	})
}

// land records that a slot has come back. The caller holds the locks that answer needs.
func (t *replyTurn) land(slot uint32) {
	t.port.flights[slot] = flight{}
	t.queue.inFlight--
	t.port.ended++
}

// finish sends the collected datagrams and releases the packets.
func (t *replyTurn) finish() {
	p := t.port
	for i := range t.sides {
		side, r := &t.sides[i], p.receivers[i]
		side.out.source = r.source
		for k := range side.answers {
			a := &side.answers[k]
			side.out.result(a.To, a.RequestID, &a.Result, a.Payload, false)
		}
		r.send(&side.out)
	}
	sent := shm.Now()
	t.copyPicture(sent)
	for i := range t.sides {
		if spans := t.sides[i].events.Release; len(spans) > 0 {
			p.receivers[i].source.Release(spans)
		}
	}
	released := shm.Now()
	for i := range t.answered {
		times := &t.answered[i]
		times.Sent, times.Released = sent, released
		p.observer.Answered(times)
	}
	p.counters.replied.Add(uint64(len(t.answered)))
}

// plausible reports whether a result may be true. Its status and kind must be valid, its
// times must be in order, and its payload must have the form of its kind.
func plausible(r *wire.Result, reported *shm.Result, payload []byte, complete, now int64) bool {
	switch r.Status {
	case wire.StatusLate:
		return reported.Dispatched == 0 && reported.Gathered == 0 && reported.Inferred == 0
	case wire.StatusFailed:
		if reported.Inferred == 0 && reported.Gathered == 0 && reported.Dispatched == 0 {
			return true
		}
	case wire.StatusOK:
		if r.Batch == 0 || wire.Check(r.Kind, payload) != nil {
			return false
		}
	default:
		return false
	}
	return complete <= reported.Dispatched && reported.Dispatched <= reported.Gathered &&
		reported.Gathered <= reported.Inferred && reported.Inferred <= now
}

// failAbandoned answers requests that no process will: those that a dead process had
// started, and those that have waited too long.
func (t *replyTurn) failAbandoned() {
	t.abandoned = t.queue.withdrawAbandoned(t.abandoned[:0])
	t.each(t.abandoned, func(slot uint32) { t.answer(slot, shm.Result{Status: uint8(wire.StatusFailed)}, nil) })
	if len(t.abandoned) > 0 {
		t.queue.log.Warn().Int("requests", len(t.abandoned)).Msg("answered requests as failed: no process will answer them")
	}
}

// withdrawAbandoned appends the slots that no process will answer any more to slots.
func (q *Queue) withdrawAbandoned(slots []uint32) []uint32 {
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	if len(q.abandoned) == 0 && q.expireBefore == 0 {
		return slots
	}
	for slot, fl := range q.flying {
		stage, by := q.channel.Stage(slot)
		orphan := stage == shm.StageStarted && slices.Contains(q.abandoned, by)
		if !orphan && fl.since >= q.expireBefore {
			continue
		}
		if q.channel.Withdraw(slot) != nil {
			continue // its reply has come after all
		}
		slots = append(slots, slot)
	}
	q.abandoned, q.expireBefore = q.abandoned[:0], 0
	return slots
}
