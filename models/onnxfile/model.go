package onnxfile

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Model is what an ONNX file says about itself.
type Model struct {
	IRVersion int64  `json:"ir_version" yaml:"ir_version"`
	Opset     int64  `json:"opset" yaml:"opset"` // of ONNX's own operators
	Producer  string `json:"producer,omitempty" yaml:"producer,omitempty"`
	// Inputs are those that a caller must give: not those that have a value in the file.
	Inputs  []Value `json:"inputs" yaml:"inputs"`
	Outputs []Value `json:"outputs" yaml:"outputs"`
	// Metadata is metadata_props.
	Metadata map[string]string `json:"metadata,omitempty" yaml:"metadata,omitempty"`
	// Data are the names of the files that have weights, relative to the model's folder.
	Data []string `json:"data,omitempty" yaml:"data,omitempty"`
}

// Value is an input or output.
type Value struct {
	Name string `json:"name" yaml:"name"`
	// Type is a models.DType, or ONNX's name of another type.
	Type string `json:"type" yaml:"type"`
	// Shape is nil if the file does not declare one.
	Shape []Dim `json:"shape" yaml:"shape"`
	// Operator computes it, if it is an output.
	Operator string `json:"operator,omitempty" yaml:"operator,omitempty"`
}

// Dim is a dimension: a size, or -1 and a name, which may be empty, for any size.
type Dim struct {
	Size int64  `json:"size" yaml:"size"`
	Name string `json:"name,omitempty" yaml:"name,omitempty"`
}

func (d Dim) String() string {
	switch {
	case d.Size >= 0:
		return fmt.Sprint(d.Size)
	case d.Name != "" && len(d.Name) <= 32:
		return printable(d.Name)
	}
	return "?" // some exporters write formulas
}

func (v Value) String() string { return printable(v.Name) + " " + v.Kind() }

// Kind returns the type and the shape.
func (v Value) Kind() string {
	if v.Shape == nil {
		return v.Type + " of an open shape"
	}
	dims := make([]string, len(v.Shape))
	for i, d := range v.Shape {
		dims[i] = d.String()
	}
	return fmt.Sprintf("%s [%s]", v.Type, strings.Join(dims, ", "))
}

// List describes values on one line.
func List(values []Value) string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = v.String()
	}
	return strings.Join(list, ", ")
}

// Names returns the names of values.
func Names(values []Value) []string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = v.Name
	}
	return list
}

// printable returns a name on one line.
func printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// The fields of onnx.proto that Read reads.
const (
	modelIR, modelProducer, modelGraph, modelOpset, modelMetadata                      = 1, 2, 7, 8, 14
	graphNode, graphInitializer, graphInput, graphOutput, graphSparse protowire.Number = 1, 5, 11, 12, 15
	nodeOutput, nodeOperator, nodeDomain                                               = 2, 4, 7
	opsetDomain, opsetVersion                                                          = 1, 2
	valueName, valueType                                                               = 1, 2
	typeTensor, typeSequence, typeMap, typeSparse, typeOptional                        = 1, 4, 5, 8, 9
	tensorElement, tensorShape, shapeDim, dimValue, dimParam                           = 1, 2, 1, 1, 2
	tensorName, sparseValues, stringKey, stringValue                                   = 8, 1, 1, 2
)

// The bounds of what Read keeps.
const (
	maxValues        = 1024 // inputs, and outputs
	maxRank          = 64
	maxMetadata      = 1024 // entries
	maxMetadataBytes = 4 << 20
)

// types are names of TensorProto.DataType.
var types = [...]string{"undefined", "f32", "u8", "i8", "u16", "i16", "i32", "i64", "string", "bool", "f16", "f64", "u32", "u64", "complex64", "complex128", "bf16"}

// TypeNumber returns the TensorProto.DataType of a models.DType. ONNX Runtime's C API has the same numbers.
func TypeNumber(name string) int { return slices.Index(types[:], name) }

