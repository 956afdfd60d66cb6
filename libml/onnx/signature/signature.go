// Package signature describes the inputs and outputs that a model declares, and compares them
// with the model's card. The framework onnx does this for every model, on all devices.
package signature

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/models"
)

// Tensor is an input or output as the model declares it.
type Tensor struct {
	Name string `json:"name"`
	// Type is a models.DType, or ONNX Runtime's name of another type.
	Type string `json:"type"`
	// Dims has -1 for a dynamic dimension. It is empty if the model declares no shape.
	Dims []int64 `json:"dims"`
}

func (t Tensor) String() string {
	if len(t.Dims) == 0 {
		return t.Type + " of an open shape"
	}
	return t.Type + " " + shape(t.Dims)
}

// shape returns dimensions as text, with n for a dynamic one.
func shape(dims []int64) string {
	s := make([]string, len(dims))
	for i, d := range dims {
		s[i] = "n"
		if d >= 0 {
			s[i] = strconv.FormatInt(d, 10)
		}
	}
	return "[" + strings.Join(s, ", ") + "]"
}

// Check returns an error if a model with these inputs and outputs does not fit its card. The
// error names both.
func Check(card *models.Card, inputs, outputs []Tensor) error {
	if len(inputs) != 1 {
		return fmt.Errorf("model takes %d inputs (%s), want one of %s, because a request is one picture", len(inputs), describe(inputs), inputTypes)
	}
	if t := inputs[0]; !slices.Contains([]string{string(models.U8), string(models.F16), string(models.F32)}, t.Type) {
		return fmt.Errorf("input %q is %s in the model, want %s; put a Cast in front of it", t.Name, t, inputTypes)
	}
	in := &card.Input
	want := Tensor{Name: in.Name, Type: string(in.TensorType), Dims: append([]int64{-1}, in.Shape(1)[1:]...)}
	input, err := findTensor("input", card, want, inputs, "input.name", "input.size")
	if err == nil {
		err = checkFixed("input", card, input)
	}
	if err != nil {
		return err
	}
	for i := range card.Outputs {
		o := &card.Outputs[i]
		want, key := Tensor{Name: o.Name, Type: string(o.Type), Dims: append([]int64{-1}, o.Shape...)}, fmt.Sprintf("outputs[%d].", i)
		output, err := findTensor("output", card, want, outputs, key+"name", key+"shape")
		if err == nil {
			err = cmp.Or(checkBatchAxis(output, input), checkFixed("output", card, output))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findTensor finds the tensor that the card names, and compares it. A dynamic dimension of the
// model accepts any size. name and shape are keys of models.Card.Lines.
func findTensor(kind string, card *models.Card, want Tensor, have []Tensor, name, shape string) (got Tensor, err error) {
	i := slices.IndexFunc(have, func(t Tensor) bool { return t.Name == want.Name })
	if i < 0 {
		return got, fmt.Errorf("model has no %s %q, which the card names%s; it has %s", kind, want.Name, card.Place(name), joinNames(have))
	}
	got = have[i]
	same := got.Type == want.Type && (len(got.Dims) == 0 || len(got.Dims) == len(want.Dims))
	for d := 1; same && d < len(got.Dims); d++ {
		same = got.Dims[d] < 0 || got.Dims[d] == want.Dims[d]
	}
	if !same {
		return got, fmt.Errorf("%s %q is %s in the model, %s in the card%s", kind, want.Name, got, want, card.Place(shape))
	}
	return got, nil
}

// checkBatchAxis returns an error if the batch of an output is on another axis than the first. Then the input
// takes any batch, and the output's first axis has a fixed size. Another one has not.
func checkBatchAxis(out, in Tensor) error {
	if len(out.Dims) == 0 || len(in.Dims) == 0 || in.Dims[0] >= 0 || out.Dims[0] <= 1 {
		return nil
	}
	for axis, d := range out.Dims {
		if d < 0 {
			return fmt.Errorf("output %q is %s in the model, with its batch on axis %d; it must be on the first axis: put a Transpose node behind the output", out.Name, out, axis)
		}
	}
	return nil
}

// checkFixed returns an error if the model has a fixed batch and the card has other ones.
func checkFixed(kind string, card *models.Card, got Tensor) error {
	if len(got.Dims) > 0 && got.Dims[0] >= 0 && (len(card.Batches) != 1 || got.Dims[0] != int64(card.Batches[0])) {
		return fmt.Errorf("%s %q is %s in the model, fixed at batch %d; the card has batches %v%s, want [%d] if the first axis is the batch: smaller batches are padded",
			kind, got.Name, got, got.Dims[0], card.Batches, card.Place("batches"), got.Dims[0])
	}
	return nil
}

// inputTypes are the types of elements that the gather writes.
const inputTypes = "u8, f16 or f32"

func describe(ts []Tensor) string {
	s := make([]string, len(ts))
	for i, t := range ts {
		s[i] = fmt.Sprintf("%q %s", t.Name, t)
	}
	return strings.Join(s, ", ")
}

func joinNames(ts []Tensor) string {
	if len(ts) == 0 {
		return "none"
	}
	s := make([]string, len(ts))
	for i, t := range ts {
		s[i] = strconv.Quote(t.Name)
	}
	return strings.Join(s, ", ")
}
