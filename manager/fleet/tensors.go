package fleet

import (
	"fmt"

	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// tensors are an instance's input and output buffers, by the card that they are for. All processes
// that run the card share them (paper 3.4).
type tensors map[*models.Card]batchMemory

type batchMemory struct {
	*shm.Region
	card *models.Card // on the device
}

// make allocates the buffers of a card's largest batch, unless they exist. The device must be known.
func (t tensors) make(card *models.Card, of gslice.ID, d *sharing.Device) error {
	if t[card].Region != nil {
		return nil
	}
	on := card.On(d.MemoryBytes())
	region, err := shm.Create(fmt.Sprintf("penstock-%s-%d-tensors", of.IF, of.Instance), tensorBytes(on, d.GPU != nil), shm.Options{Writable: true})
	if err != nil {
		return fmt.Errorf("make tensors of %s: %w", of.IF, err)
	}
	t[card] = batchMemory{region, on}
	return nil
}

// keep frees the buffers of all other cards.
func (t tensors) keep(used func(*models.Card) bool) {
	for card, region := range t {
		if !used(card) {
			region.Close()
			delete(t, card)
		}
	}
}

// outputSlots is how many batches' outputs a GPU writes at once: two batches may be in
// flight (libml/device.Slots).
const outputSlots = 2

// tensorBytes is the size of the memory that the processes of a card share. On a CPU that
// is the batch tensor and its outputs. A GPU has its own batch tensor and copies back only
// the outputs.
func tensorBytes(card *models.Card, gpu bool) int {
	if gpu {
		return outputSlots * card.OutputBytes()
	}
	return card.TensorBytes()
}
