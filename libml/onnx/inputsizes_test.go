//go:build cgo

package onnx

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// sizedCard returns the card of a model that multiplies x, of 2, 3 or 6 rows of 2 values, with a constant of so many rows.
func sizedCard(t *testing.T, rows int64, output string) *models.Card {
	t.Helper()
	dir := t.TempDir()
	model := tinymodel.Model{
		Inputs: []tinymodel.Value{
			{Name: "x", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, tinymodel.Dynamic, 2}}, {Name: "two", Type: tinymodel.F32, Dims: []int64{rows, 2}},
		},
		Outputs: []tinymodel.Value{{Name: "y", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, tinymodel.Dynamic, tinymodel.Dynamic}}},
		Nodes:   []tinymodel.Node{{Op: "Mul", Inputs: []string{"x", "two"}, Outputs: []string{"y"}}},
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), model.Encode(), 0o600))
	text := "name: sized\nversion: 1\nframework: onnx\nmodel: model.onnx\nslo: 1s\nbatches: [1, 2]\nconstants: {two: 2}\n" +
		"inputs: [{name: x, shape: [6, 2]}]\nlengths: [2, 3, 6]\noutputs: [{name: y, " + output + "}]\n"
	must.OK(t, os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(text), 0o600))
	card, err := models.ReadCard(filepath.Join(dir, "card.yaml"))
	must.OK(t, err)
	return card
}

// All sizes run in one session. Each has the shapes of outputs that a run has shown.
func TestSized(t *testing.T) {
	card := sizedCard(t, 1, "shape: [6, 2]")
	f := linked(t, card)
	for size, rows := range []int64{2, 3} {
		of := card.Sized(size)
		sized, took, err := f.Sized(of)
		must.OK(t, err)
		if shape := of.Outputs[0].Shape; !slices.Equal(shape, []int64{rows, 2}) || took <= 0 {
			t.Errorf("output of shape %v, want %d rows, in %v", shape, rows, took)
		}
		const n = 2
		var x, want []byte
		for i := range n * 2 * rows {
			x, want = models.F32.Append(x, float64(i)), models.F32.Append(want, float64(2*i))
		}
		y := make([]byte, len(x))
		_, err = sized.ConfigureBatch(0, n, device.HostBuffers(x), device.HostBuffers(y))
		must.OK(t, err)
		must.OK(t, sized.InferBatch(0, n))
		if !bytes.Equal(y, want) {
			t.Errorf("%d rows: %v, want %v", rows, y, want)
		}
	}
	if shape := card.Outputs[0].Shape; !slices.Equal(shape, []int64{6, 2}) {
		t.Errorf("the card's own output has shape %v now", shape)
	}
}

func TestSizedErrors(t *testing.T) {
	for name, c := range map[string]struct {
		rows   int64
		output []int64
		want   string
	}{
		"another number of axes":       {1, []int64{6, 2, 1}, `output "y" has shape [1 2 2] in a batch of 1, and [6 2 1] in the card without the batch`},
		"a size that is not for model": {6, []int64{6, 2}, "axis == 1 || axis == largest was false. Attempting to broadcast an axis by a dimension other than 1. 2 by 6"},
	} {
		t.Run(name, func(t *testing.T) {
			card := sizedCard(t, c.rows, "shape: [6, 2]")
			f, of := linked(t, card), card.Sized(0)
			of.Outputs[0].Shape = c.output
			if _, _, err := f.Sized(of); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %s", err, c.want)
			}
		})
	}
}
