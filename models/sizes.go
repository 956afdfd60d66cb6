package models

import "github.com/penstock/penstock/wire"

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
	switch c.Decoder.Name {
	case "topk":
		return wire.ClassSize * c.Decoder.count("k", c.Outputs[0].Elements())
	case "boxes":
		return wire.BoxSize * c.Decoder.count("max_boxes", maxBoxes)
	case "raw":
	default:
		if f, err := c.Family(); err == nil { // ReadCard checked it
			return f.ResultBytes()
		}
	}
	total := 0
	for i := range c.Outputs {
		total += F32.Bytes() * c.Outputs[i].Elements()
	}
	return total
}

// count returns an integer parameter, or most if the card does not set it. A
// card that went through JSON has it as float64.
func (d *Decoder) count(key string, most int) int {
	switch v := d.Params[key].(type) {
	case int64:
		return int(v)
	case float64:
		return int(v)
	}
	return most
}
