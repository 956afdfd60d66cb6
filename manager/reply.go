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

// The reply thread of an instance. Each turn:
//
//  1. receive the slots that the process has answered, or wake
//  2. requests that a dead process had started are answered `failed`
//  3. under the mu of the request's receiver and function.mu: end each request and
//     make its result's datagrams; from then on its slot, and so the memory of its
//     result, may be used again
//  4. send the datagrams, release the packets
//
// A turn without a reply instead ends the requests whose deadline has passed: their
// process is stopped, hangs, or is not there (overdue.go).
//
// It allocates nothing once its buffers have grown to what a burst takes.

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
		// Only when there is no reply left: what a process finished before it died
		// counts.
		if n == 0 {
			t.failAbandoned()
			t.answerOverdue(shm.Now())
		} else {
			t.stalled, t.nextOverdue = false, shm.Now()+lookEvery
		}
		t.finish()
	}
}

// replyTurn is what one turn of a reply thread collects.
type replyTurn struct {
	in      *instance
	observe functionMetrics
	sides   []replySide // by receiver
	stages  []stageTimes
	dead    []uint32 // slots that no process will answer
	owners  []uint32 // receivers of the slots that are being answered
	overdue []uint32 // slots whose deadline has passed
	good    bool     // one was answered well

	nextOverdue int64 // when a request in flight is overdue next, shm.Now; 0: none is in flight
	stalled     bool  // requests were answered early since the last reply
}

// replySide is what belongs to the requests of one receiver: they are released and
// answered by its source.
type replySide struct {
	events aggregate.Events
	out    outbox
}

// stageTimes are one answered request's, for the histograms.
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

// each does something with each slot, under the locks that answer wants: one receiver's
// slots after the other's, so that each lock is taken once. Who has a slot is looked up
// before any is answered: from then on it may be another's.
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

// answer ends one request with what its process said of it, as far as that makes
// sense. The mu of the slot's owner and function.mu are held.
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
	if result.ModelVersion == 0 { // a process died with it
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

// land notes that a slot has come back. The locks of answer are held.
func (t *replyTurn) land(slot uint32) {
	t.in.f.flights[slot] = flight{}
	t.in.inFlight--
	t.in.f.ended++
}

// finish sends what was collected, then tidies up.
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

// sane reports whether a result can be what an honest process says: a status that
// is one of its, a kind that is one, times in their order, a payload of whole
// entries.
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

// entryBytes is the size of one entry of a payload, 0 for a kind that has none.
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

// failAbandoned answers what no process will: what one that died had started,
// and what has waited past all patience.
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
			continue // its reply came after all
		}
		dead = append(dead, slot)
	}
	in.abandoned, in.expireBefore = in.abandoned[:0], 0
	return dead
}
