package loop

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// early is a framework that calls third in the third batch, which has written its outputs by then.
type early struct {
	*functiontest.Fake
	third func() error
}

func (f early) InferBatch(slot, n int) error {
	err := f.Fake.InferBatch(slot, n)
	if _, slots := f.History(); len(slots) != 3 || err != nil {
		return err
	}
	done := make(chan struct{})
	if err := f.GPU.Queue(f.Env.BatchStream(slot), func() { close(done) }); err != nil {
		return err
	}
	<-done
	return f.third()
}

// earlyLoop returns a loop with the requests 0 and 1 in flight, each a batch. Request 2 waits.
func earlyLoop(t *testing.T, card *models.Card, third func(h *harness) error) (*harness, *Loop) {
	t.Helper()
	h := newGPUHarness(t, card)
	h.streams, h.rule = 2, batching.Config{Fixed: 1}
	f := h.Fake()
	l := h.loop(f)
	h.framework = early{f, func() error { return third(h) }}
	for slot := range uint32(2) {
		h.Publish(slot, small(h, slot), nil)
		l.beginOne(t)
	}
	h.Publish(2, small(h, 2), nil)
	return h, l
}

// small returns a picture with few rows above the threshold of rowsCard.
func small(h *harness, slot uint32) []byte {
	picture := make([]byte, h.Card.Input.WireBytes())
	picture[0] = byte(slot)
	return picture
}

// The next batch begins before the requests of the one that has ended are answered, in its place. Their answers have its
// results.
func TestBeginBeforeAnswers(t *testing.T) {
	for _, c := range []struct {
		name string
		card *models.Card
	}{{"all outputs", functiontest.Card()}, {"selected rows", rowsCard()}} {
		t.Run(c.name, func(t *testing.T) {
			h, l := earlyLoop(t, c.card, func(h *harness) error {
				h.Silent()
				return nil
			})
			for slot := range uint32(3) {
				must.OK(t, l.finishNext())
				if got := h.Replies(1); !slices.Equal(got, []uint32{slot}) {
					t.Fatalf("answered %v, want %d", got, slot)
				}
				if slot == 0 && l.flights.count != 2 {
					t.Fatalf("%d batches in flight after the first, want 2", l.flights.count)
				}
			}
			if _, slots := h.framework.(early).History(); !slices.Equal(slots, []int{0, 1, 0}) {
				t.Errorf("batches ran in slots %v, want the first place twice", slots)
			}

			// Alone, each gets the same answer.
			for slot := range uint32(3) {
				got := slices.Clone(h.Payload(slot))
				h.Publish(slot, small(h, slot), nil)
				must.OK(t, l.turn())
				if h.Replies(1); h.Status(slot) != wire.StatusOK || len(got) == 0 || !bytes.Equal(got, h.Payload(slot)) {
					t.Errorf("request %d is answered %x (%v), want %x", slot, got, h.Status(slot), h.Payload(slot))
				}
			}
		})
	}
}

func TestEarlyAllocations(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	h.streams, h.rule = 2, batching.Config{Fixed: 1}
	l := h.loop(h.Fake())
	picture, slots := h.Picture(1), make([]uint32, h.Geometry.Slots)
	next := uint32(0)
	publish := func() {
		h.Publish(next, picture, nil)
		next = (next + 1) % h.Geometry.Slots
	}
	for range 2 {
		publish()
		l.beginOne(t)
	}
	if n := functiontest.Allocations(100, func() {
		publish()
		if h.finish(l, slots); l.flights.count != 2 {
			t.Fatalf("%d batches in flight, want 2", l.flights.count)
		}
	}); n != 0 {
		t.Errorf("%v allocations in a batch, want none", n)
	}
}

// The requests of a batch that has ended are answered at once if the next step of the loop is no batch.
func TestAnswersFirst(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(h *harness, l *Loop)
	}{
		{"the ring must be released", func(h *harness, _ *Loop) { h.ending.Store(true) }},
		{"a move is ordered", func(_ *harness, l *Loop) { l.Move(2) }},
		{"there are more batch sizes", func(h *harness, l *Loop) { l.Extend(h.newRule(h.Card.Batches)) }},
		{"the other batch needs the device", func(_ *harness, l *Loop) {
			l.Queue.HalfFull, l.Queue.State = false, l.Queue.Rule.Warm(l.Queue.Rule.Start(), 1, time.Hour)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, l := earlyLoop(t, functiontest.Card(), func(*harness) error { return functiontest.ErrFake })
			c.prepare(h, l)
			must.OK(t, l.finish())
			h.Answered(h.Replies(1)[0], small(h, 0))
			if l.flights.count != 1 {
				t.Errorf("%d batches in flight, want 1", l.flights.count)
			}
		})
	}
}

// If the device is lost while the next batch begins, the batch that has ended is answered.
func TestLostBeforeAnswers(t *testing.T) {
	h, l := earlyLoop(t, functiontest.Card(), func(*harness) error { return device.ErrLost })
	err := l.finishNext()
	if !IsLost(err) || l.abandon(err) != err {
		t.Fatalf("the loop ends with %v, want a lost device", err)
	}
	h.Replies(3)
	h.Answered(0, small(h, 0))
	for _, slot := range []uint32{1, 2} {
		if got := h.Status(slot); got != wire.StatusFailed {
			t.Errorf("request %d is %v, want failed", slot, got)
		}
	}
}
