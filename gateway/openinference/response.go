package openinference

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// Tensor is an output for a batch of pictures. Values are float32, int32 or string; there are as
// many as the shape says, in row-major order.
type Tensor struct {
	Name   string
	Shape  []int64
	Values any // []float32, []int32 or []string
}

// noClass fills the places of a picture that has fewer boxes than another of its batch.
const noClass = -1

// Answer is what the answer to one picture contains, by its kind.
type Answer struct {
	Kind    wire.Kind
	Boxes   []wire.Box
	Classes []wire.Class
	Values  []float32
}

// Outputs returns the output tensors of a batch of answers, all of one kind:
//
//	boxes    boxes [n, m, 4] (x0, y0, x1, y1), scores [n, m], classes [n, m], labels [n, m]
//	topk     scores [n, k], classes [n, k], labels [n, k]
//	raw      the model's outputs by their names, [n, shape...]
//
// m is the max number of boxes of a picture. The others are filled with class -1, score 0 and an
// empty label. There are no labels if the card has none.
func Outputs(card *models.Card, answers []Answer) ([]Tensor, error) {
	if len(answers) == 0 {
		return nil, nil
	}
	kind := answers[0].Kind
	for i := range answers {
		if answers[i].Kind != kind {
			return nil, fmt.Errorf("answer %d is of kind %v, the first of kind %v: the model was replaced meanwhile", i, answers[i].Kind, kind)
		}
	}
	if kind == wire.KindRaw {
		return rawOutputs(card, answers)
	}

	n, most := int64(len(answers)), 0
	for i := range answers {
		most = max(most, len(answers[i].Boxes), len(answers[i].Classes))
	}
	corners, scores, classes := []float32{}, []float32{}, []int32{}
	for i := range answers {
		for j := range most {
			box, score, class := wire.Box{}, float32(0), int32(noClass)
			switch a := &answers[i]; {
			case j < len(a.Boxes):
				box, score, class = a.Boxes[j], a.Boxes[j].Score, int32(a.Boxes[j].Class)
			case j < len(a.Classes):
				score, class = a.Classes[j].P, int32(a.Classes[j].Class)
			}
			corners = append(corners, box.X0, box.Y0, box.X1, box.Y1)
			scores = append(scores, score)
			classes = append(classes, class)
		}
	}

	shape := []int64{n, int64(most)}
	outputs := []Tensor{{"scores", shape, scores}, {"classes", shape, classes}}
	if kind == wire.KindBoxes {
		outputs = append([]Tensor{{"boxes", append(shape[:2:2], 4), corners}}, outputs...)
	}
	if len(card.Labels) > 0 {
		outputs = append(outputs, Tensor{"labels", shape, labels(card, classes)})
	}
	return outputs, nil
}

func labels(card *models.Card, classes []int32) []string {
	names := make([]string, len(classes))
	for i, class := range classes {
		if class >= 0 && int(class) < len(card.Labels) {
			names[i] = card.Labels[class]
		}
	}
	return names
}

func rawOutputs(card *models.Card, answers []Answer) ([]Tensor, error) {
	var outputs []Tensor
	offset := 0
	for _, o := range card.Outputs {
		t := Tensor{Name: o.Name, Shape: append([]int64{int64(len(answers))}, o.Shape...)}
		var values []float32
		for i := range answers {
			if offset+o.Elements() > len(answers[i].Values) {
				return nil, fmt.Errorf("answer %d has %d values, too few for output %s: the model was replaced meanwhile", i, len(answers[i].Values), o.Name)
			}
			values = append(values, answers[i].Values[offset:offset+o.Elements()]...)
		}
		t.Values = values
		outputs = append(outputs, t)
		offset += o.Elements()
	}
	return outputs, nil
}

// The JSON of a response.
type (
	responseJSON struct {
		ModelName    string           `json:"model_name"`
		ModelVersion string           `json:"model_version"`
		ID           string           `json:"id,omitempty"`
		Parameters   map[string]int64 `json:"parameters,omitempty"`
		Outputs      []tensorJSON     `json:"outputs"`
	}
	tensorJSON struct {
		Name       string           `json:"name"`
		Shape      []int64          `json:"shape"`
		Datatype   string           `json:"datatype"`
		Parameters map[string]int64 `json:"parameters,omitempty"`
		Data       any              `json:"data,omitempty"`
	}
)

