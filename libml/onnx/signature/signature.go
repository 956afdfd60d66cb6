// Package signature describes the inputs and outputs that a model declares, and compares them
// with the model's card. The framework onnx does this for every model, on all devices.
package signature

import (
	"cmp"
	"fmt"
	"maps"
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
	input, err := checkInputs(card, inputs)
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

// checkInputs returns an error unless each input of the model is one of the card's inputs or constants. first is
// the model's declaration of the card's first input.
func checkInputs(card *models.Card, inputs []Tensor) (first Tensor, err error) {
	tensors, known := card.InputTensors(), map[string]bool{}
	for i := range tensors {
		t := &tensors[i]
		name, shape := "input.name", "input.size"
		if len(card.Inputs) > 0 {
			name, shape = fmt.Sprintf("inputs[%d].name", i), fmt.Sprintf("inputs[%d].shape", i)
		}
		got, err := findTensor("input", card, Tensor{Name: t.Name, Type: string(t.Type), Dims: t.Batch(-1)}, inputs, name, shape)
		if err == nil {
			err = checkFixed("input", card, got)
		} else if len(card.Inputs) == 0 && got.Name != "" && !slices.Contains([]string{"u8", "f16", "f32"}, got.Type) {
			err = fmt.Errorf("%w; a picture is u8, f16 or f32: list other tensors in inputs", err)
		}
		if err != nil {
			return got, err
		}
		if known[t.Name] = true; i == 0 {
			first = got
		}
	}
	for _, name := range slices.Sorted(maps.Keys(card.Constants)) {
		i := slices.IndexFunc(inputs, func(t Tensor) bool { return t.Name == name })
		if i < 0 {
			return first, fmt.Errorf("model has no input %q, which constants names%s; it has %s", name, card.Place("constants"), joinNames(inputs))
		}
		if _, _, err := inputs[i].Fill(card.Constants[name], card.Batches[0]); err != nil {
			return first, fmt.Errorf("%w%s", err, card.Place("constants"))
		}
		known[name] = true
	}
	for _, t := range inputs {
		if !known[t.Name] {
			return first, fmt.Errorf("model takes %d inputs (%s), and the card has no %q; give it a value in constants, or list all tensors in inputs", len(inputs), describe(inputs), t.Name)
		}
	}
	return first, nil
}

// Fill returns the tensor of a constant for n images: its shape, and its elements in little endian. One value
// fills the tensor. Several are the elements of an image if the first axis is dynamic, else of the tensor.
func (t Tensor) Fill(values []float64, n int) (shape []int64, data []byte, err error) {
	dtype, shape := models.DType(t.Type), slices.Clone(t.Dims)
	if dtype.Bytes() == 0 {
		return nil, nil, fmt.Errorf("constant %q is %s in the model; want numbers", t.Name, t)
	}
	perImage := len(shape) > 0 && shape[0] < 0
	if perImage {
		if shape[0] = int64(n); len(shape) == 1 && len(values) > 1 {
			shape[0], perImage = int64(len(values)), false
		}
	}
	count := int64(1)
	for _, d := range shape {
		if d < 0 || d > maxConstant/max(1, count) {
			return nil, nil, fmt.Errorf("constant %q is %s in the model; want a fixed shape of at most %d elements behind the batch axis", t.Name, t, maxConstant)
		}
		count *= d
	}
	each := count
	if perImage {
		each /= int64(n)
	}
	if len(values) != 1 && int64(len(values)) != each {
		return nil, nil, fmt.Errorf("constant %q is %s in the model, and has %d values; want one, or one for each element", t.Name, t, len(values))
	}
	for i := range count {
		v := values[i%int64(len(values))]
		if !dtype.Holds(v) {
			return nil, nil, fmt.Errorf("constant %q is %s in the model, which cannot hold %v", t.Name, t, v)
		}
		data = dtype.Append(data, v)
	}
	return shape, data, nil
}

// maxConstant limits the elements of a constant.
const maxConstant = 1 << 20

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
