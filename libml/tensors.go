package libml

import (
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// tensors is one slot's memory for the largest batch of a card. Smaller batches
// are prefixes of each tensor.
type tensors struct {
	card *models.Card
	device.Tensors
}

// maxSizes returns the sizes of the largest batch of a card.
func maxSizes(card *models.Card) device.Sizes {
	n := card.MaxBatch()
	s := device.Sizes{Input: n * card.Input.TensorBytes()}
	for i := range card.Outputs {
		s.Outputs = append(s.Outputs, n*card.Outputs[i].Bytes())
	}
	return s
}

// newTensors lays out tensors in one buffer of Card.TensorBytes, like the CPU's
// device.
func newTensors(card *models.Card, buffer []byte) (*tensors, error) {
	sizes := maxSizes(card)
	laid, err := device.Lay(buffer, append([]int{sizes.Input}, sizes.Outputs...)...)
	if err != nil {
		return nil, err
	}
	return &tensors{card, device.Tensors{Input: laid[0], Outputs: laid[1:], Results: laid[1:]}}, nil
}

// input returns the batch tensor of n images.
func (t *tensors) input(n int) []byte { return t.Input[:n*t.card.Input.TensorBytes()] }

// outputs returns the output tensors of n images; it allocates.
func (t *tensors) outputs(n int) [][]byte {
	out := make([][]byte, len(t.Outputs))
	for i := range out {
		out[i] = t.Outputs[i][:n*t.card.Outputs[i].Bytes()]
	}
	return out
}

// image writes image i's results to dst, which has one element per output.
func (t *tensors) image(dst [][]byte, i int) {
	for o := range dst {
		size := t.card.Outputs[o].Bytes()
		dst[o] = t.Results[o][i*size : (i+1)*size]
	}
}
