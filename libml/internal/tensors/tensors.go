// Package tensors lays out the input and outputs of a model in memory.
package tensors

import (
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// Tensors is one slot's memory for the largest batch of a card. Smaller batches
// are prefixes of each tensor.
type Tensors struct {
	Card *models.Card
	device.Tensors
	// Before and After are the states before and after a run, in the order of Card.State: parts of States.
	Before, After [][]byte
}

// WithStates returns tensors with the card's states.
func WithStates(card *models.Card, laid device.Tensors) *Tensors {
	t := &Tensors{Card: card, Tensors: laid}
	rest := laid.States
	for i := range card.State {
		bytes := models.Aligned(card.MaxBatch() * card.State[i].Output.Bytes())
		t.Before, t.After, rest = append(t.Before, rest[:bytes]), append(t.After, rest[bytes:2*bytes]), rest[2*bytes:]
	}
	return t
}

// MaxSizes returns the sizes of the largest batch of a card.
func MaxSizes(card *models.Card) device.Sizes {
	n := card.MaxBatch()
	s := device.Sizes{Input: card.Input.BatchBytes(n)}
	for i := range card.State {
		s.States += 2 * models.Aligned(n*card.State[i].Output.Bytes())
	}
	for i := range card.Outputs {
		s.Outputs = append(s.Outputs, n*card.Outputs[i].Bytes())
	}
	return s
}

// New lays out tensors in one buffer of Card.TensorBytes, like the CPU's
// device.
func New(card *models.Card, buffer []byte) (*Tensors, error) {
	laid, err := device.LayHost(buffer, MaxSizes(card))
	if err != nil {
		return nil, err
	}
	return WithStates(card, laid), nil
}

// InputOf returns the memory of the inputs of n images, for the gather.
func (t *Tensors) InputOf(n int) device.Buffer { return t.Input.Slice(0, t.Card.Input.BatchBytes(n)) }

// InputsOf returns the inputs of a ConfigureBatch of n images; it allocates.
func (t *Tensors) InputsOf(n int) (inputs []device.Buffer) {
	for _, p := range t.Card.Input.Places() {
		inputs = append(inputs, t.Input.Slice(p.At, p.At+n*p.Bytes))
	}
	return append(inputs, t.states(t.Before, n)...)
}

// OutputsOf returns the output tensors of n images; it allocates.
func (t *Tensors) OutputsOf(n int) []device.Buffer {
	out := make([]device.Buffer, len(t.Outputs))
	for i := range out {
		out[i] = t.Outputs[i].Slice(0, n*t.Card.Outputs[i].Bytes())
	}
	return append(out, t.states(t.After, n)...)
}

// states returns the states of n images.
func (t *Tensors) states(memory [][]byte, n int) (buffers []device.Buffer) {
	for i, m := range memory {
		buffers = append(buffers, device.HostBuffer(m[:n*t.Card.State[i].Output.Bytes()]))
	}
	return buffers
}

// Image writes image i's results to dst, which has one element per output, and their bitmaps to selected, which has as
// many if there are any.
func (t *Tensors) Image(dst, selected [][]byte, i int) {
	for o := range dst {
		size := t.Card.Outputs[o].Bytes()
		dst[o] = t.Results[o][i*size : (i+1)*size]
	}
	for o, bitmaps := range t.Selected {
		size := len(bitmaps) / t.Card.MaxBatch()
		selected[o] = bitmaps[i*size : (i+1)*size]
	}
}
