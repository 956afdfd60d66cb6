package models

import "slices"

// TensorAlignment is the alignment of each tensor in a batch buffer: a cache
// line, which also suits SIMD code best.
const TensorAlignment = 64

// Aligned rounds a number of bytes up to TensorAlignment.
func Aligned(n int) int { return (n + TensorAlignment - 1) &^ (TensorAlignment - 1) }

// autoBatches are the batch sizes of a card that names none.
var autoBatches = []int{1, 2, 4, 8, 16, 32}

// BatchesOn returns the batch sizes on a device with that much memory, or on a CPU if it is 0. Sizes that the card names
// are the same on each device.
func (c *Card) BatchesOn(gpuBytes int64) []int {
	if !c.AutoBatches {
		return c.Batches
	}
	const (
		// On a CPU a picture takes as long in a batch as alone, so larger batches save only what each batch costs.
		maxOnCPU, cpuBytes = 16, 8 << 20
		partsOfGPU         = 256 // for one function: four slots have a batch each
	)
	largest, bytes := autoBatches[len(autoBatches)-1], gpuBytes/partsOfGPU
	switch {
	case gpuBytes == 0:
		largest, bytes = maxOnCPU, cpuBytes
	case slices.ContainsFunc(slices.Concat(c.InputTensors(), c.OutputTensors()), interleaved):
		largest = 1 // only a CPU copies such tensors
	}
	return c.batchesWithin(largest, bytes)
}

// batchesWithin returns the first of c.Batches, and the others up to a size whose tensors fit.
func (c *Card) batchesWithin(largest int, bytes int64) []int {
	image := c.Input.TensorBytes()
	if len(c.Inputs) > 0 {
		image = tensorsBytes(c.Inputs)
	}
	image += tensorsBytes(c.Outputs) + 2*c.StateBytes()
	n := 1
	for n < len(c.Batches) && c.Batches[n] <= largest && int64(c.Batches[n])*int64(image) <= bytes {
		n++
	}
	return c.Batches[:n]
}

// tensorsBytes is the size of tensors of one image.
func tensorsBytes(tensors []Tensor) (sum int) {
	for i := range tensors {
		sum += tensors[i].Bytes()
	}
	return sum
}

// interleaved reports whether a model's tensor has not one image after the other.
func interleaved(t Tensor) bool { return t.BatchAxis > 0 }

// On returns the card for a device, with the sizes of BatchesOn.
func (c *Card) On(gpuBytes int64) *Card {
	on := *c
	if on.Batches = c.BatchesOn(gpuBytes); len(c.Inputs) > 0 {
		on.Input = on.pack()
	}
	return &on
}

// MaxBatch returns the largest batch size.
func (c *Card) MaxBatch() int { return c.Batches[len(c.Batches)-1] }

// TensorBytes returns the size of the buffer for the input tensor and all
// output tensors of the largest batch, each aligned.
func (c *Card) TensorBytes() int {
	return Aligned(c.Input.BatchBytes(c.MaxBatch())) + c.OutputBytes()
}

// OutputBytes returns the size of the buffer for all output tensors of the
// largest batch, each aligned.
func (c *Card) OutputBytes() int {
	total := 0
	for i := range c.Outputs {
		total += Aligned(c.MaxBatch() * c.Outputs[i].Bytes())
	}
	return total
}

// ResultBytes returns the max size of the payload of one answer.
func (c *Card) ResultBytes() int {
	f, err := c.Family()
	if err != nil { // not a card of ReadCard
		return F32.Bytes() * c.elements()
	}
	return f.ResultBytes()
}

// elements returns the number of values of all outputs for one image.
func (c *Card) elements() (n int) {
	for i := range c.Outputs {
		n += c.Outputs[i].Elements()
	}
	return n
}
