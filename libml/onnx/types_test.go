//go:build cgo

package onnx

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/onnxfile"
)

// castCard returns the card of a model that casts its input to another type. Element i of image k is 8k + i.
func castCard(t *testing.T, dtype models.DType, outputs ...models.Tensor) *models.Card {
	t.Helper()
	m := tinymodel.Model{Inputs: []tinymodel.Value{{Name: "x", Type: tinymodel.U8, Dims: []int64{tinymodel.Dynamic, 2, 1, 1}}}}
	for i := range outputs {
		o := &outputs[i]
		m.Outputs = append(m.Outputs, tinymodel.Value{Name: o.Name, Type: tinymodel.Type(typeNumber(dtype)), Dims: append([]int64{tinymodel.Dynamic}, o.Shape...)})
		m.Nodes = append(m.Nodes, tinymodel.Node{Op: "Cast", Inputs: []string{"x"}, Outputs: []string{o.Name}, Attribute: "to", Int: int64(typeNumber(dtype))})
	}
	path := filepath.Join(t.TempDir(), "model.onnx")
	must.OK(t, os.WriteFile(path, m.Encode(), 0o600))
	return &models.Card{
		Name: "cast", Framework: "onnx", Model: path, Batches: []int{1, 2}, Outputs: outputs,
		Input: models.Input{Name: "x", Height: 2, Width: 1, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC},
	}
}

// allTypes are those that cards know.
var allTypes = []models.DType{
	models.Bool, models.I8, models.I16, models.I32, models.I64, models.U8, models.U16, models.U32, models.U64, models.F16, models.BF16, models.F32, models.F64,
}

func typeNumber(t models.DType) int { return onnxfile.TypeNumber(string(t)) }

// Outputs of every type have the model's values, under a name with blanks.
func TestOutputTypes(t *testing.T) {
	for _, dtype := range allTypes {
		t.Run(string(dtype), func(t *testing.T) {
			card := castCard(t, dtype, models.Tensor{Name: "y of " + string(dtype), Type: dtype, Shape: []int64{2, 1, 1}})
			f, b := linked(t, card), makeBuffers(card, 2)
			copy(b.input, []byte{0, 1, 0, 1})
			infer(t, f, 0, 2, b)
			for i, v := range answer.Floats(dtype, b.outputs[0]) {
				if v != float32(i%2) {
					t.Errorf("value %d is %v, want %d", i, v, i%2)
				}
			}
		})
	}
}

// y is the transpose of each image of x. Both have the images on axis 1.
func TestBatchAxis(t *testing.T) {
	const f32, n = tinymodel.F32, tinymodel.Dynamic
	m := tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "x", Type: f32, Dims: []int64{2, n, 3}}},
		Outputs: []tinymodel.Value{{Name: "y", Type: f32, Dims: []int64{3, n, 2}}},
		Nodes:   []tinymodel.Node{{Op: "Transpose", Inputs: []string{"x"}, Outputs: []string{"y"}}},
	}
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), m.Encode(), 0o600))
	text := "name: turn\nversion: 1\nframework: onnx\nmodel: model.onnx\nslo: 1s\nbatches: [1, 2, 3]\n" +
		"inputs: [{name: x, shape: [2, 3], batch_axis: 1}]\noutputs: [{name: y, shape: [3, 2], batch_axis: 1}]\n"
	must.OK(t, os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(text), 0o600))
	card, err := models.ReadCard(filepath.Join(dir, "card.yaml"))
	must.OK(t, err)

	f := linked(t, card)
	for n := 1; n <= 3; n++ {
		b := buffers{input: make([]byte, n*24), outputs: [][]byte{make([]byte, n*24)}}
		var want []float32
		for i := range n {
			for k := range 6 {
				copy(b.input[24*i+4*k:], models.F32.Append(nil, float64(10*i+k)))
				want = append(want, float32(10*i+k%2*3+k/2))
			}
		}
		infer(t, f, 0, n, b)
		if got := answer.Floats(models.F32, b.outputs[0]); !slices.Equal(got, want) {
			t.Errorf("batch of %d: got %v, want %v", n, got, want)
		}
	}
}

