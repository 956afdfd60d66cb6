// Package tinymodel writes small ONNX models for tests, without ONNX's Python
// package. It implements the part of onnx.proto (IR version 8, opset 13) that the
// tests need.
package tinymodel

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Type is a TensorProto.DataType.
type Type uint64

// The element types of onnx.proto.
const (
	F32 Type = 1
	U8  Type = 2
	I8  Type = 3
	I32 Type = 6
	I64 Type = 7
	F16 Type = 10
)

// Dynamic is a dimension of any size.
const Dynamic = -1

// Value is an input or output.
type Value struct {
	Name string
	Type Type
	Dims []int64
}

// Node is an operator with at most one attribute.
type Node struct {
	Op              string
	Inputs, Outputs []string
	// Attribute is an integer attribute, if it has a name.
	Attribute string
	Int       int64
}

// Weights is an f32 initializer.
type Weights struct {
	Name   string
	Dims   []int64
	Values []float32
	File   string // that has the values; empty: the model has them
}

// Model is a graph.
type Model struct {
	Inputs, Outputs []Value
	Nodes           []Node
	Weights         []Weights
}

// Linear is a model that casts its input x to f32, flattens each image and multiplies
// it by weights. outputs is the length of y. Weight (i, o) is (i+1)·(o+1) / 1024, so
// that answers for small pictures are exact in f32. The first dimension is the batch,
// which may be Dynamic.
func Linear(in Type, outputs int, dims ...int64) Model {
	image := int64(1)
	for _, d := range dims[1:] {
		image *= d
	}
	w := Weights{Name: "w", Dims: []int64{image, int64(outputs)}}
	for i := range image {
		for o := range outputs {
			w.Values = append(w.Values, float32(i+1)*float32(o+1)/1024)
		}
	}
	return Model{
		Inputs:  []Value{{"x", in, dims}},
		Outputs: []Value{{"y", F32, []int64{dims[0], int64(outputs)}}},
		Nodes: []Node{
			{Op: "Cast", Inputs: []string{"x"}, Outputs: []string{"c"}, Attribute: "to", Int: int64(F32)},
			{Op: "Flatten", Inputs: []string{"c"}, Outputs: []string{"f"}, Attribute: "axis", Int: 1},
			{Op: "MatMul", Inputs: []string{"f", "w"}, Outputs: []string{"y"}},
		},
		Weights: []Weights{w},
	}
}

// Encode writes the model as a ModelProto.
func (m Model) Encode() []byte {
	var graph message
	for _, n := range m.Nodes {
		graph.message(1, n.encode())
	}
	graph.text(2, "tiny")
	for _, w := range m.Weights {
		graph.message(5, w.encode())
	}
	for _, v := range m.Inputs {
		graph.message(11, v.encode())
	}
	for _, v := range m.Outputs {
		graph.message(12, v.encode())
	}

	var opset, model message
	opset.number(2, 13)
	model.number(1, 8)
	model.message(7, graph)
	model.message(8, opset)
	return model
}

func (n Node) encode() (node message) {
	for _, name := range n.Inputs {
		node.text(1, name)
	}
	for _, name := range n.Outputs {
		node.text(2, name)
	}
	node.text(4, n.Op)
	if n.Attribute != "" {
		const typeInt = 2
		var a message
		a.text(1, n.Attribute)
		a.number(3, uint64(n.Int))
		a.number(20, typeInt)
		node.message(5, a)
	}
	return node
}

func (v Value) encode() (value message) {
	var shape message
	for _, d := range v.Dims {
		var dim message
		if d == Dynamic {
			dim.text(2, "n")
		} else {
			dim.number(1, uint64(d))
		}
		shape.message(1, dim)
	}
	var tensor, kind message
	tensor.number(1, uint64(v.Type))
	tensor.message(2, shape)
	kind.message(1, tensor)
	value.text(1, v.Name)
	value.message(2, kind)
	return value
}

func (w Weights) encode() (tensor message) {
	for _, d := range w.Dims {
		tensor.number(1, uint64(d))
	}
	tensor.number(2, uint64(F32))
	tensor.text(8, w.Name)
	if w.File == "" {
		tensor.message(9, w.Data())
		return tensor
	}
	const locationExternal = 1
	var location message
	location.text(1, "location")
	location.text(2, w.File)
	tensor.message(13, location)
	tensor.number(14, locationExternal)
	return tensor
}

// Data returns the values as they are in a file.
func (w Weights) Data() (data []byte) {
	for _, v := range w.Values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return data
}

// message is a protobuf message under construction.
type message []byte

func (m *message) number(field protowire.Number, v uint64) {
	*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.VarintType), v)
}

func (m *message) message(field protowire.Number, b []byte) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), b)
}

func (m *message) text(field protowire.Number, s string) { m.message(field, []byte(s)) }
