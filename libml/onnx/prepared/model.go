// Package prepared keeps ONNX models in the form in which their weights can be shared: a
// graph without weights, which is read in a moment, and a flat file of weights, which goes
// to a GPU as it is (libml/weights). A session is then made of the graph and of addresses.
//
//	Split     an optimised model that ONNX Runtime has saved -> graph, tensors
//	Store     a folder of entries: graph, weights, index; made once, read by all
//
// It knows of ONNX what it changes: initializers, and convolutions in NHWC.
package prepared

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

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

// Tensor types (TensorProto.DataType) that are shared: those that a GPU's kernels take.
// Others are shapes and indices, which may be wanted on the host.
var elementBytes = map[int]int{
	1:  4, // FLOAT
	10: 2, // FLOAT16
	16: 2, // BFLOAT16
}

// Tensor is one in the file of weights.
type Tensor struct {
	Name   string  `json:"name"`
	Type   int     `json:"type"` // TensorProto.DataType, which ONNX Runtime's C API has as well
	Shape  []int64 `json:"shape"`
	Offset int64   `json:"offset"`
	Bytes  int64   `json:"bytes"`
}

// ErrNotShareable is returned by Split where a model's weights have to be private.
var ErrNotShareable = errors.New("weights cannot be shared")

const (
	// weightsFile is what the graph calls the file of weights.
	weightsFile = "weights.bin"
	// leastBytes is the smallest tensor that goes there: a bias of a few numbers costs
	// more as a tensor of its own than as a copy.
	leastBytes = 1 << 10
	// alignment of tensors in the file, which memory for them has as well.
	alignment = 512
)

// The NHWC convolution that ONNX Runtime's layout transformation makes takes its weights
// in NCHW, and transposes them into memory of its own when a session is made
// (core/providers/cuda/nn/conv.cc, PrePack). Its twin in this domain is the same kernel, and
// takes them in NHWC as they are.
const (
	internalNHWC = "com.ms.internal.nhwc"
	microsoft    = "com.microsoft"
	nhwcConv     = "NhwcConv"
)

// nhwcConvTakes are the attributes of NhwcConv.
var nhwcConvTakes = []string{"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}

// node is what is looked at of a NodeProto.
type node struct {
	inputs     []string
	op, domain string
	attributes []string
	nested     bool // it has graphs in it
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
			return fields(f.data, func(a field) error {
				switch a.number {
				case attributeName:
					n.attributes = append(n.attributes, string(a.data))
				case attributeGraph, attributeGraphs:
					n.nested = true
				}
				return nil
			})
		}
		return nil
	})
	return n, err
}

// turns reports whether a node is a convolution whose weights are to be in NHWC.
func (n node) turns() bool {
	return n.op == "Conv" && n.domain == internalNHWC && len(n.inputs) > 1 &&
		!slices.ContainsFunc(n.attributes, func(a string) bool { return !slices.Contains(nhwcConvTakes, a) })
}

