//go:build cgo

package onnx

import (
	"slices"

	"github.com/penstock/penstock/cuda"
)

// States are in pinned host memory, because each is that of another stream's last request. The batch's stream copies
// them to the device before the model runs, and back afterwards.
//
// Active: on every GPU, for cards with state.

// transfer copies a state of a batch between host and device.
type transfer struct {
	to, from cuda.Pointer
	bytes    int
}

// hostStates moves the states among a batch's tensors to the device. They are the last inputs and outputs. It returns
// the copies to make before and after each run. The batches of a lane have the same memory on the device.
func (s *size) hostStates(lane int, ins, outs []place) (before, after []transfer, err error) {
	count := len(s.g.env.Card.State)
	first, last := ins[len(ins)-count:], outs[len(outs)-count:]
	if s.states[lane] == nil {
		for _, p := range slices.Concat(first, last) {
			s.states[lane] = append(s.states[lane], s.weights.allocate(p.bytes))
		}
		if err := poolRefusal(s.weights, nil); err != nil {
			s.states[lane] = nil
			return nil, nil, err
		}
	}
	for i := range count {
		in, out := s.states[lane][i], s.states[lane][count+i]
		before = append(before, transfer{in, first[i].at, first[i].bytes})
		after = append(after, transfer{last[i].at, out, last[i].bytes})
		first[i].at, last[i].at = in, out
	}
	return before, after, nil
}

// transferAll queues copies.
func transferAll(stream cuda.Stream, copies []transfer) error {
	for _, c := range copies {
		if err := stream.Copy(c.to, c.from, c.bytes); err != nil {
			return err
		}
	}
	return nil
}
