package loop

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
)

// With at most one batch in flight the loop moves between two batches. If work was waiting, the
// ring was idle from the end of the last batch to the begin of the next.
func TestMoveIdle(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	h.streams = 1
	f := h.Fake()
	l := h.loop(f)
	l.served = true
	h.Publish(1, h.Picture(1), nil)
	must.OK(t, l.turn())
	h.Replies(1)
	for _, c := range []struct {
		name   string
		before bool // a request is pending before the move
	}{{"work waited", true}, {"no work waited", false}} {
		t.Run(c.name, func(t *testing.T) {
			base := device.Slots/2 - l.flights.base
			settled := l.Move(base)
			handovers := l.figures.handovers.count
			if c.before {
				h.Publish(2, h.Picture(2), nil)
			}
			l.take()
			l.startMove()
			if l.flights.base != base {
				t.Fatal("the loop did not move")
			}
			if !c.before {
				h.Publish(2, h.Picture(2), nil)
			}
			must.OK(t, l.turn())
			h.Answered(h.Replies(1)[0], h.Picture(2))
			r := l.figures.published.Load()
			if r == nil || r.count != handovers+1 || (r.idleNanos >= 0) != c.before {
				t.Errorf("report is %+v, want one move more", r)
			}
			select {
			case <-settled:
			default:
				t.Error("the mover was not notified")
			}
			if _, slots := f.History(); slots[len(slots)-1]/2 != base/2 {
				t.Errorf("the batch ran in slot %d, want %d or the next", slots[len(slots)-1], base)
			}
		})
	}
}

// If requests are pending and nothing is in flight, one more batch begins in the old place, and the
// loop moves next to it.
func TestMoveNextToBatch(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	l := h.loop(f)
	l.served = true
	base := device.Slots/2 - l.flights.base
	begin := func() {
		t.Helper()
		if l.take(); !l.mayBegin() {
			t.Fatal("no batch may begin")
		}
		l.pick()
		must.OK(t, l.begin())
	}
	release := h.Hold()
	settled := l.Move(base)
	h.Publish(1, h.Picture(1), nil)
	l.take()
	if l.startMove(); l.flights.base == base {
		t.Fatal("the loop moved, and left the device without work")
	}
	begin()
	l.startMove()
	h.Publish(2, h.Picture(2), nil)
	begin()
	select {
	case <-settled:
		t.Error("the loop gave up the old place while a batch runs there")
	default:
	}
	release()
	for l.flights.count > 0 {
		must.OK(t, l.finish())
	}
	for _, slot := range h.Replies(2) {
		h.Answered(slot, h.Picture(byte(slot)))
	}
	if _, slots := f.History(); !slices.Equal(slots, []int{0, 3}) {
		t.Errorf("batches ran in slots %v, want one here and one in the other lane there", slots)
	}
	if r := l.figures.published.Load(); r == nil || r.idleNanos > 0 {
		t.Errorf("report is %+v, want no pause", r)
	}
	select {
	case <-settled:
	default:
		t.Error("the mover was not notified")
	}
}
