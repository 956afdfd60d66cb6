package manager

import (
	"errors"
	"slices"
	"time"

	"github.com/penstock/penstock/manager/aggregate"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// The reply thread of an instance. Each turn:
//
//  1. receive the slots that the process has answered, or wake
//  2. requests that a dead process had started are answered `failed`
//  3. under function.mu: end each request and make its result's datagrams; from
//     then on its slot, and so the memory of its result, may be used again
//  4. send the datagrams, release the packets
//
// It allocates nothing once its buffers have grown to what a burst takes.

// replyPatience is how long the thread sleeps at most before it looks round.
const replyPatience = int64(time.Second)

func (in *instance) reply() {
	lockDataPath() // never unlocked: the thread ends with the goroutine
	f := in.f
	t := &replyTurn{in: in, observe: f.m.metrics.of(f.name)}
	slots := make([]uint32, f.geometry.Slots)
	for !in.closed.Load() {
		n, err := in.channel.Receive(slots, shm.Now()+replyPatience)
		if errors.Is(err, shm.ErrClosed) {
			return
		}
		if err != nil {
			in.log.Error().Err(err).Msg("receive replies")
			return
		}
		t.begin()
		for _, slot := range slots[:n] {
			t.answer(slot, in.channel.Result(slot), in.channel.ResultBytes(slot))
		}
		// Only when there is no reply left: what a process finished before it died
		// counts.
		if n == 0 {
			in.failAbandoned(t)
		}
		t.finish()
	}
}

// replyTurn is what one turn of a reply thread collects.
type replyTurn struct {
	in      *instance
	observe functionMetrics
	events  aggregate.Events
	out     outbox
	stages  []stageTimes
	good    bool // one was answered well
}

// stageTimes are one answered request's, for the histograms.
type stageTimes struct {
	aggregate.Origin
	result shm.Result
}

func (t *replyTurn) begin() {
	t.events.Reset()
	t.stages = t.stages[:0]
	t.good = false
	t.in.f.mu.Lock()
}

// answer ends one request with what its process said of it, as far as that makes
// sense. mu is held.
func (t *replyTurn) answer(slot uint32, said shm.Result, payload []byte) {
	f := t.in.f
	origin, ok := f.aggregate.Origin(slot)
	if !ok || f.flights[slot].instance != t.in {
		return // withdrawn meanwhile
	}
	now := shm.Now()
	result := wire.Result{
		Status: wire.Status(said.Status), Kind: wire.Kind(said.Kind), Batch: said.Batch, ModelVersion: said.ModelVersion,
		Aggregate: time.Duration(origin.Whole - origin.FirstPiece),
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
	f.aggregate.End(now, slot, &result, payload, &t.events)
	f.flights[slot] = flight{}
	t.in.inFlight--
	t.good = t.good || result.Status == wire.StatusOK
	f.ended++
	f.results[result.Status].Add(1)
	t.out.result(origin.From, origin.RequestID, &result, payload, false)
	t.stages = append(t.stages, stageTimes{Origin: origin, result: said})
}

// finish sends what was collected, then tidies up.
func (t *replyTurn) finish() {
	f := t.in.f
	f.mu.Unlock()
	f.send(&t.out)
	sent := shm.Now()
	if t.good {
		t.in.lastGood.Store(sent)
		t.in.firstGood.CompareAndSwap(0, sent)
	}
	f.source.Release(t.events.Release)
	released := shm.Now()
	for i := range t.stages {
		s := &t.stages[i]
		t.observe.request.Observe(seconds(sent - s.FirstPiece))
		t.observe.stages[stageAggregate].Observe(seconds(s.Whole - s.FirstPiece))
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
// and what has waited past all patience. mu is held.
func (in *instance) failAbandoned(t *replyTurn) {
	if len(in.abandoned) == 0 && in.expireBefore == 0 {
		return
	}
	failed := 0
	for i := range in.f.flights {
		slot := uint32(i)
		fl := &in.f.flights[slot]
		if fl.instance != in {
			continue
		}
		stage, by := in.channel.Stage(slot)
		dead := stage == shm.StageStarted && slices.Contains(in.abandoned, by)
		if !dead && fl.published >= in.expireBefore {
			continue
		}
		if in.channel.Withdraw(slot) != nil {
			continue // its reply came after all
		}
		t.answer(slot, shm.Result{Status: uint8(wire.StatusFailed)}, nil)
		failed++
	}
	if failed > 0 {
		in.log.Warn().Int("requests", failed).Msg("answered failed: no process will answer them")
	}
	in.abandoned, in.expireBefore = in.abandoned[:0], 0
}
