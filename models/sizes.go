package models

import "github.com/penstock/penstock/wire"

// TensorAlignment is where each tensor of a batch buffer starts: a cache line,
// and what SIMD kernels like best.
const TensorAlignment = 64

// Aligned rounds a number of bytes up to TensorAlignment.
func Aligned(n int) int { return (n + TensorAlignment - 1) &^ (TensorAlignment - 1) }

// MaxBatch is the last step of the ladder.
func (c *Card) MaxBatch() int { return c.Batches[len(c.Batches)-1] }

// Bytes is the size of one image's output, f32.
func (o *Output) Bytes() int { return 4 * o.Elements() }

// TensorBytes is the size of the buffer that holds the input tensor and all
// output tensors of the largest batch, each aligned.
func (c *Card) TensorBytes() int {
	return Aligned(c.MaxBatch()*c.Input.TensorBytes()) + c.OutputBytes()
}

// OutputBytes is the size of the buffer that holds all output tensors of the
// largest batch, each aligned.
func (c *Card) OutputBytes() int {
	total := 0
	for i := range c.Outputs {
		total += Aligned(c.MaxBatch() * c.Outputs[i].Bytes())
	}
	return total
}

// ResultBytes bounds the payload of one answer.
func (c *Card) ResultBytes() int {
	switch c.Decoder.Name {
	case "topk":
		return wire.ClassSize * c.Decoder.count("k", c.Outputs[0].Elements())
	case "boxes":
		return wire.BoxSize * c.Decoder.count("max_boxes", maxBoxes)
	}
	total := 0
	for i := range c.Outputs {
		total += c.Outputs[i].Bytes()
	}
	return total
}

// count is a whole number among the parameters, most where it is not given. A
// card that went through JSON holds it as float64.
func (d *Decoder) count(key string, most int) int {
	switch v := d.Params[key].(type) {
	case int64:
		return int(v)
	case float64:
		return int(v)
	}
	return most
}
