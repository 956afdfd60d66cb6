package signature

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/models"
)

func TestCheck(t *testing.T) {
	card := &models.Card{
		Input: models.Input{Name: "x", Height: 4, Width: 6, Channels: 3,
			WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW},
		Outputs: []models.Tensor{{Name: "y", Type: models.F32, Shape: []int64{10}}, {Name: "z", Type: models.F32, Shape: []int64{5, 4}}},
		Batches: []int{1, 2}, File: "/m/card.yaml",
		Lines: map[string]int{"batches": 9, "input.name": 3, "input.size": 4, "outputs[0].shape": 6, "outputs[1].name": 7},
	}
	x := Tensor{"x", "f32", []int64{-1, 3, 4, 6}}
	y := Tensor{"y", "f32", []int64{-1, 10}}
	z := Tensor{"z", "f32", []int64{-1, 5, 4}}
	for _, c := range []struct {
		name    string
		in, out []Tensor
		want    string // in the error; empty for none
	}{
		{"as the card says", []Tensor{x}, []Tensor{y, z}, ""},
		{"in another order, and more than the card wants", []Tensor{x}, []Tensor{{"a", "f32", nil}, z, y}, ""},
		{"with dynamic sides", []Tensor{{"x", "f32", []int64{-1, 3, -1, -1}}}, []Tensor{y, z}, ""},
		{"with a shape left open", []Tensor{x}, []Tensor{{"y", "f32", nil}, z}, ""},
		{"another layout", []Tensor{{"x", "f32", []int64{-1, 4, 6, 3}}}, []Tensor{y, z},
			`input "x" is f32 [n, 4, 6, 3] in the model, f32 [n, 3, 4, 6] in the card (/m/card.yaml:4)`},
		{"another type", []Tensor{{"x", "f16", []int64{-1, 3, 4, 6}}}, []Tensor{y, z},
			`input "x" is f16 [n, 3, 4, 6] in the model, f32 [n, 3, 4, 6] in the card`},
		{"another input", []Tensor{{"image", "f32", []int64{-1, 3, 4, 6}}}, []Tensor{y, z},
			`no input "x", which the card names (/m/card.yaml:3); it has "image"`},
		{"two inputs", []Tensor{x, y}, []Tensor{y, z}, `model takes 2 inputs ("x" f32 [n, 3, 4, 6], "y" f32 [n, 10]), and the card has no "y"; give it a value in constants or state, or list all tensors in inputs`},
		{"integers", []Tensor{{"x", "int64", []int64{-1, 3, 4, 6}}}, []Tensor{y, z}, `input "x" is int64 [n, 3, 4, 6] in the model, f32 [n, 3, 4, 6] in the card (/m/card.yaml:4); a picture has 3 axes behind the batch, and one of the types u8, i8, u16, i16, u32, i32, f16, f32: list other tensors in inputs`},
		{"fewer classes", []Tensor{x}, []Tensor{{"y", "f32", []int64{-1, 9}}, z},
			`output "y" is f32 [n, 9] in the model, f32 [n, 10] in the card (/m/card.yaml:6)`},
		{"a dimension more", []Tensor{x}, []Tensor{{"y", "f32", []int64{-1, 10, 1}}, z},
			`output "y" is f32 [n, 10, 1] in the model, f32 [n, 10] in the card`},
		{"an output missing", []Tensor{x}, []Tensor{y}, `no output "z", which the card names (/m/card.yaml:7); it has "y"`},
		{"fixed at batch 1", []Tensor{{"x", "f32", []int64{1, 3, 4, 6}}}, []Tensor{y, z},
			`input "x" is f32 [1, 3, 4, 6] in the model, fixed at batch 1; the card has batches [1 2] (/m/card.yaml:9), want [1]`},
		{"batch on the second axis", []Tensor{x}, []Tensor{{"y", "f32", []int64{4, -1}}, z}, "output \"y\" is f32 [4, n] in the model, with its batch on axis 1; want batch_axis: 1 (/m/card.yaml:6)"},
		{"without an axis for images", []Tensor{x}, []Tensor{y, {"z", "f32", []int64{5, 4}}}, `output "z" is f32 [5, 4] in the model, without an axis for images; want batches: [1] (/m/card.yaml:9)`},
		{"another dynamic axis", []Tensor{x}, []Tensor{{"y", "f32", []int64{1, -1}}, z}, "fixed at batch 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Check(card, c.in, c.out)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestCheckBatchAxis(t *testing.T) {
	x := Tensor{"x", "f32", []int64{7, -1, 2}}
	card := &models.Card{
		Inputs:  []models.Tensor{{Name: "x", Type: models.F32, Shape: []int64{7, 2}, BatchAxis: 1}},
		Outputs: []models.Tensor{{Name: "y", Type: models.F32, Shape: []int64{20, 37}, BatchAxis: 1}},
		Batches: []int{1, 2},
	}
	for want, dims := range map[string][]int64{
		"": {20, -1, 37},
		`"y" is f32 [21, n, 37] in the model, f32 [20, n, 37] in the card`:                  {21, -1, 37},
		`"y" is f32 [20, 4, 37] in the model, fixed at batch 4`:                             {20, 4, 37},
		`"y" is f32 [n, 20, 37] in the model, with its batch on axis 0; want batch_axis: 0`: {-1, 20, 37},
	} {
		err := Check(card, []Tensor{x}, []Tensor{{"y", "f32", dims}})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %s", dims, err, want)
		}
	}
}

func TestCheckRows(t *testing.T) {
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
		x := Tensor{"x", "f32", []int64{-1, 3}}
		card := &models.Card{
			Inputs:  []models.Tensor{{Name: "x", Type: models.F32, Shape: []int64{3}}},
			Outputs: []models.Tensor{{Name: "y", Type: models.F32, Shape: []int64{100, 6}, Rows: &models.Rows{Max: 100, BatchColumn: c.column}}},
			Batches: []int{1},
		}
		err := Check(card, []Tensor{x}, []Tensor{{"y", "f32", c.dims}})
		if c.fits != (err == nil) || err != nil && !strings.Contains(err.Error(), `in the model, and rows of f32 [`) {
			t.Errorf("%v with column %v: %v", c.dims, c.column, err)
		}
	}
}
