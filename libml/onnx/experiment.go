//go:build cgo

package onnx

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/draft"
	"github.com/penstock/penstock/models/onnxfile"
)

// Experiment is a session on the CPU, to learn how a model behaves before it has a card. One goroutine may use it.
type Experiment struct {
	model   *onnxfile.Model
	session *ort.DynamicAdvancedSession
}

// NewExperiment loads a model.
func NewExperiment(path string, model *onnxfile.Model) (*Experiment, error) {
	if err := open(); err != nil {
		return nil, err
	}
	options, err := newOptions(runtime.NumCPU())
	if err != nil {
		return nil, fmt.Errorf("set session options: %w", err)
	}
	defer options.Destroy()
	e := &Experiment{model: model}
	e.session, err = ort.NewDynamicAdvancedSession(path, onnxfile.Names(model.Inputs), onnxfile.Names(model.Outputs), options)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", summarize(&models.Card{Model: path}, err))
	}
	return e, nil
}

// Run runs the model. The inputs are in the model's order; the outputs, too.
func (e *Experiment) Run(inputs []draft.Tensor) (outputs []draft.Tensor, err error) {
	in, out := make([]ort.Value, len(inputs)), make([]ort.Value, len(e.model.Outputs))
	defer func() {
		for _, v := range append(in, out...) {
			if v != nil && !reflect.ValueOf(v).IsNil() { // the wrapper's nil of a type is an output that it cannot allocate
				err = errors.Join(err, v.Destroy())
			}
		}
	}()

	for i := range inputs {
		if in[i], err = newValue(&inputs[i]); err != nil {
			return nil, fmt.Errorf("make input %q: %w", inputs[i].Name, err)
		}
	}
	for i := range out {
		if out[i], err = newOutput(&e.model.Outputs[i], append(inputs[0].Shape, 1)[0]); err != nil {
			return nil, err
		}
	}
	if err := e.session.Run(in, out); err != nil {
		return nil, summarize(&models.Card{}, err)
	}
	for i, v := range out {
		outputs = append(outputs, draft.Tensor{Name: e.model.Outputs[i].Name, Type: e.model.Outputs[i].Type, Shape: append([]int64{}, v.GetShape()...), Values: valuesOf(v, e.model.Outputs[i].Type)})
	}
	return outputs, nil
}

// Close frees the session.
func (e *Experiment) Close() error { return e.session.Destroy() }

// newValue makes an input.
func newValue(t *draft.Tensor) (ort.Value, error) {
	kind := models.DType(t.Type)
	var data []byte
	for _, v := range t.Values {
		data = kind.Append(data, v)
	}
	return newTensor(kind, t.Shape, data)
}

// newOutput returns memory for an output that the wrapper cannot allocate, those in f16 and bf16 and those without axes, and nil
// for others.
func newOutput(v *onnxfile.Value, images int64) (ort.Value, error) {
	t := models.DType(v.Type)
	switch {
	case v.Shape != nil && len(v.Shape) == 0:
		return newTensor(t, nil, make([]byte, t.Bytes()))
	case t != models.F16 && t != models.BF16:
		return nil, nil
	}
	var shape ort.Shape
	for axis, d := range v.Shape {
		if d.Size < 0 && axis == 0 {
			d.Size = images
		}
		shape = append(shape, d.Size)
	}
	if err := shape.Validate(); err != nil {
		return nil, fmt.Errorf("output %s: want a file that says all its sizes except the batch", v)
	}
	return ort.NewCustomDataTensor(shape, make([]byte, int(shape.FlattenedSize())*t.Bytes()), elementTypes[t])
}

// valuesOf returns a tensor's elements, or nothing if they are no numbers.
func valuesOf(v ort.Value, kind string) (values []float64) {
	data := encoded(v)
	if t, ok := v.(*ort.CustomDataTensor); ok {
		data = t.GetData()
	}
	for _, v := range answer.Floats(models.DType(kind), data) {
		values = append(values, float64(v))
	}
	return values
}
