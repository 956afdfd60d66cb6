package openinference

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// Tensor is an output for a batch of pictures. Values are float32, int32, uint8 or string, or the elements of a wire.Tensor;
// there are as many as the shape says, in row-major order.
type Tensor struct {
	Name   string
	Shape  []int64
	Values any // []float32, []int32, []uint8, []string or *wire.Tensor
}

// noClass fills the places of a picture that has fewer boxes than another of its batch.
const noClass = -1

// Answer is what the answer to one picture contains, by its kind.
type Answer struct {
	Kind wire.Kind
	wire.Content
}

// Outputs returns the output tensors of a batch of answers, all of one kind:
//
//	boxes      boxes [n, m, 4] (x0, y0, x1, y1), scores [n, m], classes [n, m], labels [n, m]
//	points     the same, and points [n, m, p, 3] (x, y, score)
//	masks      the same, and masks [n, m, rows, columns] of 0 and 1
//	polygons   corners [n, m, c, 2] (x, y), scores, classes and labels
//	topk       scores [n, k], classes [n, k], labels [n, k]
//	map        map [n, rows, columns]: classes, or numbers
//	text       text [n], scores [n]
//	embedding  embedding [n, values]
//	raw        the model's outputs by their names, [n, shape...]; tensors: the same, of any type
//
// m is the max number of boxes of a picture. The others are filled with class -1, score 0 and an
// empty label. Polygons with fewer corners repeat the last one. There are no labels if the card has none.
func Outputs(card *models.Card, answers []Answer) ([]Tensor, error) {
	if len(answers) == 0 {
		return nil, nil
	}
	first := &answers[0]
	for i := range answers {
		a := &answers[i]
		if a.Kind != first.Kind || a.Map.Rows != first.Map.Rows || a.Map.Columns != first.Map.Columns || a.Map.Element != first.Map.Element {
			return nil, fmt.Errorf("answer %d is of kind %v, the first of kind %v: the model was replaced meanwhile", i, a.Kind, first.Kind)
		}
	}
	n := int64(len(answers))
	switch first.Kind {
	case wire.KindRaw:
		return rawOutputs(card, answers)
	case wire.KindTensors:
		return tensorOutputs(answers)
	case wire.KindEmbedding:
		var values []float32
		for i := range answers {
			values = append(values, answers[i].Values...)
		}
		return []Tensor{{"embedding", []int64{n, int64(len(values)) / n}, values}}, nil
	case wire.KindMap:
		return mapOutputs(answers), nil
	case wire.KindText:
		texts, scores := []string{}, []float32{}
		for i := range answers {
			texts, scores = append(texts, answers[i].Text), append(scores, answers[i].TextScore)
		}
		return []Tensor{{"text", []int64{n}, texts}, {"scores", []int64{n}, scores}}, nil
	}
	return foundOutputs(card, answers), nil
}

func mapOutputs(answers []Answer) []Tensor {
	m := &answers[0].Map
	t := Tensor{Name: "map", Shape: []int64{int64(len(answers)), int64(m.Rows), int64(m.Columns)}}
	classes, values := []int32{}, []float32{}
	for i := range answers {
		for _, class := range answers[i].Map.Classes {
			classes = append(classes, int32(class))
		}
		values = append(values, answers[i].Map.Values...)
	}
	if t.Values = values; m.Element == wire.MapClasses {
		t.Values = classes
	}
	return []Tensor{t}
}