// Read reads what an ONNX file says about itself. It does not read weights, and the model does not run.
func Read(path string) (*Model, error) {
	known, data := inspect(path)
	if known != "" {
		return nil, fmt.Errorf("%s is %s", path, known)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	about, err := file.Stat()
	if err != nil {
		return nil, err
	}
	r := reader{window: window{of: file}, Model: Model{Data: data}}
	if err := r.model(about.Size()); err != nil {
		return nil, fmt.Errorf("%s (%d bytes) is no ONNX model: %w", path, about.Size(), err)
	}
	return &r.Model, nil
}

// reader reads a model's fields in the order of the file.
type reader struct {
	Model
	window
	metadataBytes int64
	given         map[string]bool // whether the file has a value, per input
	outputs       map[string]int  // index in Outputs
}

func (r *reader) model(size int64) error {
	graphs := 0
	err := r.fields(0, size, func(f field) (err error) {
		switch f.number {
		case modelIR:
			r.IRVersion = int64(f.value)
		case modelProducer:
			r.Producer, err = r.text(f, maxNameBytes)
		case modelGraph:
			graphs++
			err = r.graph(f)
		case modelOpset:
			err = r.opset(f)
		case modelMetadata:
			err = r.entry(f)
		}
		return err
	})
	if err == nil && graphs != 1 {
		err = fmt.Errorf("it has %d graphs, want 1", graphs)
	}
	return err
}

// graph reads the inputs and outputs, and then what is known of them: which inputs have a value, and which
// operators compute outputs. ONNX has them in any order.
func (r *reader) graph(graph field) error {
	err := r.fields(graph.from, graph.to, func(f field) error {
		switch f.number {
		case graphInput:
			return r.value(f, &r.Inputs)
		case graphOutput:
			return r.value(f, &r.Outputs)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.given, r.outputs = make(map[string]bool), make(map[string]int)
	for _, v := range r.Inputs {
		r.given[v.Name] = false
	}
	for i, v := range r.Outputs {
		r.outputs[v.Name] = i
	}
	err = r.fields(graph.from, graph.to, func(f field) error {
		switch f.number {
		case graphInitializer:
			return r.initializer(f)
		case graphSparse:
			return r.fields(f.from, f.to, func(v field) error {
				if v.number == sparseValues {
					return r.initializer(v)
				}
				return nil
			})
		case graphNode:
			return r.node(f)
		}
		return nil
	})
	r.Inputs = slices.DeleteFunc(r.Inputs, func(v Value) bool { return r.given[v.Name] })
	return err
}

// initializer notes an input that has a value in the file.
func (r *reader) initializer(tensor field) error {
	return r.fields(tensor.from, tensor.to, func(f field) error {
		if f.number != tensorName {
			return nil
		}
		name, err := r.text(f, maxNameBytes)
		if _, isInput := r.given[name]; isInput {
			r.given[name] = true
		}
		return err
	})
}

// node notes the operator of the outputs that a node computes.
func (r *reader) node(node field) error {
	var operator, domain string
	var computes []int
	err := r.fields(node.from, node.to, func(f field) (err error) {
		switch f.number {
		case nodeOutput:
			var name string
			name, err = r.text(f, maxNameBytes)
			if i, isOutput := r.outputs[name]; isOutput && len(computes) < maxValues {
				computes = append(computes, i)
			}
		case nodeOperator:
			operator, err = r.text(f, maxNameBytes)
		case nodeDomain:
			domain, err = r.text(f, maxNameBytes)
		}
		return err
	})
	if domain != "" && domain != "ai.onnx" {
		operator = domain + "." + operator
	}
	for _, i := range computes {
		r.Outputs[i].Operator = operator
	}
	return err
}

func (r *reader) opset(opset field) error {
	var domain string
	var version int64
	err := r.fields(opset.from, opset.to, func(f field) (err error) {
		switch f.number {
		case opsetDomain:
			domain, err = r.text(f, maxNameBytes)
		case opsetVersion:
			version = int64(f.value)
		}
		return err
	})
	if domain == "" || domain == "ai.onnx" {
		r.Opset = version
	}
	return err
}

func (r *reader) entry(entry field) error {
	var key, value string
	if r.metadataBytes += entry.to - entry.from; r.metadataBytes > maxMetadataBytes || len(r.Metadata) == maxMetadata {
		return fmt.Errorf("its metadata has more than %d bytes or %d entries", maxMetadataBytes, maxMetadata)
	}
	err := r.fields(entry.from, entry.to, func(f field) (err error) {
		switch f.number {
		case stringKey:
			key, err = r.text(f, maxNameBytes)
		case stringValue:
			value, err = r.text(f, maxMetadataBytes)
		}
		return err
	})
	if r.Metadata == nil {
		r.Metadata = make(map[string]string)
	}
	r.Metadata[key] = value
	return err
}

func (r *reader) value(value field, to *[]Value) error {
	var v Value
	if len(*to) == maxValues {
		return fmt.Errorf("it has more than %d inputs or outputs", maxValues)
	}
	err := r.fields(value.from, value.to, func(f field) (err error) {
		switch f.number {
		case valueName:
			v.Name, err = r.text(f, maxNameBytes)
		case valueType:
			err = r.fields(f.from, f.to, func(f field) error { return r.valueType(f, &v) })
		}
		return err
	})
	*to = append(*to, v)
	return err
}

// valueType reads one field of a TypeProto.
func (r *reader) valueType(kind field, v *Value) error {
	switch kind.number {
	case typeSequence:
		v.Type = "sequence"
	case typeMap:
		v.Type = "map"
	case typeSparse:
		v.Type = "sparse tensor"
	case typeOptional:
		v.Type = "optional"
	case typeTensor:
		return r.fields(kind.from, kind.to, func(f field) error {
			switch f.number {
			case tensorElement:
				if v.Type = fmt.Sprintf("type %d", f.value); f.value < uint64(len(types)) {
					v.Type = types[f.value]
				}
			case tensorShape:
				v.Shape = []Dim{}
				return r.fields(f.from, f.to, func(f field) error { return r.dim(f, &v.Shape) })
			}
			return nil
		})
	}
	return nil
}

func (r *reader) dim(dim field, to *[]Dim) error {
	if dim.number != shapeDim {
		return nil
	}
	if len(*to) == maxRank {
		return fmt.Errorf("a shape has more than %d dimensions", maxRank)
	}
	d := Dim{Size: -1}
	err := r.fields(dim.from, dim.to, func(f field) (err error) {
		switch {
		case f.number == dimValue && f.kind == protowire.VarintType:
			d.Size = max(-1, int64(f.value))
		case f.number == dimParam:
			d.Name, err = r.text(f, maxNameBytes)
		}
		return err
	})
	*to = append(*to, d)
	return err
}

// text reads a string of at most that many bytes.
func (r *reader) text(f field, most int64) (string, error) {
	n := f.to - f.from
	if n > most {
		return "", fmt.Errorf("a text at byte %d has %d bytes, want at most %d", f.from, n, most)
	}
	data := r.at(f.from, min(n, maxNameBytes))
	if n > maxNameBytes {
		data = make([]byte, n)
		if _, err := r.of.ReadAt(data, f.from); err != nil {
			return "", err
		}
	}
	if !utf8.Valid(data) {
		return "", fmt.Errorf("a text at byte %d is not UTF-8", f.from)
	}
	return string(data), nil
}
