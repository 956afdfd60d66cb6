//go:build cgo

package onnx

import (
	"errors"
	"slices"

	"github.com/penstock/penstock/cuda"
)

// Lanes let two batches of a model run at once over one set of weights. A captured graph
// keeps its addresses, so two batches in flight need separate scratch memory. Slots 0 and 2
// use the pool of one lane, and slots 1 and 3 that of the other: libml never has both slots
// of a lane in flight. A second lane therefore costs the scratch memory of a batch, and no
// second session.
//
// Active: on every GPU, for every model, as graph and node by node. There is no setting. A
// graph that writes to memory outside its lane and its buffers is refused (examine).

// lanes is how many batches can be in flight together.
const lanes = 2

// laneOf returns the lane of a slot.
func laneOf(slot int) int { return slot % lanes }

// openLanes makes the pools of the lanes. They take no memory yet.
func (g *gpu) openLanes() (err error) {
	for i := range g.scratch {
		if g.scratch[i], err = newPool(g.context.Device()); err != nil {
			return err
		}
	}
	return nil
}

func (g *gpu) closeLanes() error {
	var errs []error
	for i := range g.scratch {
		errs = append(errs, g.scratch[i].close())
		g.scratch[i] = nil
	}
	return errors.Join(errs...)
}

// writesOutside reports whether one of the writes is not within one of the ranges.
func writesOutside(ranges, writes []cuda.Range) bool {
	return slices.ContainsFunc(writes, func(w cuda.Range) bool {
		return !slices.ContainsFunc(ranges, func(r cuda.Range) bool { return r.Holds(w) })
	})
}
