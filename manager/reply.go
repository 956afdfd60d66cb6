package manager

import (
	"errors"
	"slices"
	"time"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/manager/aggregate"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// The reply thread of an instance. Each turn has these steps:
//
//   1. Receive the slots that the process has answered, or wake.
//   2. Answer `failed` for requests that a dead process had started.
//   3. Under the mu of the request's receiver and function.mu: end each request and
//      append its result's datagrams. From then on its slot, and with it the memory of
//      its result, may be reused.
//   4. Send the datagrams, and release the packets.
//
// A turn without a reply instead ends the requests whose deadline has passed: their
// process is stopped, hangs, or does not exist (overdue.go).
//
// The thread allocates nothing once its buffers have grown to the size of a burst.

func (in *instance) reply() {
	defer lockDataPath()() // never unlocked: the thread ends with the goroutine
	f := in.f
	t := &replyTurn{in: in, observe: f.m.metrics.of(f.name), sides: make([]replySide, len(f.receivers))}
	slots := make([]uint32, f.geometry.Slots)
	for !in.closed.Load() {
		n, err := in.channel.Receive(slots, t.sleepUntil(shm.Now()))
		if errors.Is(err, shm.ErrClosed) {
			return
		}
		if err != nil {
			in.log.Error().Err(err).Msg("receive replies")
			return
		}
		t.begin()
		t.each(slots[:n], func(slot uint32) { t.answer(slot, in.channel.Result(slot), in.channel.ResultBytes(slot)) })
		// Only when no reply is left: results that a process finished before it died
		// count.
		if n == 0 {
			t.failAbandoned()
			t.answerOverdue(shm.Now())
		} else {
			t.stalled, t.nextOverdue = false, shm.Now()+lookEvery
		}
		t.finish()
	}
}

// replyTurn holds the data of one turn of a reply thread.
type replyTurn struct {
	in      *instance
	observe functionMetrics
	sides   []replySide // by receiver
	stages  []stageTimes
	dead    []uint32 // slots that no process will answer
	owners  []uint32 // receivers of the slots that are being answered
	overdue []uint32 // slots whose deadline has passed
	good    bool     // a request was answered well

	nextOverdue int64 // when the next request in flight is overdue, shm.Now; 0: none is in flight
	stalled     bool  // the thread has answered requests since the last reply
}

// replySide has the data for the requests of one receiver: its source sends their
// answers and releases their packets.
type replySide struct {
	events aggregate.Events
	out    outbox
}

// stageTimes has the times of one answered request, for the histograms.
type stageTimes struct {
	aggregate.Origin
	result shm.Result
}

func (t *replyTurn) begin() {
	for i := range t.sides {
		t.sides[i].events.Reset()
	}
	t.stages = t.stages[:0]
	t.good = false
}

// each calls do for each slot under the locks that answer needs. It goes receiver by
// receiver, so that it takes each lock once. It looks up all owners before the first
// call, because an answered slot may already belong to another request.
func (t *replyTurn) each(slots []uint32, do func(slot uint32)) {
	f := t.in.f
	t.owners = t.owners[:0]
	for _, slot := range slots {
		t.owners = append(t.owners, f.owners[slot].Load())
	}
	for left, i := len(slots), 0; left > 0 && i < len(f.receivers); i++ {
		held := false
		for at, slot := range slots {
			if t.owners[at] != uint32(i) {
				continue
			}
			if !held {
				f.receivers[i].mu.Lock()
				f.mu.Lock()
				held = true
			}
			do(slot)
			left--
		}
		if held {
			f.mu.Unlock()
			f.receivers[i].mu.Unlock()
		}
	}
}

// answer ends one request with the process's result, if that is plausible. The caller
// holds the mu of the slot's owner and function.mu.
func (t *replyTurn) answer(slot uint32, said shm.Result, payload []byte) {
	f := t.in.f
	owner := f.owners[slot].Load()
	a, side := f.receivers[owner].aggregate, &t.sides[owner]
	if f.flights[slot].instance != t.in {
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
		Status: wire.Status(said.Status), Kind: wire.Kind(said.Kind), Batch: said.Batch, ModelVersion: said.ModelVersion,
		Aggregate: time.Duration(origin.Whole - origin.Received),
	}
	if !sane(&result, &said, len(payload), origin.Whole, now) {
		result = wire.Result{Status: wire.StatusFailed, ModelVersion: f.version.Load(), Aggregate: result.Aggregate}
		said = shm.Result{Status: uint8(wire.StatusFailed)}
	}
	if result.Status == wire.StatusOK || said.Inferred != 0 {
		result.Queue = time.Duration(said.Dispatched - origin.Whole)
		result.Gather = time.Duration(said.Gathered - said.Dispatched)
		result.Infer = time.Duration(said.Inferred - said.Gathered)
		result.Reply = time.Duration(now - said.Inferred)
	} else {
		result.Queue = time.Duration(now - origin.Whole)
	}
	if result.ModelVersion == 0 { // its process died
		result.ModelVersion = f.version.Load()
	}
	if result.Status != wire.StatusOK {
		payload, result.Kind = nil, wire.KindNone
	}
	t.in.tally.answer(f.table.Request(slot), said, now, lateFactor*f.slo)
	status := result.Status
	a.End(now, slot, &result, payload, &side.events)
	t.land(slot)
	t.good = t.good || status == wire.StatusOK
	f.results[status].Add(1)
	side.out.result(origin.From, origin.RequestID, &result, payload, false)
	t.stages = append(t.stages, stageTimes{Origin: origin, result: said})
}

// land records that a slot has come back. The caller holds the locks that answer needs.
func (t *replyTurn) land(slot uint32) {
	t.in.f.flights[slot] = flight{}
	t.in.inFlight--
	t.in.f.ended++
}

// finish sends the collected datagrams and resets the turn.
func (t *replyTurn) finish() {
	f := t.in.f
	for i := range t.sides {
		f.receivers[i].send(&t.sides[i].out)
	}
	sent := shm.Now()
	if t.good {
		t.in.lastGood.Store(sent)
		t.in.answeredAt.Store(int64(runclock.Now()))
		t.in.firstGood.CompareAndSwap(0, sent)
	}
	for i := range t.sides {
		if spans := t.sides[i].events.Release; len(spans) > 0 {
			f.receivers[i].source.Release(spans)
		}
	}
	released := shm.Now()
	for i := range t.stages {
		s := &t.stages[i]
		t.observe.request.Observe(seconds(sent - s.FirstPiece))
		t.observe.stages[stageSocket].Observe(seconds(s.Received - s.FirstPiece))
		t.observe.stages[stageAggregate].Observe(seconds(s.Whole - s.Received))
		if s.result.Inferred == 0 {
			continue
		}
		t.observe.stages[stageQueue].Observe(seconds(s.result.Dispatched - s.Whole))
		t.observe.stages[stageGather].Observe(seconds(s.result.Gathered - s.result.Dispatched))
		t.observe.stages[stageInfer].Observe(seconds(s.result.Inferred - s.result.Gathered))
		t.observe.stages[stageReply].Observe(seconds(sent - s.result.Inferred))
		t.observe.stages[stageRelease].Observe(seconds(released - sent))
		t.observe.batch.Observe(float64(s.result.Batch))
	}
	f.replied.Add(uint64(len(t.stages)))
}

func seconds(nanos int64) float64 { return float64(nanos) / 1e9 }

// sane reports whether a result is plausible. Its status and kind must be valid, its
// times must be in order, and its payload must consist of complete entries.
func sane(r *wire.Result, said *shm.Result, payloadBytes int, whole, now int64) bool {
	switch r.Status {
	case wire.StatusLate:
		return said.Dispatched == 0 && said.Gathered == 0 && said.Inferred == 0
	case wire.StatusFailed:
		if said.Inferred == 0 && said.Gathered == 0 && said.Dispatched == 0 {
			return true
		}
	case wire.StatusOK:
		entry := entryBytes(r.Kind)
		if entry == 0 || payloadBytes%entry != 0 || r.Batch == 0 {
			return false
		}
	default:
		return false
	}
	return whole <= said.Dispatched && said.Dispatched <= said.Gathered && said.Gathered <= said.Inferred && said.Inferred <= now
}

// entryBytes is the size of one entry of a payload, 0 for a kind without entries.
func entryBytes(k wire.Kind) int {
	switch k {
	case wire.KindTopK:
		return wire.ClassSize
	case wire.KindBoxes:
		return wire.BoxSize
	case wire.KindRaw:
		return 4 // f32
	}
	return 0
}

// failAbandoned answers requests that no process will: those that a dead process had
// started, and those that have waited too long.
func (t *replyTurn) failAbandoned() {
	in := t.in
	t.dead = in.withdrawAbandoned(t.dead[:0])
	t.each(t.dead, func(slot uint32) { t.answer(slot, shm.Result{Status: uint8(wire.StatusFailed)}, nil) })
	if len(t.dead) > 0 {
		in.log.Warn().Int("requests", len(t.dead)).Msg("answered failed: no process will answer them")
	}
}

// withdrawAbandoned appends the slots that no process will answer any more to dead.
func (in *instance) withdrawAbandoned(dead []uint32) []uint32 {
	in.f.mu.Lock()
	defer in.f.mu.Unlock()
	if len(in.abandoned) == 0 && in.expireBefore == 0 {
		return dead
	}
	for i := range in.f.flights {
		slot := uint32(i)
		fl := &in.f.flights[slot]
		if fl.instance != in {
			continue
		}
		stage, by := in.channel.Stage(slot)
		orphan := stage == shm.StageStarted && slices.Contains(in.abandoned, by)
		if !orphan && fl.published >= in.expireBefore {
			continue
		}
		if in.channel.Withdraw(slot) != nil {
			continue // its reply has come after all
		}
		dead = append(dead, slot)
	}
	in.abandoned, in.expireBefore = in.abandoned[:0], 0
	return dead
}
