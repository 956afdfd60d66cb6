package models

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock/models/onnxfile"
)

// checkDeclared returns an error unless the card's inputs and outputs are those that the model's file declares. The error is a
// misfit, with the place in the card.
func (c *Card) checkDeclared(m *onnxfile.Model, outputs []tensorFile) error {
	first := c.InputTensors()[0]
	open := slices.ContainsFunc(m.Inputs, func(v onnxfile.Value) bool {
		return v.Name == first.Name && images(v.Shape, first.BatchAxis) < 0
	})
	if err := c.checkInputs(m.Inputs, open); err != nil {
		return err
	}
	for _, o := range c.OutputTensors() {
		i := slices.IndexFunc(outputs, func(f tensorFile) bool { return f.Name == o.Name }) // states are not among the Outputs
		if _, err := c.find("output", &o, m.Outputs, open, []any{"outputs", i, "name"}, []any{"outputs", i, "shape"}); err != nil {
			return err
		}
	}
	return nil
}

// checkInputs returns an error unless each input of the model is one of the card's inputs or constants.
func (c *Card) checkInputs(declared []onnxfile.Value, open bool) error {
	tensors, known := c.InputTensors(), map[string]bool{}
	for i := range tensors {
		t := &tensors[i]
		name, shape := []any{"input", "name"}, []any{"input", "size"}
		if len(c.Inputs) > 0 {
			name, shape = []any{"inputs", i, "name"}, []any{"inputs", i, "shape"}
		}
		if i >= len(tensors)-len(c.State) {
			name, shape = []any{"state"}, []any{"state"}
		}
		got, err := c.find("input", t, declared, open, name, shape)
		if err != nil && len(c.Inputs) == 0 && got.Name != "" && (len(got.Shape) != 4 || !slices.Contains(PictureTypes, got.Type)) {
			err = fmt.Errorf("%w; a picture has 3 axes behind the batch, and one of the types %s: list other tensors in inputs", err, strings.Join(PictureTypes, ", "))
		}
		if err != nil {
			return err
		}
		known[t.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(c.Constants)) {
		i := slices.IndexFunc(declared, func(v onnxfile.Value) bool { return v.Name == name })
		if i < 0 {
			return at(fmt.Errorf("model has no input %q; it has %q", name, onnxfile.Names(declared)), "constants")
		}
		if _, _, err := Fill(declared[i], c.Constants[name], c.Batches[0]); err != nil {
			return at(err, "constants")
		}
		known[name] = true
	}
	for _, v := range declared {
		if !known[v.Name] {
			return at(fmt.Errorf("takes %s, and the card has no %q; give it a value in constants or state, or list all tensors in inputs",
				onnxfile.List(declared), v.Name), "model")
		}
	}
	return nil
}

// Fill returns the tensor of a constant for n images: its shape, and its elements in little endian. One value
// fills the tensor. Several are the elements of an image if the first axis is dynamic, else of the tensor.
func Fill(constant onnxfile.Value, values []float64, n int) (shape []int64, data []byte, err error) {
	dtype := DType(constant.Type)
	if dtype.Bytes() == 0 {
		return nil, nil, fmt.Errorf("constant %q is %s in the model; want numbers", constant.Name, constant.Kind())
	}
	for _, d := range constant.Shape {
		shape = append(shape, d.Size)
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
			return nil, nil, fmt.Errorf("constant %q is %s in the model; want a fixed shape of at most %d elements behind the batch axis", constant.Name, constant.Kind(), maxConstant)
		}
		count *= d
	}
	each := count
	if perImage {
		each /= int64(n)
	}
	if len(values) != 1 && int64(len(values)) != each {
		return nil, nil, fmt.Errorf("constant %q is %s in the model, and has %d values; want one, or one for each element", constant.Name, constant.Kind(), len(values))
	}
	for i := range count {
		v := values[i%int64(len(values))]
		if !dtype.Holds(v) {
			return nil, nil, fmt.Errorf("constant %q is %s in the model, which cannot hold %v", constant.Name, constant.Kind(), v)
		}
		data = dtype.Append(data, v)
	}
	return shape, data, nil
}

