package fleet

import (
	"fmt"

	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// tensors are an instance's input and output buffers, by the card and the device that they are for. All processes
// that run the card there share them (paper 3.4).
type tensors map[pair.Run]batchMemory

type batchMemory struct {
	*shm.Region
	card *models.Card // on the device
}

// makeTensors allocates the buffers of a card's largest batch on a device, unless they exist. Their size depends on the
// device: until it is known there are none.
func (in *instance) makeTensors(run pair.Run) error {
	d := &in.fleet.device(run.Device).Device
	if !d.Known || in.tensors[run].Region != nil {
		return nil
	}
	on := run.Card.On(d.MemoryBytes())
	region, err := shm.Create(fmt.Sprintf("penstock-%s-%d-tensors", in.id.IF, in.id.Instance), tensorBytes(on, d.GPU != nil), shm.Options{Writable: true})
	if err != nil {
		return fmt.Errorf("make tensors of %s: %w", in.id.IF, err)
	}
	in.tensors[run] = batchMemory{region, on}
	return nil
}

// keep frees all other buffers.
func (t tensors) keep(used func(pair.Run) bool) {
	for run, region := range t {
		if !used(run) {
			region.Close()
			delete(t, run)
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
