package loop

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
)

// A loop whose requests wait for a larger batch sleeps until their delay, or for the maximum time.
func TestFixedSizeSleep(t *testing.T) {
	const delay = 10 * time.Minute
	h := newHarness(t, functiontest.Card())
	h.rule = batching.Config{Fixed: 8, Delay: delay}
	f := h.Fake()
	l := h.loop(f)
	began := shm.Now()
	for slot := range uint32(2) {
		h.Publish(slot, h.Picture(byte(slot)), nil)
	}
	if l.take(); l.mayBegin() {
		t.Error("a batch of 2 begins at once")
	}
	if until := l.waitUntil(); until < began+int64(maxWait) {
		t.Errorf("it checks again %v after the first request, want %v or more", time.Duration(until-began), maxWait)
	}
	h.Publish(2, h.Picture(2), func(r *shm.Request, _ []shm.Fragment) { r.Complete -= int64(delay) })
	l.take()
	if until, due := l.waitUntil(), h.Table.Request(2).Complete+int64(delay); until != due {
		t.Errorf("it checks again %v after the delay of the oldest request", time.Duration(until-due))
	}
	if !l.mayBegin() {
		t.Fatal("a batch does not begin after its delay")
	}
	must.OK(t, l.turn())
	for _, slot := range h.Replies(3) {
		h.Answered(slot, h.Picture(byte(slot)))
	}
	if sizes, _ := f.History(); !slices.Equal(sizes, []int{4}) {
		t.Errorf("ran batches of %v, want one of 4, padded", sizes)
	}
}

// A batch is full if it has as many requests as the rule and the order allow.
func TestFullBatch(t *testing.T) {
	for _, c := range []struct {
		limit             float64
		ordered, requests int
		want              bool
	}{{1, 0, 2, true}, {8, 0, 2, false}, {8, 2, 2, true}, {4, 0, 4, true}} {
		h := newGPUHarness(t, functiontest.Card())
		h.share.MaxBatch = c.ordered
		l := h.loop(h.Fake())
		l.Queue.State.Limit = c.limit
		l.Queue.Expected = func(int) time.Duration { return time.Microsecond }
		for slot := range uint32(c.requests) {
			h.Publish(slot, h.Picture(byte(slot)), nil)
		}
		l.beginOne(t)
		if f := l.flights.oldest(); f.full != c.want {
			t.Errorf("limit %v, order %d: a batch of %d is full: %v, want %v", c.limit, c.ordered, len(f.batch), f.full, c.want)
		}
		must.OK(t, l.finish())
	}
}
