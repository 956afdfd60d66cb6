package prepared

import (
	"fmt"
	"slices"
	"strconv"
)

// A split takes a model apart in three steps:
//
//	1 surveyGraph  finds the graph's inputs, and the convolution weights to transpose
//	2 splitter     copies the graph field by field; weights become references into the file
//	3 replaceGraph puts the new graph into the model

const (
	// weightsFile is the graph's name for the file of weights.
	weightsFile = "weights.bin"
	// leastBytes is the smallest tensor that goes to the file: a separate tensor for a bias
	// of a few numbers costs more than copies of it.
	leastBytes = 1 << 10
	// alignment is that of tensors in the file, and of the memory that holds the file.
	alignment = 512
)

// The NHWC convolution that ONNX Runtime's layout transformation makes takes its weights
// in NCHW. When a session is made, it transposes them into private memory
// (core/providers/cuda/nn/conv.cc, PrePack). The domain com.microsoft has the same kernel as
// NhwcConv, which takes its weights in NHWC and does not copy them.
const (
	internalNHWC = "com.ms.internal.nhwc"
	microsoft    = "com.microsoft"
	nhwcConv     = "NhwcConv"
)

// nhwcConvAttributes are the attributes of NhwcConv.
var nhwcConvAttributes = []string{"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}

// convertible reports whether a node is a convolution that can become NhwcConv.
func (n node) convertible() bool {
	return n.op == "Conv" && n.domain == internalNHWC && len(n.inputs) > 1 &&
		!slices.ContainsFunc(n.attributes, func(a string) bool { return !slices.Contains(nhwcConvAttributes, a) })
}

// splitModel splits an optimised model that ONNX Runtime saved. In the returned graph the
// larger weights are references into a file, which holds tensors. splitModel calls write
// with the file's bytes, in order. It returns ErrNotShareable if a part of the model runs
// on the CPU, or if the model's weights are in another file.
func splitModel(model []byte, write func([]byte) error) (graph []byte, tensors []Tensor, err error) {
	body, err := graphOf(model)
	if err != nil {
		return nil, nil, err
	}

	found, err := surveyGraph(body)
	if err != nil {
		return nil, nil, err
	}

	s := splitter{survey: found, write: write}
	if err := fields(body, s.take); err != nil {
		return nil, nil, err
	}
	if len(s.tensors) == 0 {
		return nil, nil, fmt.Errorf("%w: the model has no weights of %d bytes or more", ErrNotShareable, leastBytes)
	}

	graph, err = replaceGraph(model, s.graph, len(found.turned) > 0)
	return graph, s.tensors, err
}

// graphOf returns the GraphProto of a model.
func graphOf(model []byte) (body []byte, err error) {
	err = fields(model, func(f field) error {
		if f.number == modelGraph {
			body = f.data
		}
		return nil
	})
	if err == nil && body == nil {
		err = fmt.Errorf("%w: the model has no graph", errWire)
	}
	return body, err
}

// survey is what a splitter has to know of the graph before it copies the first node.
type survey struct {
	inputs map[string]bool // the graph's
	turned map[string]bool // convolution weights that go to the file in NHWC
	others map[string]bool // inputs of nodes, except the weights of NHWC convolutions
}

// surveyGraph reads all nodes, then all initializers. It returns ErrNotShareable if a node
// rules sharing out.
func surveyGraph(graph []byte) (survey, error) {
	s := survey{inputs: make(map[string]bool), turned: make(map[string]bool), others: make(map[string]bool)}
	if err := fields(graph, s.take); err != nil {
		return survey{}, err
	}

	whole, err := wholeWeights(graph)
	for name := range s.turned {
		if s.others[name] || s.inputs[name] || !whole[name] {
			delete(s.turned, name)
		}
	}
	return s, err
}

func (s *survey) take(f field) error {
	switch f.number {
	case graphInput:
		name, err := nameOf(f.data)
		s.inputs[name] = true
		return err
	case graphNode:
		n, err := readNode(f.data)
		if err != nil {
			return err
		}
		return s.takeNode(n)
	}
	return nil
}

func (s *survey) takeNode(n node) error {
	if n.nested {
		return fmt.Errorf("%w: the model has nested graphs", ErrNotShareable)
	}
	// ONNX Runtime adds these nodes if a part of the graph runs on the CPU, which cannot
	// read the GPU's memory.
	if n.op == "MemcpyToHost" || n.op == "MemcpyFromHost" {
		return fmt.Errorf("%w: a part of the model runs on the CPU", ErrNotShareable)
	}

	for i, name := range n.inputs {
		if i == 1 && n.convertible() {
			s.turned[name] = true
		} else {
			s.others[name] = true
		}
	}
	return nil
}

// wholeWeights returns the names of the graph's initializers that can be convolution
// weights and are complete.
func wholeWeights(graph []byte) (map[string]bool, error) {
	whole := make(map[string]bool)
	err := fields(graph, func(f field) error {
		if f.number != graphInitializer {
			return nil
		}
		t, err := readTensor(f.data)
		if err == nil && len(t.Shape) > 2 && t.whole() {
			whole[t.Name] = true
		}
		return err
	})
	return whole, err
}

// splitter copies a graph, and moves its larger weights to the file.
type splitter struct {
	survey
	write func([]byte) error

	graph     []byte   // the copy so far
	tensors   []Tensor // in the file so far
	fileBytes int64    // length of the file so far
}

// take copies one field of the graph.
func (s *splitter) take(f field) error {
	switch f.number {
	case graphNode:
		return s.takeNode(f)
	case graphInitializer:
		return s.takeInitializer(f)
	case graphValue:
		return s.takeValue(f)
	}
	s.keep(f)
	return nil
}

// keep copies a field unchanged.
func (s *splitter) keep(f field) { s.graph = append(s.graph, f.raw...) }

func (s *splitter) takeNode(f field) error {
	n, err := readNode(f.data)
	if err != nil {
		return err
	}
	if !n.convertible() || !s.turned[n.inputs[1]] {
		s.keep(f)
		return nil
	}

	renamed, err := convertNode(f.data)
	if err != nil {
		return err
	}
	s.graph = appendBytes(s.graph, graphNode, renamed)
	return nil
}

func (s *splitter) takeInitializer(f field) error {
	t, err := readTensor(f.data)
	switch {
	case err != nil:
		return err
	case t.external:
		return fmt.Errorf("%w: %s lies in another file", ErrNotShareable, t.Name)
	case s.turned[t.Name]:
		t.raw = toNHWC(t.raw, t.Shape, elementBytes[t.Type])
		t.Shape = append(append([]int64{t.Shape[0]}, t.Shape[2:]...), t.Shape[1])
	case s.inputs[t.Name] || elementBytes[t.Type] == 0 || len(t.raw) < leastBytes || !t.whole():
		s.keep(f)
		return nil
	}
	return s.moveToFile(t)
}

// moveToFile writes a tensor to the file, and leaves a reference in the graph.
func (s *splitter) moveToFile(t tensor) error {
	if pad := -s.fileBytes & (alignment - 1); pad > 0 {
		if err := s.write(make([]byte, pad)); err != nil {
			return err
		}
		s.fileBytes += pad
	}
	if err := s.write(t.raw); err != nil {
		return err
	}

	t.Offset = s.fileBytes
	s.fileBytes += t.Bytes
	s.tensors = append(s.tensors, t.Tensor)
	s.graph = appendBytes(s.graph, graphInitializer, externalTensor(t.Tensor))
	return nil
}

// takeValue drops the description of a transposed tensor: it has the old shape.
func (s *splitter) takeValue(f field) error {
	name, err := nameOf(f.data)
	if err == nil && !s.turned[name] {
		s.keep(f)
	}
	return err
}

// convertNode turns the convolution of a NodeProto into NhwcConv.
func convertNode(message []byte) (out []byte, err error) {
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

// externalTensor returns a TensorProto with its values in the file of weights.
func externalTensor(t Tensor) (out []byte) {
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

// replaceGraph returns the model with another graph. If convolutions were renamed, the model
// imports their new domain.
func replaceGraph(model, graph []byte, convolutions bool) (out []byte, err error) {
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
