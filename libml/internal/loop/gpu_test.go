package loop

import (
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
)

// On a GPU the host sees only the begin and the end of a batch. The times between are
// computed back from the device's measurements.
func TestGPUStages(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	l := h.loop(h.Fake())
	const late = 20 * time.Millisecond
	h.GPU.Late.Store(int64(late))
	h.Publish(1, h.Picture(1), nil)
	must.OK(t, l.turn())
	r := h.Channel.Result(h.Replies(1)[0])
	whole := h.Table.Request(1).Complete
	if !(whole <= r.Dispatched && r.Dispatched <= r.Gathered && r.Gathered+int64(late) <= r.Inferred && r.Inferred <= l.Ring.LastBatchEnd()) {
		t.Errorf("whole %d, %+v, batch end %d: not in order, or inference took no %v", whole, r, l.Ring.LastBatchEnd(), late)
	}
}

// With two batches configured, the second begins when half of a batch waits.
func TestSecondBatchHalfFull(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	h.streams = 2
	l := h.loop(h.Fake())
	l.Queue.State.Limit = 8
	release := h.Hold()
	h.Publish(0, h.Picture(0), nil)
	l.take()
	l.pick()
	l.begin()
	for slot := uint32(1); slot < 4; slot++ {
		h.Publish(slot, h.Picture(byte(slot)), nil)
	}
	if l.take(); l.mayBegin() {
		t.Error("a batch of 3 where 8 may be begins next to another")
	}
	h.Publish(4, h.Picture(4), nil)
	if l.await() {
		t.Error("a batch is done that was held")
	}
	if !l.mayBegin() {
		t.Error("a batch of 4 where 8 may be does not begin next to another")
	}
	// It has waited for the first batch since it arrived, not since the batch before
	// that ended.
	least := time.Duration(shm.Now() - h.Table.Request(1).Complete)
	if l.pick(); l.choice.Waited < least {
		t.Errorf("waited %v for the running batch, want at least %v", l.choice.Waited, least)
	}
	l.begin()
	release()
	for range 2 {
		if !l.await() {
			t.Error("a batch is not done that was released")
		}
		must.OK(t, l.finish())
	}
	for _, slot := range h.Replies(5) {
		h.Answered(slot, h.Picture(byte(slot)))
	}
}

// If libml decides, a second batch begins when the first is about to end. libml knows
// how long batches of that size take, and how long a gather takes.
func TestSecondBatchNearEnd(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	l := h.loop(h.Fake())
	const takes, lead = 20 * time.Minute, time.Minute
	l.Queue.State, l.Queue.Lead = l.Queue.Rule.Warm(l.Queue.Rule.Start(), 1, takes), lead
	release := h.Hold()
	h.Publish(0, h.Picture(0), nil)
	l.take()
	l.pick()
	l.begin()
	h.Publish(1, h.Picture(1), nil)
	if l.take(); l.mayBegin() {
		t.Error("a batch begins next to one that has just begun")
	}
	const answering = 2 * time.Minute
	l.Queue.Running[0].Dispatched -= int64(takes - answering - lead)
	if l.mayBegin() {
		t.Error("a batch begins while the one before still uses the device")
	}
	l.Queue.Answering = answering
	if !l.mayBegin() || l.await() {
		t.Fatal("no batch may begin next to another that is about to end")
	}
	l.pick()
	l.begin()
	release()
	must.OK(t, l.finish())
	if l.Queue.Lead == lead {
		t.Error("a batch that ran alone does not change the lead")
	}
	if l.Queue.Answering == answering {
		t.Error("a batch does not change the time of its answers")
	}
	before := l.Queue.Lead
	must.OK(t, l.finish())
	if l.Queue.Lead == before {
		t.Error("a batch next to another does not change the lead")
	}
	h.Replies(2)
}