// foundOutputs are the outputs of answers with classes, boxes or polygons.
func foundOutputs(card *models.Card, answers []Answer) []Tensor {
	n, most, sides, perBox, rows, columns := len(answers), 0, 0, 0, 0, 0
	for i := range answers {
		a := &answers[i]
		most = max(most, len(a.Boxes), len(a.Classes), len(a.Polygons))
		perBox, rows, columns = max(perBox, a.PerBox), max(rows, a.Rows), max(columns, a.Columns)
		for _, p := range a.Polygons {
			sides = max(sides, len(p.Points))
		}
	}
	corners, scores, classes := []float32{}, []float32{}, []int32{}
	points, outlines, masks := make([]float32, n*most*perBox*3), make([]float32, n*most*sides*2), make([]uint8, n*most*rows*columns)
	for i := range answers {
		for j := range most {
			box, score, class := wire.Box{}, float32(0), int32(noClass)
			place := i*most + j
			switch a := &answers[i]; {
			case j < len(a.Boxes):
				box, score, class = a.Boxes[j], a.Boxes[j].Score, int32(a.Boxes[j].Class)
				for k := range a.PerBox {
					p := a.Points[j*a.PerBox+k]
					copy(points[(place*perBox+k)*3:], []float32{p.X, p.Y, p.Score})
				}
				if j < len(a.Masks) {
					fillMask(masks[place*rows*columns:], &a.Masks[j], columns)
				}
			case j < len(a.Polygons):
				p := &a.Polygons[j]
				score, class = p.Score, int32(p.Class)
				for k := 0; k < sides && len(p.Points) > 0; k++ {
					c := p.Points[min(k, len(p.Points)-1)]
					copy(outlines[(place*sides+k)*2:], []float32{c.X, c.Y})
				}
			case j < len(a.Classes):
				score, class = a.Classes[j].P, int32(a.Classes[j].Class)
			}
			corners = append(corners, box.X0, box.Y0, box.X1, box.Y1)
			scores = append(scores, score)
			classes = append(classes, class)
		}
	}

	shape := []int64{int64(n), int64(most)}
	of := func(sizes ...int64) []int64 { return append(shape[:2:2], sizes...) }
	outputs := []Tensor{{"scores", shape, scores}, {"classes", shape, classes}}
	switch answers[0].Kind {
	case wire.KindBoxes, wire.KindPoints, wire.KindMasks:
		outputs = append([]Tensor{{"boxes", of(4), corners}}, outputs...)
	case wire.KindPolygons:
		outputs = append([]Tensor{{"corners", of(int64(sides), 2), outlines}}, outputs...)
	}
	switch answers[0].Kind {
	case wire.KindPoints:
		outputs = append(outputs, Tensor{"points", of(int64(perBox), 3), points})
	case wire.KindMasks:
		outputs = append(outputs, Tensor{"masks", of(int64(rows), int64(columns)), masks})
	}
	if len(card.Labels) > 0 {
		outputs = append(outputs, Tensor{"labels", shape, labels(card, classes)})
	}
	return outputs
}

