//go:build cgo

package onnx

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/draft"
	"github.com/penstock/penstock/models/onnxfile"
)

// experiment loads a model that casts x of one type to y of another.
func experiment(t *testing.T, from, to models.DType, dims ...int64) *Experiment {
	t.Helper()
	m := tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "x", Type: tinymodel.Type(typeNumber(from)), Dims: dims}},
		Outputs: []tinymodel.Value{{Name: "y", Type: tinymodel.Type(typeNumber(to)), Dims: dims}},
		Nodes:   []tinymodel.Node{{Op: "Cast", Inputs: []string{"x"}, Outputs: []string{"y"}, Attribute: "to", Int: int64(typeNumber(to))}},
	}
	path := filepath.Join(t.TempDir(), "model.onnx")
	must.OK(t, os.WriteFile(path, m.Encode(), 0o600))
	model, err := onnxfile.Read(path)
	must.OK(t, err)
	e, err := NewExperiment(path, model)
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, e.Close()) })
	return e
}

// Inputs and outputs of every type have the model's values, for any batch.
func TestExperiment(t *testing.T) {
	for _, dtype := range allTypes {
		for _, c := range [][2]models.DType{{dtype, models.F32}, {models.F32, dtype}} {
			e := experiment(t, c[0], c[1], tinymodel.Dynamic, 2)
			for n := range int64(2) {
				values := []float64{0, 1, 1, 0}[:2*(n+1)]
				got, err := e.Run([]draft.Tensor{{Name: "x", Type: string(c[0]), Shape: []int64{n + 1, 2}, Values: values}})
				if err != nil || !slices.Equal(got[0].Values, values) || !slices.Equal(got[0].Shape, []int64{n + 1, 2}) || got[0].Type != string(c[1]) {
					t.Errorf("%s to %s: %+v, %v", c[0], c[1], got, err)
				}
			}
		}
	}
}

// Inputs and outputs without axes have one value.
func TestExperimentWithoutAxes(t *testing.T) {
	for _, dtype := range allTypes {
		for _, c := range [][2]models.DType{{dtype, models.F32}, {models.F32, dtype}} {
			got, err := experiment(t, c[0], c[1]).Run([]draft.Tensor{{Name: "x", Type: string(c[0]), Values: []float64{1}}})
			if err != nil || !slices.Equal(got[0].Values, []float64{1}) || got[0].Shape == nil || len(got[0].Shape) > 0 {
				t.Errorf("%s to %s: %+v, %v", c[0], c[1], got, err)
			}
		}
	}
}

func TestExperimentErrors(t *testing.T) {
	e := experiment(t, models.F32, models.F16, tinymodel.Dynamic, tinymodel.Dynamic)
	for want, x := range map[string]draft.Tensor{
		"its type is string": {Name: "x", Type: "string", Shape: []int64{1, 1}, Values: []float64{0}},
	} {
		if _, err := e.Run([]draft.Tensor{x}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := experiment(t, models.F32, models.F32, 1, 2).Run([]draft.Tensor{{Name: "x", Type: "f32", Shape: []int64{2, 2}, Values: make([]float64, 4)}}); err == nil || !strings.Contains(err.Error(), "Got: 2 Expected: 1") {
		t.Error(err)
	}
}
