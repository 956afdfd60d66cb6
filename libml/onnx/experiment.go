//go:build cgo

package onnx

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/draft"
	"github.com/penstock/penstock/models/onnxfile"
)

// Experiment is a session on the CPU, to learn how a model behaves before it has a card. One goroutine may use it.
type Experiment struct {
	model   *onnxfile.Model
	session *ortSession
}

// NewExperiment loads a model.
func NewExperiment(path string, model *onnxfile.Model) (*Experiment, error) {
	if err := open(); err != nil {
		return nil, err
	}
	file, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	session, err := newCPUSession(file, filepath.Dir(path), runtime.NumCPU())
	if err != nil {
		return nil, fmt.Errorf("load model: %w", summarize(&models.Card{Model: path}, err))
	}
	return &Experiment{model, session}, nil
}

// Run runs the model. The inputs are in the model's order; the outputs, too.
func (e *Experiment) Run(inputs []draft.Tensor) (outputs []draft.Tensor, err error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	var in, out []place
	for _, t := range inputs {
		dtype := models.DType(t.Type)
		if dtype.Bytes() == 0 {
			return nil, fmt.Errorf("make input %q: its type is %s, want numbers", t.Name, t.Type)
		}
		var data []byte
		for _, v := range t.Values {
			data = dtype.Append(data, v)
		}
		if len(data) > 0 {
			pins.Pin(&data[0])
		}
		in = append(in, place{name: t.Name, at: cuda.At(data), bytes: len(data), shape: t.Shape, dtype: dtype})
	}
	for _, v := range e.model.Outputs {
		out = append(out, place{name: v.Name, dtype: models.DType(v.Type)})
	}
	v, err := e.session.newInvocation(in, out)
	if err != nil {
		return nil, err
	}
	defer v.close()
	err = v.run(nil, func(made func(int) ([]int64, []byte)) error {
		for i, o := range out {
			t := draft.Tensor{Name: o.name, Type: string(o.dtype), Shape: []int64{}}
			var data []byte
			if onnxfile.TypeNumber(t.Type) >= 0 { // else a sequence or a map
				t.Shape, data = made(i)
			}
			for _, v := range answer.Floats(o.dtype, data) {
				t.Values = append(t.Values, float64(v))
			}
			outputs = append(outputs, t)
		}
		return nil
	})
	if err != nil {
		return nil, summarize(&models.Card{}, err)
	}
	return outputs, nil
}

// Close frees the session.
func (e *Experiment) Close() error {
	e.session.close()
	return nil
}
