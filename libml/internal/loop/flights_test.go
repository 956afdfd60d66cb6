package loop

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestFlights compares flights with a list of the batches' slots.
func TestFlights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, 3).Draw(t, "count")
		f := newFlights(count, 1)
		var slots []int
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				if f.full() {
					continue
				}
				added := f.add()
				added.Demoted = rapid.Bool().Draw(t, "demoted")
				if slices.Contains(slots, added.slot) || added.slot < f.base || added.slot >= f.base+count {
					t.Fatalf("batch begins in slot %d; in flight are %v, base %d", added.slot, slots, f.base)
				}
				slots = append(slots, added.slot)
			case 2:
				if len(slots) == 0 {
					continue
				}
				if rapid.Bool().Draw(t, "oldest") {
					f.remove(f.oldest())
					slots = slots[1:]
				} else {
					f.remove(f.newest())
					slots = slots[:len(slots)-1]
				}
			case 3:
				if f.moved() { // one move at a time
					f.base = 10 - f.base
				}
			}

			if f.count != len(slots) || f.full() != (len(slots) == count) {
				t.Fatalf("%d in flight, full %v; want %v of %d", f.count, f.full(), slots, count)
			}
			inside := true
			for i, slot := range slots {
				flight := f.at(i)
				if flight.slot != slot {
					t.Fatalf("batch %d in slot %d, want %d", i, flight.slot, slot)
				}
				inside = inside && slot >= f.base && slot < f.base+count
			}
			if f.moved() != inside {
				t.Fatalf("slots %v, base %d: moved %v", slots, f.base, f.moved())
			}
		}
	})
}