// Tensors without a batch axis are those of one image: y is the negative of x, plus b if there is one.
func TestNoBatchAxis(t *testing.T) {
	const n = tinymodel.Dynamic
	for name, c := range map[string]struct {
		x, y, b []int64 // in the file
		card    string
	}{
		"output":          {x: []int64{1, 2}, y: []int64{2}, card: "inputs: [{name: x, shape: [2]}]"},
		"input, output":   {x: []int64{2}, y: []int64{2}, card: "inputs: [{name: x, shape: [2]}]"},
		"picture":         {x: []int64{1, 2, 1}, y: []int64{2}, card: "input: {name: x, size: [1, 2, 1], wire: {type: f32, layout: hwc}, tensor: {type: f32, layout: hwc}}"},
		"one of two":      {x: []int64{1, 2}, b: []int64{2}, y: []int64{2}, card: "inputs: [{name: x, shape: [2]}, {name: b, shape: [2]}]"},
		"open dimensions": {x: []int64{n, 2}, y: []int64{n}, card: "inputs: [{name: x, shape: [2]}]\nbatches: [1]"},
	} {
		t.Run(name, func(t *testing.T) {
			value := func(name string, dims []int64) tinymodel.Value {
				return tinymodel.Value{Name: name, Type: tinymodel.F32, Dims: dims}
			}
			m := tinymodel.Model{
				Inputs:  []tinymodel.Value{value("x", c.x)},
				Outputs: []tinymodel.Value{value("y", c.y)},
				Nodes:   []tinymodel.Node{{Op: "Squeeze", Inputs: []string{"x"}, Outputs: []string{"s"}}, {Op: "Neg", Inputs: []string{"s"}, Outputs: []string{"y"}}},
			}
			floats, want := []float64{3, -5}, []float32{-3, 5}
			if c.b != nil {
				m.Inputs = append(m.Inputs, value("b", c.b))
				m.Nodes[1] = tinymodel.Node{Op: "Sub", Inputs: []string{"b", "s"}, Outputs: []string{"y"}}
				floats, want = append(floats, 10, 20), []float32{7, 25}
			}
			dir := t.TempDir()
			must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), m.Encode(), 0o600))
			text := "name: one\nversion: 1\nframework: onnx\nmodel: model.onnx\nslo: 1s\noutputs: [{name: y, shape: [2]}]\n" + c.card
			must.OK(t, os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(text), 0o600))
			card, err := models.ReadCard(filepath.Join(dir, "card.yaml"))
			must.OK(t, err)
			if !slices.Equal(card.Batches, []int{1}) {
				t.Errorf("batches of %v, want one image", card.Batches)
			}

			f, y := linked(t, card), make([]byte, 8)
			var inputs [][]byte
			for i := range len(floats) / 2 {
				inputs = append(inputs, models.F32.Append(models.F32.Append(nil, floats[2*i]), floats[2*i+1]))
			}
			_, err = f.ConfigureBatch(0, 1, device.HostBuffers(inputs...), device.HostBuffers(y))
			must.OK(t, err)
			must.OK(t, f.InferBatch(0, 1))
			if got := answer.Floats(models.F32, y); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// meanModel returns a model with an output y of a type without axes: the mean of all x. rows has a row for each x that is not 0.