// fillMask sets the cells of a mask in a grid with this many columns.
func fillMask(grid []uint8, m *wire.Mask, columns int) {
	for i := range int(m.Columns) * int(m.Rows) {
		if m.Bits[i/8]>>(i%8)&1 == 1 {
			grid[(int(m.Y)+i/int(m.Columns))*columns+int(m.X)+i%int(m.Columns)] = 1
		}
	}
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

func tensorOutputs(answers []Answer) (outputs []Tensor, err error) {
	for k, t := range answers[0].Tensors {
		all := t
		all.Data = nil
		for i := range answers {
			if k >= len(answers[i].Tensors) || len(answers[i].Tensors[k].Data) != len(t.Data) || answers[i].Tensors[k].Type != t.Type {
				return nil, fmt.Errorf("answer %d has another output %s than the first: the model was replaced meanwhile", i, t.Name)
			}
			all.Data = append(all.Data, answers[i].Tensors[k].Data...)
		}
		outputs = append(outputs, Tensor{t.Name, append([]int64{int64(len(answers))}, t.Shape...), &all})
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
		Name       string  `json:"name"`
		Shape      []int64 `json:"shape"`
		Datatype   string  `json:"datatype"`
		Parameters any     `json:"parameters,omitempty"`
		Data       any     `json:"data,omitempty"`
	}
)

// EncodeResponse encodes the answer to a request. headerLength is the value of HeaderLength, 0
// if no output is binary. parameters are the response's own.
func EncodeResponse(r *Request, name, version string, parameters map[string]int64, outputs []Tensor) (body []byte, headerLength int, err error) {
	response := responseJSON{ModelName: name, ModelVersion: version, ID: r.ID, Parameters: parameters, Outputs: []tensorJSON{}}
	var raw []byte
	for _, w := range r.wanted(outputs) {
		t, err := r.output(outputs, &w)
		if err != nil {
			return nil, 0, err
		}
		out := tensorJSON{Name: t.Name, Shape: t.Shape, Datatype: t.datatype()}
		if w.Region != "" {
			data := t.appendBinary(nil)
			if err := r.store(&w, data); err != nil {
				return nil, 0, err
			}
			// Without parameters: Triton's client in C++ wants binary_data_size in them.
		} else if w.binary {
			before := len(raw)
			raw = t.appendBinary(raw)
			out.Parameters = map[string]int64{"binary_data_size": int64(len(raw) - before)}
		} else {
			out.Data = wire.JSONNumbers(t.values())
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

// store writes an output to its region.
func (r *Request) store(w *outputWanted, data []byte) error {
	if uint64(len(data)) > w.Size {
		return &ErrOutput{fmt.Sprintf("output %q has %d bytes, its shared_memory_byte_size is %d", w.name, len(data), w.Size)}
	}
	_, err := r.regions(w.Region, w.Offset, uint64(len(data)), data)
	return err
}

// wanted returns the outputs that a response has, in order.
func (r *Request) wanted(outputs []Tensor) (wanted []outputWanted) {
	if len(r.outputs) > 0 {
		return r.outputs
	}
	for _, t := range outputs {
		wanted = append(wanted, outputWanted{name: t.Name, binary: r.binary})
	}
	return wanted
}

// ErrOutput is the error for a wanted output that the function does not have.
type ErrOutput struct{ text string }

func (e *ErrOutput) Error() string { return e.text }

// output returns a wanted output.
func (r *Request) output(outputs []Tensor, w *outputWanted) (*Tensor, error) {
	t, err := find(outputs, w.name)
	if err != nil || w.classes == 0 {
		return t, err
	}
	var classes []int32
	if c, err := find(outputs, "classes"); err == nil && w.name == "scores" {
		classes, _ = c.Values.([]int32) // an output of the model may have this name
	}
	return t.classify(w.classes, classes, r.labels)
}

// classify returns the highest elements of each image as texts "value:class:label", as Triton writes them. The class of an element is
// its place, if there are no classes. Places without a class are empty.
func (t *Tensor) classify(most int, classes []int32, labels []string) (*Tensor, error) {
	values := reflect.ValueOf(t.values())
	format := "%d:%d"
	switch values.Type().Elem().Kind() {
	case reflect.String, reflect.Bool:
		return nil, &ErrOutput{fmt.Sprintf("output %q has elements of %s, want an output of numbers for a classification", t.Name, t.datatype())}
	case reflect.Float32, reflect.Float64:
		format = "%f:%d"
	}
	value := func(i int) float64 { return values.Index(i).Convert(reflect.TypeFor[float64]()).Float() }
	size := values.Len() / int(t.Shape[0])
	most = min(most, size)
	texts := []string{}
	for first := 0; first < values.Len(); first += size {
		order := make([]int, size)
		for i := range order {
			order[i] = first + i
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(value(b), value(a)) })
		for _, i := range order[:most] {
			class, text := i-first, ""
			if classes != nil {
				class = int(classes[i])
			}
			if class >= 0 {
				text = fmt.Sprintf(format, values.Index(i), class)
			}
			if class >= 0 && class < len(labels) {
				text += ":" + labels[class]
			}
			texts = append(texts, text)
		}
	}
	return &Tensor{t.Name, []int64{t.Shape[0], int64(most)}, texts}, nil
}

func find(outputs []Tensor, name string) (*Tensor, error) {
	var names []string
	for i := range outputs {
		if outputs[i].Name == name {
			return &outputs[i], nil
		}
		names = append(names, outputs[i].Name)
	}
	return nil, &ErrOutput{fmt.Sprintf("function has no output %q, want one of %s", name, strings.Join(names, ", "))}
}

func (t *Tensor) datatype() string {
	switch values := t.Values.(type) {
	case *wire.Tensor:
		return datatypes[models.DType(values.Type)]
	case []int32:
		return "INT32"
	case []uint8:
		return "UINT8"
	case []string:
		return "BYTES"
	}
	return "FP32"
}

// values returns the values as a slice.
func (t *Tensor) values() any {
	if elements, ok := t.Values.(*wire.Tensor); ok {
		return elements.Values()
	}
	return t.Values
}

// appendBinary appends the values in little endian; a string is its length, 4 bytes, and its bytes.
func (t *Tensor) appendBinary(raw []byte) []byte {
	if raw == nil {
		raw = []byte{}
	}
	if t, ok := t.Values.(*wire.Tensor); ok {
		return append(raw, t.Data...)
	}
	texts, ok := t.Values.([]string)
	if !ok {
		raw, _ = binary.Append(raw, binary.LittleEndian, t.Values) // it knows slices of all numbers
	}
	for _, v := range texts {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(len(v)))
		raw = append(raw, v...)
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
	}
	for _, t := range inputs(card) {
		m.Inputs = append(m.Inputs, TensorMetadata{t.Name, datatypes[t.Type], slices.Insert(slices.Clone(t.Shape), 0, -1)})
	}
	// The outputs of an answer in which nothing was found: a size of 0 varies.
	empty := Answer{Kind: card.Kind()}
	for _, o := range card.Outputs {
		if empty.Kind == wire.KindRaw {
			empty.Values = make([]float32, o.Elements())
		}
		empty.Tensors = append(empty.Tensors, wire.Tensor{Name: o.Name, Type: string(o.Type), Shape: o.Shape})
	}
	if card.Decoder.Params["cells"] != "classes" {
		empty.Map.Element = wire.MapF16
	}
	outputs, _ := Outputs(card, []Answer{empty}) // it has all values of the card's outputs
	for _, t := range outputs {
		t.Shape[0] = -1
		for i, n := range t.Shape {
			if n == 0 {
				t.Shape[i] = -1
			}
		}
		m.Outputs = append(m.Outputs, TensorMetadata{t.Name, t.datatype(), t.Shape})
	}
	return m
}

func platform(card *models.Card) string {
	if card.Framework == "" {
		return "program"
	}
	return card.Framework
}
