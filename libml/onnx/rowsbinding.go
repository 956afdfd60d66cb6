//go:build cgo

package onnx

import (
	"cmp"
	"errors"
	"runtime"
	"slices"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/models"
)

// rowsBinding is a binding on a GPU with outputs whose rows depend on what is in the images (rows.go). ONNX Runtime
// allocates these and their counts on the host. The rows are split there, and copied to their places on the GPU. A
// run waits for its batch.
type rowsBinding struct {
	session uint64
	stream  cuda.Stream
	n       int
	outputs []place

	names                   arguments
	inputNames, outputNames []uint64 // texts of C
	inputs, results         []uint64 // tensors; 0: ONNX Runtime makes it

	hosted [][]byte // by output; nil if it is on the GPU
	rows   []rowsOutput
}

func hasRows(outputs []place) bool {
	return slices.ContainsFunc(outputs, func(o place) bool { return o.tensor.Rows != nil })
}

// isHosted reports whether the rows of outputs decide what is in one of them.
func isHosted(outputs []place, o place) bool {
	return o.tensor.Rows != nil || slices.ContainsFunc(outputs, func(p place) bool { return p.tensor.Rows != nil && p.tensor.Rows.Count == o.name })
}

func (s *ortSession) bindRows(inputs, outputs []place) (binding, error) {
	var c calls
	defer c.release()
	b := &rowsBinding{session: s.handle, stream: s.stream, outputs: outputs, hosted: make([][]byte, len(outputs))}
	for _, p := range inputs {
		b.inputNames, b.inputs = append(b.inputNames, b.names.text(p.name)), append(b.inputs, c.place(p))
	}
	var tensors []models.Tensor
	for i, p := range outputs {
		b.outputNames, b.results, tensors = append(b.outputNames, b.names.text(p.name)), append(b.results, 0), append(tensors, *p.tensor)
		if isHosted(outputs, p) {
			b.hosted[i], b.n = make([]byte, p.bytes), p.bytes/p.tensor.Bytes()
		} else {
			b.results[i] = c.place(p)
		}
	}
	b.rows = rowsOutputs(tensors, b.hosted)
	if c.err != nil {
		b.close()
		return nil, c.err
	}
	return b, nil
}

func (b *rowsBinding) run(scratch *pool) error {
	var c calls
	defer c.release()
	results := slices.Clone(b.results)
	c.in(scratch.all.At, run, b.session, 0, array(&c.arguments, b.inputNames), array(&c.arguments, b.inputs), uint64(len(b.inputs)),
		array(&c.arguments, b.outputNames), uint64(len(results)), array(&c.arguments, results))
	defer func() {
		for i, made := range results {
			if b.results[i] == 0 {
				releaseValue.free(made)
			}
		}
	}()
	if c.err != nil {
		return c.err
	}

	for i, o := range b.outputs {
		if b.hosted[i] != nil && o.tensor.Rows == nil {
			_, counts := c.elements(results[i], o.dtype)
			copy(b.hosted[i], counts)
		}
	}
	err := splitRows(b.rows, b.n, func(output int) ([]int64, []byte) { return c.elements(results[output], b.outputs[output].dtype) })
	if c.err != nil || err != nil && !isAboutImages(err) {
		return errors.Join(c.err, err)
	}
	return cmp.Or(b.upload(), err)
}

// upload copies the outputs on the host to their places on the GPU.
func (b *rowsBinding) upload() error {
	defer runtime.KeepAlive(b.hosted)
	for i, data := range b.hosted {
		if len(data) == 0 {
			continue
		}
		if err := b.stream.Copy(b.outputs[i].at, cuda.At(data), len(data)); err != nil {
			return err
		}
	}
	return b.stream.Synchronize()
}

func (b *rowsBinding) close() {
	for _, value := range slices.Concat(b.inputs, b.results) {
		releaseValue.free(value)
	}
	b.names.release()
}
