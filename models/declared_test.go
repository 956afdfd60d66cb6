package models

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/models/onnxfile"
)

// declare returns a value of these dimensions, in which -1 is any size. Without any the shape is open.
func declare(name, kind string, dims ...int64) onnxfile.Value {
	v := onnxfile.Value{Name: name, Type: kind}
	for _, d := range dims {
		dim := onnxfile.Dim{Size: d}
		if d < 0 {
			dim.Name = "n"
		}
		v.Shape = append(v.Shape, dim)
	}
	return v
}

func checkDeclared(c *Card, in, out []onnxfile.Value) error {
	var outputs []tensorFile
	for _, o := range c.OutputTensors() {
		outputs = append(outputs, tensorFile{Name: o.Name})
	}
	return c.checkDeclared(&onnxfile.Model{Inputs: in, Outputs: out}, outputs)
}

func TestCheckDeclared(t *testing.T) {
	card := &Card{
		Input:   Input{Name: "x", Height: 4, Width: 6, Channels: 3, WireType: U8, WireLayout: HWC, TensorType: F32, TensorLayout: CHW},
		Outputs: []Tensor{{Name: "y", Type: F32, Shape: []int64{10}}, {Name: "z", Type: F32, Shape: []int64{5, 4}}},
		Batches: []int{1, 2},
	}
	x, y, z := declare("x", "f32", -1, 3, 4, 6), declare("y", "f32", -1, 10), declare("z", "f32", -1, 5, 4)
	type list = []onnxfile.Value
	for _, c := range []struct {
		name    string
		in, out list
		want    string // in the error; empty for none
	}{
		{"as the card says", list{x}, list{y, z}, ""},
		{"in another order, and more than the card wants", list{x}, list{declare("a", "f32"), z, y}, ""},
		{"with dynamic sides", list{declare("x", "f32", -1, 3, -1, -1)}, list{y, z}, ""},
		{"with a shape left open", list{x}, list{declare("y", "f32"), z}, ""},
		{"another layout", list{declare("x", "f32", -1, 4, 6, 3)}, list{y, z}, `input "x" is f32 [n, 4, 6, 3] in the model, f32 [n, 3, 4, 6] in the card`},
		{"another type", list{declare("x", "f16", -1, 3, 4, 6)}, list{y, z}, `input "x" is f16 [n, 3, 4, 6] in the model, f32 [n, 3, 4, 6] in the card`},
		{"another input", list{declare("image", "f32", -1, 3, 4, 6)}, list{y, z}, `no input "x"; it has ["image"]`},
		{"two inputs", list{x, y}, list{y, z}, `takes x f32 [n, 3, 4, 6], y f32 [n, 10], and the card has no "y"; give it a value in constants or state, or list all tensors in inputs`},
		{"integers", list{declare("x", "int64", -1, 3, 4, 6)}, list{y, z},
			`input "x" is int64 [n, 3, 4, 6] in the model, f32 [n, 3, 4, 6] in the card; a picture has 3 axes behind the batch, and one of the types u8, i8, u16, i16, u32, i32, f16, f32: list other tensors in inputs`},
		{"fewer classes", list{x}, list{declare("y", "f32", -1, 9), z}, `output "y" is f32 [n, 9] in the model, f32 [n, 10] in the card`},
		{"a dimension more", list{x}, list{declare("y", "f32", -1, 10, 1), z}, `output "y" is f32 [n, 10, 1] in the model, f32 [n, 10] in the card`},
		{"an output missing", list{x}, list{y}, `no output "z"; it has ["y"]`},
		{"fixed at batch 1", list{declare("x", "f32", 1, 3, 4, 6)}, list{y, z}, `input "x" is f32 [1, 3, 4, 6] in the model, fixed at batch 1; the card has batches [1 2], want [1]`},
		{"batch on the second axis", list{x}, list{declare("y", "f32", 4, -1), z}, `output "y" is f32 [4, n] in the model, with its batch on axis 1; want batch_axis: 1`},
		{"without an axis for images", list{x}, list{y, declare("z", "f32", 5, 4)}, `output "z" is f32 [5, 4] in the model, without an axis for images; want batches: [1]`},
		{"another dynamic axis", list{x}, list{declare("y", "f32", 1, -1), z}, "fixed at batch 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := checkDeclared(card, c.in, c.out)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestCheckDeclaredBatchAxis(t *testing.T) {
	card := &Card{
		Inputs:  []Tensor{{Name: "x", Type: F32, Shape: []int64{7, 2}, BatchAxis: 1}},
		Outputs: []Tensor{{Name: "y", Type: F32, Shape: []int64{20, 37}, BatchAxis: 1}},
		Batches: []int{1, 2},
	}
	for want, dims := range map[string][]int64{
		"": {20, -1, 37},
		`"y" is f32 [21, n, 37] in the model, f32 [20, n, 37] in the card`:                  {21, -1, 37},
		`"y" is f32 [20, 4, 37] in the model, fixed at batch 4`:                             {20, 4, 37},
		`"y" is f32 [n, 20, 37] in the model, with its batch on axis 0; want batch_axis: 0`: {-1, 20, 37},
	} {
		err := checkDeclared(card, []onnxfile.Value{declare("x", "f32", 7, -1, 2)}, []onnxfile.Value{declare("y", "f32", dims...)})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %s", dims, err, want)
		}
	}
}

func TestCheckDeclaredRows(t *testing.T) {
	for _, c := range []struct {
		column bool
		dims   []int64
		fits   bool
	}{
		{false, []int64{-1, 6}, true},
		{false, []int64{-1, -1, 6}, true},
		{false, []int64{1, -1, 6}, true},
		{false, nil, true},
		{false, []int64{-1, 7}, false},
		{false, []int64{6}, false},
		{false, []int64{-1, -1, -1, 6}, false},
		{true, []int64{-1, 7}, true},
		{true, []int64{-1, 6}, false},
	} {
		card := &Card{
			Inputs:  []Tensor{{Name: "x", Type: F32, Shape: []int64{3}}},
			Outputs: []Tensor{{Name: "y", Type: F32, Shape: []int64{100, 6}, Rows: &Rows{Max: 100, BatchColumn: c.column}}},
			Batches: []int{1},
		}
		err := checkDeclared(card, []onnxfile.Value{declare("x", "f32", -1, 3)}, []onnxfile.Value{declare("y", "f32", c.dims...)})
		if c.fits != (err == nil) || err != nil && !strings.Contains(err.Error(), `in the model, and rows of f32 [`) {
			t.Errorf("%v with column %v: %v", c.dims, c.column, err)
		}
	}
}
