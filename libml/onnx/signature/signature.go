// Package signature describes the inputs and outputs that a model declares, and compares them
// with the model's card. The framework onnx does this for every model, on all devices.
package signature

import (
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
	first := card.InputTensors()[0]
	open := slices.ContainsFunc(inputs, func(t Tensor) bool {
		return t.Name == first.Name && images(t.Dims, first.BatchAxis) < 0
	})
	if err := checkInputs(card, inputs, open); err != nil {
		return err
	}
	for i, o := range card.OutputTensors() {
		name, shape := fmt.Sprintf("outputs[%d].name", i), fmt.Sprintf("outputs[%d].shape", i)
		if i >= len(card.Outputs) {
			name, shape = "state", "state"
		}
		if _, err := findTensor("output", card, &o, outputs, name, shape, open); err != nil {
			return err
		}
	}
	return nil
}

// checkInputs returns an error unless each input of the model is one of the card's inputs or constants.
func checkInputs(card *models.Card, inputs []Tensor, open bool) error {
	tensors, known := card.InputTensors(), map[string]bool{}
	for i := range tensors {
		t := &tensors[i]
		name, shape := "input.name", "input.size"
		if len(card.Inputs) > 0 {
			name, shape = fmt.Sprintf("inputs[%d].name", i), fmt.Sprintf("inputs[%d].shape", i)
		}
		if i >= len(tensors)-len(card.State) {
			name, shape = "state", "state"
		}
		got, err := findTensor("input", card, t, inputs, name, shape, open)
		if err != nil && len(card.Inputs) == 0 && got.Name != "" && (len(got.Dims) != 4 || !slices.Contains(models.PictureTypes, got.Type)) {
			err = fmt.Errorf("%w; a picture has 3 axes behind the batch, and one of the types %s: list other tensors in inputs", err, strings.Join(models.PictureTypes, ", "))
		}
		if err != nil {
			return err
		}
		known[t.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(card.Constants)) {
		i := slices.IndexFunc(inputs, func(t Tensor) bool { return t.Name == name })
		if i < 0 {
			return fmt.Errorf("model has no input %q, which constants names%s; it has %s", name, card.Place("constants"), joinNames(inputs))
		}
		if _, _, err := inputs[i].Fill(card.Constants[name], card.Batches[0]); err != nil {
			return fmt.Errorf("%w%s", err, card.Place("constants"))
		}
		known[name] = true
	}
	for _, t := range inputs {
		if !known[t.Name] {
			return fmt.Errorf("model takes %d inputs (%s), and the card has no %q; give it a value in constants or state, or list all tensors in inputs", len(inputs), describe(inputs), t.Name)
		}
	}
	return nil
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
// model accepts any size. name and shape are keys of models.Card.Lines. open: the model takes any batch.
func findTensor(kind string, card *models.Card, t *models.Tensor, have []Tensor, name, shape string, open bool) (got Tensor, err error) {
	i := slices.IndexFunc(have, func(h Tensor) bool { return h.Name == t.Name })
	if i < 0 {
		return got, fmt.Errorf("model has no %s %q, which the card names%s; it has %s", kind, t.Name, card.Place(name), joinNames(have))
	}
	got = have[i]
	if t.Rows != nil {
		return got, checkRows(card, t, got, shape)
	}
	if axis := slices.Index(got.Dims, -1); open && axis >= 0 && images(got.Dims, t.BatchAxis) > 1 {
		return got, fmt.Errorf("%s %q is %s in the model, with its batch on axis %d; want batch_axis: %d%s", kind, t.Name, got, axis, axis, card.Place(shape))
	}
	if got.Type == string(t.Type) && len(got.Dims) > 0 && t.BatchAxis == 0 && fits(got.Dims, t.Shape, -1) {
		return got, fmt.Errorf("%s %q is %s in the model, without an axis for images; want batches: [1]%s", kind, t.Name, got, card.Place("batches"))
	}
	want := Tensor{t.Name, string(t.Type), t.Batch(-1)}
	if got.Type != want.Type || len(got.Dims) > 0 && !fits(got.Dims, want.Dims, t.BatchAxis) {
		return got, fmt.Errorf("%s %q is %s in the model, %s in the card%s", kind, t.Name, got, want, card.Place(shape))
	}
	return got, checkFixed(kind, card, got, t.BatchAxis)
}

// checkRows compares an output whose rows depend on the image: it is [rows, row...] or [n, rows, row...].
func checkRows(card *models.Card, t *models.Tensor, got Tensor, key string) error {
	row := slices.Clone(t.Shape[1:])
	if t.Rows.BatchColumn {
		row[0]++
	}
	axes := len(got.Dims) - len(row)
	if got.Type != string(t.Type) || len(got.Dims) > 0 && (axes < 1 || axes > 2 || !fits(got.Dims[axes:], row, -1)) {
		return fmt.Errorf("output %q is %s in the model, and rows of %s %s in the card%s", t.Name, got, t.Type, shape(row), card.Place(key))
	}
	return nil
}

// fits compares dimensions, except that of the batch.
func fits(got, want []int64, batch int) bool {
	same := len(got) == len(want)
	for d := 0; same && d < len(got); d++ {
		same = d == batch || got[d] < 0 || got[d] == want[d]
	}
	return same
}

// checkFixed returns an error if the model has a fixed batch and the card has other ones.
func checkFixed(kind string, card *models.Card, got Tensor, axis int) error {
	n := images(got.Dims, axis)
	if len(got.Dims) == 0 || n < 0 || len(card.Batches) == 1 && n == int64(card.Batches[0]) {
		return nil
	}
	return fmt.Errorf("%s %q is %s in the model, fixed at batch %d; the card has batches %v%s, want [%d] if axis %d is the batch: smaller batches are padded",
		kind, got.Name, got, n, card.Batches, card.Place("batches"), n, axis)
}

// images returns the batch of a tensor in the model: -1 if the model takes any, 1 if it has no axis for it.
func images(dims []int64, axis int) int64 {
	if axis < 0 || axis >= len(dims) {
		return 1
	}
	return dims[axis]
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