func meanModel(dtype models.DType, x ...int64) tinymodel.Model {
	const n = tinymodel.Dynamic
	return tinymodel.Model{
		Inputs: []tinymodel.Value{{Name: "x", Type: tinymodel.F32, Dims: x}},
		Outputs: []tinymodel.Value{
			{Name: "y", Type: tinymodel.Type(typeNumber(dtype))}, {Name: "rows", Type: tinymodel.I64, Dims: []int64{n, int64(len(x))}},
		},
		Nodes: []tinymodel.Node{
			{Op: "ReduceMean", Inputs: []string{"x"}, Outputs: []string{"mean"}, Attribute: "keepdims"},
			{Op: "Cast", Inputs: []string{"mean"}, Outputs: []string{"y"}, Attribute: "to", Int: int64(typeNumber(dtype))},
			{Op: "NonZero", Inputs: []string{"x"}, Outputs: []string{"places"}}, {Op: "Transpose", Inputs: []string{"places"}, Outputs: []string{"rows"}},
		},
	}
}

// An output without axes is that of one image, of every type. Rows may be counted by it.
func TestOutputWithoutAxes(t *testing.T) {
	for _, dtype := range allTypes {
		for _, rows := range []string{"", ", {name: rows, type: i64, shape: [2], rows: {max: 2, count: y}}"} {
			dir := t.TempDir()
			must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), meanModel(dtype, tinymodel.Dynamic, 2).Encode(), 0o600))
			text := "name: mean\nversion: 1\nframework: onnx\nmodel: model.onnx\nslo: 1s\ninputs: [{name: x, shape: [2]}]\n"
			text += "outputs: [{name: y, type: " + string(dtype) + ", shape: []}" + rows + "]\n"
			must.OK(t, os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(text), 0o600))
			card, err := models.ReadCard(filepath.Join(dir, "card.yaml"))
			must.OK(t, err)
			if !slices.Equal(card.Batches, []int{1}) {
				t.Errorf("%s: batches of %v, want one image", dtype, card.Batches)
			}

			f := linked(t, card)
			x := models.F32.Append(models.F32.Append(nil, 2), 0)
			outputs := [][]byte{make([]byte, dtype.Bytes())}
			if rows != "" {
				outputs = append(outputs, slices.Repeat([]byte{0xff}, 32))
			}
			_, err = f.ConfigureBatch(0, 1, device.HostBuffers(x), device.HostBuffers(outputs...))
			must.OK(t, err)
			must.OK(t, f.InferBatch(0, 1))
			if got := answer.Floats(dtype, outputs[0]); !slices.Equal(got, []float32{1}) {
				t.Errorf("%s: got %v, want 1", dtype, got)
			}
			if rows != "" && !slices.Equal(outputs[1], make([]byte, 32)) {
				t.Errorf("%s: rows of % x, want one of zeros", dtype, outputs[1])
			}
		}
	}
}

// An input without axes is that of one request.
func TestInputWithoutAxes(t *testing.T) {
	dir := t.TempDir()
	m := meanModel(models.F32)
	m.Outputs, m.Nodes = m.Outputs[:1], m.Nodes[:2]
	must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), m.Encode(), 0o600))
	text := "name: mean\nversion: 1\nframework: onnx\nmodel: model.onnx\nslo: 1s\ninputs: [{name: x, shape: []}]\noutputs: [{name: y, shape: []}]\n"
	must.OK(t, os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(text), 0o600))
	card, err := models.ReadCard(filepath.Join(dir, "card.yaml"))
	must.OK(t, err)
	f, x, y := linked(t, card), models.F32.Append(nil, 7), make([]byte, 4)
	_, err = f.ConfigureBatch(0, 1, device.HostBuffers(x), device.HostBuffers(y))
	must.OK(t, errors.Join(err, f.InferBatch(0, 1)))
	if !bytes.Equal(x, y) {
		t.Errorf("the mean of 7 is % x, want % x", y, x)
	}
}

