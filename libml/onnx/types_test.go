//go:build cgo

package onnx

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/models"
)

// castCard returns the card of a model that casts its input to another type. Element i of image k is 8k + i.
func castCard(t *testing.T, dtype models.DType, outputs ...models.Tensor) *models.Card {
	t.Helper()
	m := tinymodel.Model{Inputs: []tinymodel.Value{{Name: "x", Type: tinymodel.U8, Dims: []int64{tinymodel.Dynamic, 2, 1, 1}}}}
	for i := range outputs {
		o := &outputs[i]
		m.Outputs = append(m.Outputs, tinymodel.Value{Name: o.Name, Type: tinymodel.Type(elementTypes[dtype]), Dims: append([]int64{tinymodel.Dynamic}, o.Shape...)})
		m.Nodes = append(m.Nodes, tinymodel.Node{Op: "Cast", Inputs: []string{"x"}, Outputs: []string{o.Name}, Attribute: "to", Int: int64(elementTypes[dtype])})
	}
	path := filepath.Join(t.TempDir(), "model.onnx")
	must.OK(t, os.WriteFile(path, m.Encode(), 0o600))
	return &models.Card{
		Name: "cast", Framework: "onnx", Model: path, Batches: []int{1, 2}, Outputs: outputs,
		Input: models.Input{Name: "x", Height: 2, Width: 1, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC},
	}
}

// Outputs of every type have the model's values, under a name with blanks.
func TestOutputTypes(t *testing.T) {
	for dtype := range elementTypes {
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

// A card with another type is refused, with both.
func TestWrongOutputType(t *testing.T) {
	card := castCard(t, models.I64, models.Tensor{Name: "y", Type: models.F32, Shape: []int64{2, 1, 1}})
	err := start(t, card).LoadModel()
	if err == nil || !strings.Contains(err.Error(), `output "y" is i64 [n, 2, 1, 1] in the model, f32 [n, 2, 1, 1] in the card`) {
		t.Error(err)
	}
}
