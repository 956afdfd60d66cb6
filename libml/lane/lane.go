// Package lane shares a worker's memory and time between models, as Salus shares a GPU. The
// sections are those of "Salus: Fine-Grained GPU Sharing Primitives for Deep Learning
// Applications" (Yu and Chowdhury, MLSys 2020). The package is pure: no clock, no I/O.
//
// A lane is scratch memory in which one batch runs at a time. Its members take turns, so the
// lane needs the scratch memory of its largest member only. Batches of different lanes run at
// once. Assign chooses the lane of a model, a Policy the lane's next batch.
//
// Weights are not in a lane. Package residency decides whose weights are on the GPU, within
// Terms.RoomBytes.
package lane

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrMemory means that a model fits in no lane.
var ErrMemory = errors.New("not enough memory")

// Capacity is what a worker may use.
type Capacity struct {
	// MemoryBytes is the GPU memory of the worker. FixedBytes of it belong to no model.
	MemoryBytes, FixedBytes int64
	// Lanes is the max number of lanes, at least 1.
	Lanes int
}

// Model is what one model needs, in bytes of GPU memory.
type Model struct {
	// FixedBytes are its sessions and graphs. They stay as long as it is a member.
	FixedBytes int64
	// ScratchBytes hold what its largest batch computes, from the batch's input on.
	ScratchBytes int64
	// WeightsBytes must be on the GPU while a batch of it runs.
	WeightsBytes int64
}

// Lane has the models that take turns in it. One without members needs no memory.
type Lane struct{ Members []Model }

// scratchBytes is the paper's L: the lane's size.
func (l Lane) scratchBytes() (largest int64) {
	for _, m := range l.Members {
		largest = max(largest, m.ScratchBytes)
	}
	return largest
}

// Terms are the terms of the safety condition (section 3.3.2).
//
//	fixed memory + Σ lanes (largest scratch + largest weights) ≤ capacity
//
// In the paper the weights of all models stay on the GPU and are part of the fixed memory.
// Here one model per lane can always be loaded, and the others share what is left.
type Terms struct {
	CapacityBytes int64
	// FixedBytes are those of the worker and of all members.
	FixedBytes int64
	// ScratchBytes and WeightsBytes are sums over the lanes of the largest of each lane.
	ScratchBytes, WeightsBytes int64
}

// TermsOf returns the terms of a worker with these lanes.
func TermsOf(c Capacity, lanes []Lane) Terms {
	t := Terms{CapacityBytes: c.MemoryBytes, FixedBytes: c.FixedBytes}
	for _, l := range lanes {
		var weights int64
		for _, m := range l.Members {
			t.FixedBytes += m.FixedBytes
			weights = max(weights, m.WeightsBytes)
		}
		t.ScratchBytes += l.scratchBytes()
		t.WeightsBytes += weights
	}
	return t
}

// NeedBytes is the left side of the condition.
func (t Terms) NeedBytes() int64 { return t.FixedBytes + t.ScratchBytes + t.WeightsBytes }

// Safe reports whether the condition holds.
func (t Terms) Safe() bool { return t.NeedBytes() <= t.CapacityBytes }

// RoomBytes is the memory for the weights of all models. It is at least WeightsBytes if the
// condition holds.
func (t Terms) RoomBytes() int64 { return max(0, t.CapacityBytes-t.FixedBytes-t.ScratchBytes) }

// String shows the terms in MiB. Needs are rounded up and the capacity is rounded down, so
// the figures never look as if a refused model would fit.
func (t Terms) String() string {
	fixed, scratch, weights := ceilMiB(t.FixedBytes), ceilMiB(t.ScratchBytes), ceilMiB(t.WeightsBytes)
	return fmt.Sprintf("fixed %d + scratch %d + weights %d = %d MiB, capacity %d MiB",
		fixed, scratch, weights, fixed+scratch+weights, t.CapacityBytes/mib)
}

// Assign chooses the lane of a new model by Algorithm 1 of the paper:
//
//  1. Open a lane if one more is allowed (lines 2 to 5). A lane without members counts as
//     not opened.
//  2. Else take the lane with the smallest scratch memory that suffices (lines 6 to 10).
//     Among equals take the one with the fewest members.
//  3. Else enlarge a lane, the smallest first (lines 11 to 16).
//
// Each choice keeps the safety condition; in step 2 the paper does not check it, although the
// fixed memory grows. lane is an index of lanes, or len(lanes) for a new one. The caller adds
// the model to its members.
//
// The error wraps ErrMemory, and shows the terms of the choice that needs the least memory.
func Assign(c Capacity, lanes []Lane, m Model) (lane int, opened bool, err error) {
	sizes := []int64{c.MemoryBytes, c.FixedBytes, m.FixedBytes, m.ScratchBytes, m.WeightsBytes}
	if c.Lanes < 1 || slices.Min(sizes) < 0 || slices.Max(sizes) > maxBytes {
		return 0, false, fmt.Errorf("assign lane: invalid sizes: worker %+v, model %+v", c, m)
	}
	smallest := Terms{FixedBytes: math.MaxInt64}
	try := func(index int) bool {
		t := termsWith(c, lanes, index, m)
		if t.NeedBytes() < smallest.NeedBytes() {
			smallest = t
		}
		return t.Safe()
	}

	fresh, used := divide(lanes)
	if len(used) < c.Lanes && try(fresh) {
		return fresh, true, nil
	}
	for _, enough := range []bool{true, false} {
		for _, i := range used {
			if (lanes[i].scratchBytes() >= m.ScratchBytes) == enough && try(i) {
				return i, false, nil
			}
		}
	}
	return 0, false, fmt.Errorf("assign lane: %w: %v", ErrMemory, smallest)
}

// divide returns the index that a new lane gets, and the indices of lanes with members, the
// smallest lane first.
func divide(lanes []Lane) (fresh int, used []int) {
	fresh = len(lanes)
	for i, l := range lanes {
		if len(l.Members) > 0 {
			used = append(used, i)
		} else {
			fresh = min(fresh, i)
		}
	}
	slices.SortStableFunc(used, func(a, b int) int {
		return cmp.Or(
			cmp.Compare(lanes[a].scratchBytes(), lanes[b].scratchBytes()),
			cmp.Compare(len(lanes[a].Members), len(lanes[b].Members)))
	})
	return fresh, used
}

// termsWith returns the terms after a model was added to a lane.
func termsWith(c Capacity, lanes []Lane, index int, m Model) Terms {
	with := slices.Clone(lanes)
	if index == len(with) {
		with = append(with, Lane{})
	}
	with[index].Members = append(slices.Clip(with[index].Members), m)
	return TermsOf(c, with)
}

const (
	mib      = 1 << 20
	maxBytes = 1 << 50 // so that sums do not overflow
)

func ceilMiB(bytes int64) int64 { return bytes/mib + min(1, bytes%mib) }
