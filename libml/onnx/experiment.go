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
	e.session, err = ort.NewDynamicAdvancedSession(path, names(model.Inputs), names(model.Outputs), options)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", summarize(&models.Card{Model: path}, err))
	}
	return e, nil
}

func names(values []onnxfile.Value) []string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = v.Name
	}
	return list
}

// Run runs the model. The inputs are in the model's order; the outputs, too.
func (e *Experiment) Run(inputs []draft.Tensor) (outputs []draft.Tensor, err error) {
	in, out := make([]ort.Value, len(inputs)), make([]ort.Value, len(e.model.Outputs))
	defer func() {
		for _, v := range append(in, out...) {
			if v != nil {
				err = errors.Join(err, v.Destroy())
			}
		}
	}()

	for i := range inputs {
		if in[i], err = newValue(&inputs[i]); err != nil {
			in[i] = nil
			return nil, fmt.Errorf("make input %q: %w", inputs[i].Name, err)
		}
	}
	for i := range out {
		if out[i], err = newOutput(&e.model.Outputs[i], append(inputs[0].Shape, 1)[0]); err != nil {
			out[i] = nil
			return nil, err
		}
	}
	if err := e.session.Run(in, out); err != nil {
		return nil, summarize(&models.Card{}, err)
	}
	for i, v := range out {
		outputs = append(outputs, draft.Tensor{Name: e.model.Outputs[i].Name, Type: e.model.Outputs[i].Type, Shape: v.GetShape(), Values: valuesOf(v, e.model.Outputs[i].Type)})
	}
	return outputs, nil
}

// Close frees the session.
func (e *Experiment) Close() error { return e.session.Destroy() }

// newValue makes an input.
func newValue(t *draft.Tensor) (ort.Value, error) {
	kind := models.DType(t.Type)
	element, known := elementTypes[kind]
	switch {
	case !known:
		return nil, fmt.Errorf("its type is %s, want numbers", t.Type)
	case len(t.Shape) > 0:
		var data []byte
		for _, v := range t.Values {
			data = kind.Append(data, v)
		}
		return ort.NewCustomDataTensor(t.Shape, data, element)
	}
	switch v := t.Values[0]; t.Type { // the wrapper's other tensors have at least one axis
	case "i64":
		return ort.NewScalar(int64(v))
	case "i32":
		return ort.NewScalar(int32(v))
	case "f32":
		return ort.NewScalar(float32(v))
	case "bool":
		return ort.NewScalar(v != 0)
	}
	return nil, fmt.Errorf("it is one value of type %s for all images, want bool, i32, i64 or f32", t.Type)
}

// newOutput returns memory for an output that the wrapper cannot allocate, those in f16 and bf16, and nil for others.
func newOutput(v *onnxfile.Value, images int64) (ort.Value, error) {
	t := models.DType(v.Type)
	if t != models.F16 && t != models.BF16 {
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
	if t, ok := v.(*ort.CustomDataTensor); ok {
		for _, v := range answer.Floats(models.DType(kind), t.GetData()) {
			values = append(values, float64(v))
		}
		return values
	}
	data := reflect.ValueOf(elements(v))
	if data.Kind() != reflect.Slice {
		return nil
	}
	values = make([]float64, data.Len())
	for i := range values {
		switch e := data.Index(i); {
		case e.CanFloat():
			values[i] = e.Float()
		case e.CanInt():
			values[i] = float64(e.Int())
		case e.CanUint():
			values[i] = float64(e.Uint())
		case e.Kind() == reflect.Bool && e.Bool():
			values[i] = 1
		}
	}
	return values
}