// maxConstant limits the elements of a constant.
const maxConstant = 1 << 20

// find finds the tensor that the card names, and compares it. A dynamic dimension of the model accepts any size. name and shape are
// places in the card. open: the model takes any batch.
func (c *Card) find(kind string, t *Tensor, declared []onnxfile.Value, open bool, name, shape []any) (got onnxfile.Value, err error) {
	i := slices.IndexFunc(declared, func(v onnxfile.Value) bool { return v.Name == t.Name })
	if i < 0 {
		return got, at(fmt.Errorf("model has no %s %q; it has %q", kind, t.Name, onnxfile.Names(declared)), name...)
	}
	got = declared[i]
	if t.Rows != nil {
		return got, at(checkRowsOf(t, got), shape...)
	}
	axis := slices.IndexFunc(got.Shape, func(d onnxfile.Dim) bool { return d.Size < 0 })
	if open && axis >= 0 && images(got.Shape, t.BatchAxis) > 1 {
		return got, at(fmt.Errorf("%s %q is %s in the model, with its batch on axis %d; want batch_axis: %d", kind, t.Name, got.Kind(), axis, axis), shape...)
	}
	if got.Type == string(t.Type) && len(got.Shape) > 0 && t.BatchAxis == 0 && fits(got.Shape, t.Shape, -1) {
		return got, at(fmt.Errorf("%s %q is %s in the model, without an axis for images; want batches: [1]", kind, t.Name, got.Kind()), "batches")
	}
	if want := t.Batch(-1); got.Type != string(t.Type) || len(got.Shape) > 0 && !fits(got.Shape, want, t.BatchAxis) {
		return got, at(fmt.Errorf("%s %q is %s in the model, %s %s in the card", kind, t.Name, got.Kind(), t.Type, dimensions(want)), shape...)
	}
	n := images(got.Shape, t.BatchAxis)
	if len(got.Shape) == 0 || n < 0 || len(c.Batches) == 1 && n == int64(c.Batches[0]) {
		return got, nil
	}
	return got, at(fmt.Errorf("%s %q is %s in the model, fixed at batch %d; the card has batches %v, want [%d] if axis %d is the batch: smaller batches are padded",
		kind, got.Name, got.Kind(), n, c.Batches, n, t.BatchAxis), "batches")
}

// checkRowsOf compares an output whose rows depend on the image: it is [rows, row...] or [n, rows, row...].
func checkRowsOf(t *Tensor, got onnxfile.Value) error {
	row := slices.Clone(t.Shape[1:])
	if t.Rows.BatchColumn {
		row[0]++
	}
	axes := len(got.Shape) - len(row)
	if got.Type != string(t.Type) || len(got.Shape) > 0 && (axes < 1 || axes > 2 || !fits(got.Shape[axes:], row, -1)) {
		return fmt.Errorf("output %q is %s in the model, and rows of %s %s in the card", t.Name, got.Kind(), t.Type, dimensions(row))
	}
	return nil
}

// dimensions returns a shape as text, with n for any size.
func dimensions(shape []int64) string {
	return strings.NewReplacer(" ", ", ", "-1", "n").Replace(fmt.Sprint(shape))
}

// fits compares dimensions, except that of the batch.
func fits(got []onnxfile.Dim, want []int64, batch int) bool {
	same := len(got) == len(want)
	for d := 0; same && d < len(got); d++ {
		same = d == batch || got[d].Size < 0 || got[d].Size == want[d]
	}
	return same
}

// images returns the batch of a tensor in the model: -1 if the model takes any, 1 if it has no axis for it.
func images(shape []onnxfile.Dim, axis int) int64 {
	if axis < 0 || axis >= len(shape) {
		return 1
	}
	return shape[axis].Size
}
