package partition

import (
	"slices"
	"testing"
)

func TestAllocatorDivide(t *testing.T) {
	four := slices.Repeat([]int{8}, 4)
	var a Allocator
	divide := func(want ...int) {
		t.Helper()
		orders, err := a.Divide(four, []Claim{{ID: id("a"), Percent: 100, Ordered: []int{0}}})
		if err != nil || !slices.Equal(orders[0].Now, want) {
			t.Errorf("ordered %+v (%v), want %v", orders, err, want)
		}
		if a.Stale() {
			t.Error("stale after a division")
		}
	}
	removed := process("removed", 1)
	a.Publish(1, map[Process][]int{removed: {2, 3}})
	if !a.Stale() {
		t.Error("a published state does not call for a division")
	}
	divide(0) // the removed function's process may be on two groups
	a.Publish(2, nil)
	a.Observe(1, map[Process]Observed{removed: {Groups: []int{2, 3}}})
	divide(0)
	a.Observe(2, map[Process]Observed{removed: {Ended: true}})
	if !a.Stale() {
		t.Error("a report does not call for a division")
	}
	divide(0, 1, 2, 3)
	if a.Invalidate(); !a.Stale() {
		t.Error("a changed claim does not call for a division")
	}
}

func TestAllocatorSettled(t *testing.T) {
	var a Allocator
	p := process("a", 1)
	a.Publish(1, map[Process][]int{p: {1}})
	if a.Settled(p, []int{1}) || a.On(p) != nil {
		t.Error("settled before it was observed")
	}
	a.Observe(1, map[Process]Observed{p: {Groups: []int{1}}})
	if !a.Settled(p, []int{1}) || !slices.Equal(a.On(p), []int{1}) {
		t.Errorf("on %v, want it settled on group 1", a.On(p))
	}
}