// tensor is a TensorProto.
type tensor struct {
	Tensor
	raw      []byte // nil where the values lie elsewhere in it
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
			return packed(f.data, func(v uint64) { t.Shape = append(t.Shape, int64(v)) })
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

// whole reports whether a tensor has as many bytes as its shape says.
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

// splitModel takes an optimised model apart that ONNX Runtime has saved: into its graph, whose
// larger weights are references into a file, and that file's tensors. write is called
// with the file's bytes, in order. ErrNotShareable where the model runs on the CPU in
// part, or has its weights elsewhere.
func splitModel(model []byte, write func([]byte) error) (graph []byte, tensors []Tensor, err error) {
	var body []byte
	if err := fields(model, func(f field) error {
		if f.number == modelGraph {
			body = f.data
		}
		return nil
	}); err != nil {
		return nil, nil, err
	}
	if body == nil {
		return nil, nil, fmt.Errorf("%w: it has no graph", errWire)
	}
	turned, inputs, err := survey(body)
	if err != nil {
		return nil, nil, err
	}
	var out []byte
	at := int64(0)
	err = fields(body, func(f field) error {
		switch f.number {
		case graphNode:
			n, err := readNode(f.data)
			if err == nil && n.turns() && turned[n.inputs[1]] {
				var to []byte
				if to, err = rename(f.data); err == nil {
					out = appendBytes(out, graphNode, to)
					return nil
				}
			}
			out = append(out, f.raw...)
			return err
		case graphInitializer:
			t, err := readTensor(f.data)
			switch {
			case err != nil:
				return err
			case t.external:
				return fmt.Errorf("%w: %s lies in another file", ErrNotShareable, t.Name)
			}
			turn := turned[t.Name]
			if !turn && (inputs[t.Name] || elementBytes[t.Type] == 0 || len(t.raw) < leastBytes || !t.whole()) {
				out = append(out, f.raw...)
				return nil
			}
			if turn {
				t.raw = toNHWC(t.raw, t.Shape, elementBytes[t.Type])
				t.Shape = append(append([]int64{t.Shape[0]}, t.Shape[2:]...), t.Shape[1])
			}
			if pad := -at & (alignment - 1); pad > 0 {
				if err := write(make([]byte, pad)); err != nil {
					return err
				}
				at += pad
			}
			if err := write(t.raw); err != nil {
				return err
			}
			t.Offset = at
			at += t.Bytes
			tensors = append(tensors, t.Tensor)
			out = appendBytes(out, graphInitializer, reference(t.Tensor))
			return nil
		case graphValue: // of weights, it has the shape that they had
			name, err := nameOf(f.data)
			if err != nil || turned[name] {
				return err
			}
		}
		out = append(out, f.raw...)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	if len(tensors) == 0 {
		return nil, nil, fmt.Errorf("%w: it has none of %d bytes or more", ErrNotShareable, leastBytes)
	}
	graph, err = around(model, out, len(turned) > 0)
	return graph, tensors, err
}

// survey finds the weights that are to be in NHWC, those that convolutions alone use, and
// the graph's inputs.
func survey(graph []byte) (turned, inputs map[string]bool, err error) {
	turned, inputs = make(map[string]bool), make(map[string]bool)
	others := make(map[string]bool)
	err = fields(graph, func(f field) error {
		if f.number == graphInput {
			name, err := nameOf(f.data)
			inputs[name] = true
			return err
		}
		if f.number != graphNode {
			return nil
		}
		n, err := readNode(f.data)
		if err != nil {
			return err
		}
		if n.nested {
			return fmt.Errorf("%w: it has graphs within its graph", ErrNotShareable)
		}
		// They stand where a part of the graph runs on the CPU, which cannot read the
		// GPU's memory.
		if n.op == "MemcpyToHost" || n.op == "MemcpyFromHost" {
			return fmt.Errorf("%w: a part of it runs on the CPU", ErrNotShareable)
		}
		for i, name := range n.inputs {
			if i == 1 && n.turns() {
				turned[name] = true
			} else {
				others[name] = true
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	whole := make(map[string]bool)
	err = fields(graph, func(f field) error {
		if f.number != graphInitializer {
			return nil
		}
		t, err := readTensor(f.data)
		if err == nil && len(t.Shape) > 2 && t.whole() {
			whole[t.Name] = true
		}
		return err
	})
	for name := range turned {
		if others[name] || inputs[name] || !whole[name] {
			delete(turned, name)
		}
	}
	return turned, inputs, err
}

// nameOf is a ValueInfoProto's.
func nameOf(message []byte) (name string, err error) {
	err = fields(message, func(f field) error {
		if f.number == valueName {
			name = string(f.data)
		}
		return nil
	})
	return name, err
}

// rename makes the convolution of a NodeProto the one that takes its weights as they are.
func rename(message []byte) (out []byte, err error) {
	err = fields(message, func(f field) error {
		switch f.number {
		case nodeOpType, nodeDomain:
		default:
			out = append(out, f.raw...)
		}
		return nil
	})
	return appendString(appendString(out, nodeOpType, nhwcConv), nodeDomain, microsoft), err
}

// reference is a TensorProto whose values lie in the file of weights.
func reference(t Tensor) (out []byte) {
	for _, d := range t.Shape {
		out = appendVarint(out, tensorDims, uint64(d))
	}
	out = appendVarint(out, tensorType, uint64(t.Type))
	out = appendString(out, tensorName, t.Name)
	for _, e := range [][2]string{
		{"location", weightsFile}, {"offset", strconv.FormatInt(t.Offset, 10)}, {"length", strconv.FormatInt(t.Bytes, 10)},
	} {
		out = appendBytes(out, tensorExternal, appendString(appendString(nil, entryKey, e[0]), entryValue, e[1]))
	}
	return appendVarint(out, tensorLocation, locationExternal)
}

// around is the model with another graph, and the domain of the convolutions among
// those that it imports.
func around(model, graph []byte, convolutions bool) (out []byte, err error) {
	imported := false
	err = fields(model, func(f field) error {
		switch f.number {
		case modelGraph:
			out = appendBytes(out, modelGraph, graph)
			return nil
		case modelOpset:
			if err := fields(f.data, func(o field) error {
				imported = imported || o.number == opsetDomain && string(o.data) == microsoft
				return nil
			}); err != nil {
				return err
			}
		}
		out = append(out, f.raw...)
		return nil
	})
	if convolutions && !imported {
		out = appendBytes(out, modelOpset, appendVarint(appendString(nil, opsetDomain, microsoft), opsetVersion, 1))
	}
	return out, err
}

// packed calls take with each number of a packed field.
func packed(data []byte, take func(uint64)) error {
	for len(data) > 0 {
		v, n := protowire.ConsumeVarint(data)
		if n < 0 {
			return malformed(n)
		}
		take(v)
		data = data[n:]
	}
	return nil
}

// toNHWC moves the second dimension to the end: weights [M, C, kH, kW] become
// [M, kH, kW, C].
func toNHWC(raw []byte, shape []int64, element int) []byte {
	m, c := int(shape[0]), int(shape[1])
	places := len(raw) / (m * c * element)
	out := make([]byte, len(raw))
	for i := range m {
		from, to := raw[i*c*places*element:], out[i*c*places*element:]
		switch element {
		case 2:
			for p := range places {
				for k := range c {
					a, b := 2*(k*places+p), 2*(p*c+k)
					to[b], to[b+1] = from[a], from[a+1]
				}
			}
		default:
			for p := range places {
				for k := range c {
					copy(to[(p*c+k)*element:][:element], from[(k*places+p)*element:])
				}
			}
		}
	}
	return out
}