// addCard returns the card of a model with two inputs and two constants: y = a + Cast(b) + Cast(k) + s. a and s
// are f32 [n, 3], b is i64 [n, 1], k is i64 without axes.
func addCard(t *testing.T, constants string) (*models.Card, error) {
	t.Helper()
	const f32, i64 = tinymodel.F32, tinymodel.I64
	rows := []int64{tinymodel.Dynamic, 3}
	cast := func(from, to string) tinymodel.Node {
		return tinymodel.Node{Op: "Cast", Inputs: []string{from}, Outputs: []string{to}, Attribute: "to", Int: int64(f32)}
	}
	add := func(a, b, to string) tinymodel.Node {
		return tinymodel.Node{Op: "Add", Inputs: []string{a, b}, Outputs: []string{to}}
	}
	m := tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "a", Type: f32, Dims: rows}, {Name: "b b", Type: i64, Dims: []int64{tinymodel.Dynamic, 1}}, {Name: "k", Type: i64}, {Name: "s", Type: f32, Dims: rows}},
		Outputs: []tinymodel.Value{{Name: "y", Type: f32, Dims: rows}},
		Nodes:   []tinymodel.Node{cast("b b", "bf"), cast("k", "kf"), add("a", "bf", "ab"), add("ab", "kf", "abk"), add("abk", "s", "y")},
	}
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), m.Encode(), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(`name: add
version: 1
framework: onnx
model: model.onnx
inputs: [{name: a, shape: [3]}, {name: "b b", type: i64, shape: [1]}]
`+constants+`
outputs: [{name: y, shape: [3]}]
batches: [1, 2, 4]
slo: 1s
`), 0o600))
	return models.ReadCard(filepath.Join(dir, "card.yaml"))
}

// A model gets all inputs of each request, and constants of every batch size.
func TestSeveralInputs(t *testing.T) {
	card, err := addCard(t, "constants: {k: 1000, s: [0.25, 0.5, 0.75]}")
	must.OK(t, err)
	f := linked(t, card)
	for _, n := range card.Batches {
		a, b, y := make([]byte, n*12), make([]byte, n*8), make([]byte, n*12)
		var want []float32
		for i := range n {
			b[i*8] = byte(10 * i)
			for j := range 3 {
				a[i*12+j*4+2], a[i*12+j*4+3] = 0x80, 0x3f // 1
				want = append(want, 1001+float32(10*i)+float32(j+1)/4)
			}
		}
		_, err := f.ConfigureBatch(0, n, device.HostBuffers(a, b), device.HostBuffers(y))
		must.OK(t, err)
		must.OK(t, f.InferBatch(0, n))
		if got := answer.Floats(models.F32, y); !slices.Equal(got, want) {
			t.Errorf("batch of %d: %v, want %v", n, got, want)
		}
		if _, err := f.ConfigureBatch(0, n, device.HostBuffers(a), device.HostBuffers(y)); err == nil || !strings.Contains(err.Error(), "there are 1 inputs and 1 outputs, want 2 and 1") {
			t.Errorf("a missing input: %v", err)
		}
	}
}

// Constants that do not fit the model are refused with what would.
func TestWrongConstants(t *testing.T) {
	for constants, want := range map[string]string{
		"":                                `card.yaml:4:8: model: takes a f32 [n, 3], b b i64 [n, 1], k i64 [], s f32 [n, 3], and the card has no "k"`,
		"constants: {k: 1}":               `the card has no "s"; give it a value in constants or state, or list all tensors in inputs`,
		"constants: {k: 1, s: 0, z: 1}":   `card.yaml:6:13: constants: model has no input "z"; it has ["a" "b b" "k" "s"]`,
		"constants: {k: 1, s: [1, 2]}":    `constant "s" is f32 [n, 3] in the model, and has 2 values; want one, or one for each element`,
		"constants: {k: 0.5, s: 1}":       `constant "k" is i64 [] in the model, which cannot hold 0.5`,
		"constants: {k: [1, 2], s: 1}":    `constant "k" is i64 [] in the model, and has 2 values`,
		"constants: {k: 1.0e+300, s: 1}":  `which cannot hold 1e+300`,
		"constants: {k: 1, s: [1,2,3,4]}": `constant "s" is f32 [n, 3] in the model, and has 4 values`,
	} {
		if _, err := addCard(t, constants); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", constants, err, want)
		}
	}
}
