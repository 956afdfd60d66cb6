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
// Active: on every GPU, for every model, as graph and node by node. There is no setting.
//
// If a graph writes to memory outside its lane and its buffers, the lanes are not
// independent. Then each batch of the model waits for the one before it (order).

// lanes is how many batches can be in flight together.
const lanes = 2

// laneOf returns the lane of a slot.
func laneOf(slot int) int { return slot % lanes }

// openLanes makes the pools of the lanes. They take no memory yet.
func (g *gpu) openLanes() (err error) {
	if g.order.last, err = g.context.NewEvent(false); err != nil {
		return err
	}
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
	if g.order.last != (cuda.Event{}) {
		errs = append(errs, g.order.last.Destroy())
	}
	return errors.Join(errs...)
}

// order makes a model's batches run one after the other, on the device.
//
// Active: once a graph of the model was captured that writes outside its lane.
type order struct {
	exclusive bool
	last      cuda.Event  // records the end of the last batch
	stream    cuda.Stream // of the last batch
}

// launchInOrder queues the batch behind the one before it, of any slot. A batch within the
// function's guarantee may so wait for a demoted one.
func (g *gpu) launchInOrder(x *cuda.Executable, stream cuda.Stream) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.order.stream != stream {
		if err := stream.Wait(g.order.last); err != nil {
			return err
		}
	}
	if err := x.Launch(stream); err != nil {
		return err
	}
	g.order.stream = stream
	return g.order.last.Record(stream)
}

// writesOutside reports whether one of the writes is not within one of the ranges.
func writesOutside(ranges, writes []cuda.Range) bool {
	return slices.ContainsFunc(writes, func(w cuda.Range) bool {
		return !slices.ContainsFunc(ranges, func(r cuda.Range) bool { return r.Holds(w) })
	})
}
