package loop

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
)

// While a process compares sizes that it adds, the loop lets it run no more than one batch for that between two batches of
// requests.
func TestCompareBetweenBatches(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	l := h.loop(f)
	l.Queue.Rule = h.newRule([]int{1})
	l.Queue.State = l.Queue.Rule.Start()
	const batches = 9
	compared := 0
	h.compare = func(slot int, ladder []int) (bool, error) {
		if slot != l.flights.free() || !slices.Equal(ladder, h.Card.Batches) {
			t.Errorf("compares sizes %v in slot %d", ladder, slot)
		}
		compared++
		return compared == batches, nil
	}
	l.Extend(h.newRule(h.Card.Batches))
	l.announced = true
	for slot := range uint32(16) {
		h.Publish(slot, h.Picture(byte(slot)), nil)
	}
	for l.larger.Load() != nil {
		before := compared
		if must.OK(t, l.step()); compared > before+1 {
			t.Errorf("a step compared %d batches", compared-before)
		}
	}
	if got := l.Queue.Rule.Size(l.Queue.State); got < 2 {
		t.Errorf("size %d, want 2 on trial, or more", got)
	}
	if got := l.Queue.Rule.Ladder(); compared != batches || !slices.Equal(got, h.Card.Batches) {
		t.Errorf("after %d batches the rule has the sizes %v, want %v after %d", compared, got, h.Card.Batches, batches)
	}
	if ran, _ := f.History(); len(ran) == 0 {
		t.Error("no batch of requests ran meanwhile")
	}
	for l.flights.full() {
		must.OK(t, l.finish())
	}
	h.compare = func(int, []int) (bool, error) { return false, device.ErrLost }
	l.Extend(h.newRule(h.Card.Batches))
	if err := l.extend(); !IsLost(err) {
		t.Errorf("a lost device gives %v", err)
	}
}