// EncodeResponse encodes the answer to a request. headerLength is the value of HeaderLength, 0
// if no output is binary. parameters are the response's own.
func EncodeResponse(r *Request, name, version string, parameters map[string]int64, outputs []Tensor) (body []byte, headerLength int, err error) {
	response := responseJSON{ModelName: name, ModelVersion: version, ID: r.ID, Parameters: parameters, Outputs: []tensorJSON{}}
	wanted := r.outputs
	if len(wanted) == 0 {
		for _, t := range outputs {
			wanted = append(wanted, outputWanted{t.Name, r.binary})
		}
	}
	var raw []byte
	for _, w := range wanted {
		t, err := find(outputs, w.name)
		if err != nil {
			return nil, 0, err
		}
		out := tensorJSON{Name: t.Name, Shape: t.Shape, Datatype: t.datatype()}
		if w.binary {
			before := len(raw)
			raw = t.appendBinary(raw)
			out.Parameters = map[string]int64{"binary_data_size": int64(len(raw) - before)}
		} else {
			out.Data = t.jsonValues()
		}
		response.Outputs = append(response.Outputs, out)
	}
	body, err = json.Marshal(response)
	if err != nil {
		return nil, 0, fmt.Errorf("encode response: %w", err)
	}
	if raw == nil {
		return body, 0, nil
	}
	return append(body, raw...), len(body), nil
}

// ErrOutput is the error for a wanted output that the function does not have.
type ErrOutput struct{ Name, Has string }

func (e *ErrOutput) Error() string {
	return fmt.Sprintf("function has no output %q, want one of %s", e.Name, e.Has)
}

func find(outputs []Tensor, name string) (*Tensor, error) {
	var names []string
	for i := range outputs {
		if outputs[i].Name == name {
			return &outputs[i], nil
		}
		names = append(names, outputs[i].Name)
	}
	return nil, &ErrOutput{name, strings.Join(names, ", ")}
}

func (t *Tensor) datatype() string {
	switch t.Values.(type) {
	case []int32:
		return "INT32"
	case []string:
		return "BYTES"
	}
	return "FP32"
}

// jsonValues returns the values for JSON, which has no NaN and no infinity: these become null.
func (t *Tensor) jsonValues() any {
	values, ok := t.Values.([]float32)
	if !ok {
		return t.Values
	}
	out := make([]*float32, len(values))
	for i, v := range values {
		if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
			out[i] = &values[i]
		}
	}
	return out
}

// appendBinary appends the values in little endian; a string is its length, 4 bytes, and its bytes.
func (t *Tensor) appendBinary(raw []byte) []byte {
	if raw == nil {
		raw = []byte{}
	}
	switch values := t.Values.(type) {
	case []float32:
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
	case []int32:
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(v))
		}
	case []string:
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(len(v)))
			raw = append(raw, v...)
		}
	}
	return raw
}

// Metadata is a function's description in the protocol.
type Metadata struct {
	Name     string           `json:"name"`
	Versions []string         `json:"versions"`
	Platform string           `json:"platform"`
	Inputs   []TensorMetadata `json:"inputs"`
	Outputs  []TensorMetadata `json:"outputs"`
}

// TensorMetadata describes a tensor; -1 is a dimension that varies.
type TensorMetadata struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

// Describe returns the metadata of a function.
func Describe(name string, card *models.Card) Metadata {
	m := Metadata{
		Name: name, Versions: []string{fmt.Sprint(card.Version)}, Platform: "penstock_" + platform(card),
		Inputs: []TensorMetadata{{InputName(&card.Input), datatypes[card.Input.WireType], append([]int64{-1}, pictureShape(&card.Input)...)}},
	}
	switch card.Decoder.Name {
	case "raw":
		for _, o := range card.Outputs {
			m.Outputs = append(m.Outputs, TensorMetadata{o.Name, "FP32", append([]int64{-1}, o.Shape...)})
		}
		return m
	case "boxes":
		m.Outputs = append(m.Outputs, TensorMetadata{"boxes", "FP32", []int64{-1, -1, 4}})
	}
	varies := []int64{-1, -1}
	m.Outputs = append(m.Outputs, TensorMetadata{"scores", "FP32", varies}, TensorMetadata{"classes", "INT32", varies})
	if len(card.Labels) > 0 {
		m.Outputs = append(m.Outputs, TensorMetadata{"labels", "BYTES", varies})
	}
	return m
}

func platform(card *models.Card) string {
	if card.Framework == "" {
		return "program"
	}
	return card.Framework
}
