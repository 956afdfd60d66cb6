package models

// TensorAlignment is the alignment of each tensor in a batch buffer: a cache
// line, which also suits SIMD code best.
const TensorAlignment = 64

// Aligned rounds a number of bytes up to TensorAlignment.
func Aligned(n int) int { return (n + TensorAlignment - 1) &^ (TensorAlignment - 1) }

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
