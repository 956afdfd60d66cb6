//go:build cgo

package onnx

import (
	"cmp"
	"runtime"
	"slices"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/models"
)

// invocation runs a session without a binding. ONNX Runtime makes the outputs whose place has no address, on the host.
type invocation struct {
	session *ortSession
	outputs []place

	arguments                        // names
	inputNames, outputNames []uint64 // texts of C
	inputs, results         []uint64 // tensors; 0: ONNX Runtime makes it
}

func (s *ortSession) newInvocation(inputs, outputs []place) (*invocation, error) {
	var c calls
	defer c.release()
	v := &invocation{session: s, outputs: outputs}
	for _, p := range inputs {
		v.inputNames, v.inputs = append(v.inputNames, v.text(p.name)), append(v.inputs, c.place(s.memory, p))
	}
	for _, p := range outputs {
		result := uint64(0)
		if p.at != 0 {
			result = c.place(s.memory, p)
		}
		v.outputNames, v.results = append(v.outputNames, v.text(p.name)), append(v.results, result)
	}
	if c.err != nil {
		v.close()
		return nil, c.err
	}
	return v, nil
}

// run calls use with the outputs that ONNX Runtime has made. Their shapes and elements are valid until it returns.
func (v *invocation) run(scratch *pool, use func(made func(output int) (shape []int64, data []byte)) error) error {
	var c calls
	defer c.release()
	results := slices.Clone(v.results)
	c.in(scratch.address(), run, v.session.handle, 0, array(&c.arguments, v.inputNames), array(&c.arguments, v.inputs), uint64(len(v.inputs)),
		array(&c.arguments, v.outputNames), uint64(len(results)), array(&c.arguments, results))
	defer func() {
		for i, made := range results {
			if v.results[i] == 0 {
				releaseValue.free(made)
			}
		}
	}()
	if c.err != nil {
		return c.err
	}
	err := use(func(output int) ([]int64, []byte) { return c.elements(results[output], v.outputs[output].dtype) })
	return cmp.Or(c.err, err)
}

func (v *invocation) close() {
	for _, value := range slices.Concat(v.inputs, v.results) {
		releaseValue.free(value)
	}
	v.release()
}

// rowsBinding is a binding with outputs whose rows depend on what is in the images (rows.go). ONNX Runtime
// allocates these and their counts on the host. The rows are split there, and copied to their places on a GPU. A
// run waits for its batch.
type rowsBinding struct {
	*invocation
	to     []cuda.Pointer // of each output
	n      int
	hosted [][]byte // by output; nil if it is at its place
	rows   []rowsOutput
}

func hasRows(outputs []place) bool {
	return slices.ContainsFunc(outputs, func(o place) bool { return o.tensor.Rows != nil })
}

// isHosted reports whether the rows of outputs decide what is in one of them.
func isHosted(outputs []place, o place) bool {
	return o.tensor.Rows != nil || slices.ContainsFunc(outputs, func(p place) bool { return p.tensor.Rows != nil && p.tensor.Rows.Count == o.name })
}

func (s *ortSession) bindRows(inputs, outputs []place) (_ binding, err error) {
	b := &rowsBinding{hosted: make([][]byte, len(outputs))}
	var tensors []models.Tensor
	made := slices.Clone(outputs)
	for i, p := range outputs {
		b.to, tensors = append(b.to, p.at), append(tensors, *p.tensor)
		if !isHosted(outputs, p) {
			continue
		}
		b.n, made[i].at = p.bytes/p.tensor.Bytes(), 0
		if b.hosted[i] = make([]byte, p.bytes); s.memory == library.onCPU {
			b.hosted[i] = cuda.Bytes(p.at, p.bytes)
		}
	}
	b.rows = rowsOutputs(tensors, b.hosted)
	b.invocation, err = s.newInvocation(inputs, made)
	return b, err
}

func (b *rowsBinding) run(scratch *pool) error {
	var many error // about images
	err := b.invocation.run(scratch, func(made func(int) ([]int64, []byte)) error {
		for i, o := range b.outputs {
			if b.hosted[i] != nil && o.tensor.Rows == nil {
				_, counts := made(i)
				copy(b.hosted[i], counts)
			}
		}
		err := splitRows(b.rows, b.n, made)
		if isAboutImages(err) {
			err, many = nil, err
		}
		return err
	})
	if err == nil {
		err = b.upload()
	}
	return cmp.Or(err, many)
}

// upload copies the outputs on the host to their places on a GPU.
func (b *rowsBinding) upload() error {
	if b.session.memory == library.onCPU {
		return nil
	}
	defer runtime.KeepAlive(b.hosted)
	for i, data := range b.hosted {
		if len(data) == 0 {
			continue
		}
		if err := b.session.stream.Copy(b.to[i], cuda.At(data), len(data)); err != nil {
			return err
		}
	}
	return b.session.stream.Synchronize()
}
