package libml

import "github.com/penstock/penstock/models"

// tensors lays the batch tensor and the output tensors of the largest batch out
// in one buffer. Smaller batches are prefixes of each. The buffer is made once
// by the manager and shared by active and shadow (paper 3.4); whoever holds the
// ring writes it.
type tensors struct {
	card *models.Card
	in   []byte
	outs [][]byte
}

func newTensors(card *models.Card, buffer []byte) *tensors {
	n := card.MaxBatch()
	take := func(size int) []byte {
		b := buffer[:size:size]
		buffer = buffer[models.Aligned(size):]
		return b
	}
	t := &tensors{card: card, in: take(n * card.Input.TensorBytes())}
	for i := range card.Outputs {
		t.outs = append(t.outs, take(n*card.Outputs[i].Bytes()))
	}
	return t
}

// input is the batch tensor of n images.
func (t *tensors) input(n int) []byte { return t.in[:n*t.card.Input.TensorBytes()] }

// outputs are the output tensors of n images; it allocates.
func (t *tensors) outputs(n int) [][]byte {
	out := make([][]byte, len(t.outs))
	for i := range out {
		out[i] = t.outs[i][:n*t.card.Outputs[i].Bytes()]
	}
	return out
}

// image writes image i's outputs to dst, which has one element an output.
func (t *tensors) image(dst [][]byte, i int) {
	for o := range dst {
		size := t.card.Outputs[o].Bytes()
		dst[o] = t.outs[o][i*size : (i+1)*size]
	}
}
