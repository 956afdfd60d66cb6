// Package prepared stores ONNX models in a form that lets processes share the weights: a
// small graph without weights, and a flat file of weights. libml/weights copies the file
// to a GPU as it is. ONNX Runtime then makes a session of the graph and of addresses.
//
//	splitModel  takes the optimised model that ONNX Runtime saved apart: graph, tensors (split.go)
//	Store       a folder of entries: graph, weights, index; made once, read by all (store.go)
//
// The package understands only the parts of ONNX that it changes: initializers, and
// convolutions in NHWC. It copies everything else.
package prepared

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of onnx.proto (ONNX 1.20), by their messages.
const (
	modelOpset = 8
	modelGraph = 7

	opsetDomain  = 1
	opsetVersion = 2

	graphNode        = 1
	graphInitializer = 5
	graphInput       = 11
	graphValue       = 13

	valueName = 1

	nodeInput     = 1
	nodeOpType    = 4
	nodeAttribute = 5
	nodeDomain    = 7

	attributeName   = 1
	attributeGraph  = 6
	attributeGraphs = 11

	tensorDims     = 1
	tensorType     = 2
	tensorName     = 8
	tensorRaw      = 9
	tensorExternal = 13
	tensorLocation = 14

	entryKey   = 1
	entryValue = 2

	locationExternal = 1
)

// elementBytes has the tensor types (TensorProto.DataType) that are shared: those that a
// GPU's kernels take. The host may read the others: they are shapes and indices.
var elementBytes = map[int]int{
	1:  4, // FLOAT
	10: 2, // FLOAT16
	16: 2, // BFLOAT16
}

// Tensor is a tensor in the file of weights.
type Tensor struct {
	Name   string  `json:"name"`
	Type   int     `json:"type"` // TensorProto.DataType; ONNX Runtime's C API has the same numbers
	Shape  []int64 `json:"shape"`
	Offset int64   `json:"offset"`
	Bytes  int64   `json:"bytes"`
}

// ErrNotShareable is returned by Store.Make and Store.Open if each process has to keep its
// own weights of the model.
var ErrNotShareable = errors.New("weights cannot be shared")

// node has the fields of a NodeProto that a split depends on.
type node struct {
	inputs     []string
	op, domain string
	attributes []string
	nested     bool // an attribute holds a graph
}

func readNode(message []byte) (n node, err error) {
	err = fields(message, func(f field) error {
		switch f.number {
		case nodeInput:
			n.inputs = append(n.inputs, string(f.data))
		case nodeOpType:
			n.op = string(f.data)
		case nodeDomain:
			n.domain = string(f.data)
		case nodeAttribute:
			return n.readAttribute(f.data)
		}
		return nil
	})
	return n, err
}

func (n *node) readAttribute(message []byte) error {
	return fields(message, func(f field) error {
		switch f.number {
		case attributeName:
			n.attributes = append(n.attributes, string(f.data))
		case attributeGraph, attributeGraphs:
			n.nested = true
		}
		return nil
	})
}

// tensor is a TensorProto.
type tensor struct {
	Tensor
	raw      []byte // nil if another field has the values
	external bool
}

func readTensor(message []byte) (t tensor, err error) {
	err = fields(message, func(f field) error {
		switch f.number {
		case tensorDims:
			if f.kind == protowire.VarintType {
				t.Shape = append(t.Shape, int64(f.value))
				return nil
			}
			return eachNumber(f.data, func(v uint64) { t.Shape = append(t.Shape, int64(v)) })
		case tensorType:
			t.Type = int(f.value)
		case tensorName:
			t.Name = string(f.data)
		case tensorRaw:
			t.raw = f.data
		case tensorLocation:
			t.external = f.value == locationExternal
		}
		return nil
	})
	t.Bytes = int64(len(t.raw))
	return t, err
}

// whole reports whether a tensor has as many bytes as its shape needs.
func (t *tensor) whole() bool {
	n := int64(elementBytes[t.Type])
	for _, d := range t.Shape {
		if d <= 0 || n > int64(len(t.raw))/d {
			return false
		}
		n *= d
	}
	return n == int64(len(t.raw)) && n > 0
}

// nameOf returns the name of a ValueInfoProto.
func nameOf(message []byte) (name string, err error) {
	err = fields(message, func(f field) error {
		if f.number == valueName {
			name = string(f.data)
		}
		return nil
	})
	return name, err
}

// eachNumber calls take with each number of a packed field.
func eachNumber(data []byte, take func(uint64)) error {
	for len(data) > 0 {
		v, n := protowire.ConsumeVarint(data)
		if n < 0 {
			return wireError(n)
		}
		take(v)
		data = data[n:]
	}
	return nil
}
