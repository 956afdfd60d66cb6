//go:build cgo

package onnx

import (
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/models"
)

// backend is what the GPU path needs of ONNX Runtime: sessions that run on a stream and take
// memory from pools. ort_unsafe.go implements it with ONNX Runtime. The tests implement it
// with a model that runs on the fake driver.
type backend interface {
	// session makes a session. The pool holds its private weights, and everything else that
	// it keeps.
	session(model []byte, s settings, weights *pool) (session, error)
	// optimise makes a session, closes it, and returns the model as ONNX Runtime optimised it.
	// ONNX Runtime writes that to file, which optimise removes.
	optimise(model []byte, s settings, weights *pool, file string) ([]byte, error)
}

// session must be made, captured and closed on one thread.
type session interface {
	// bind sets the session's inputs, in any order, and outputs. ONNX Runtime copies an input that a node on the
	// CPU reads now, and not in a run. That is right for constants only; for other inputs check.go finds wrong answers.
	bind(inputs, outputs []place) (binding, error)
	close()
}

// binding is a session with its inputs and outputs.
type binding interface {
	// run queues the model on the session's stream and returns. It takes temporary memory
	// from scratch. It allocates nothing on the Go heap.
	run(scratch *pool) error
	close()
}

// place is a tensor in the GPU's memory.
type place struct {
	name  string
	at    cuda.Pointer
	bytes int
	shape []int64
	dtype models.DType
	// tensor is the card's; nil for a constant.
	tensor *models.Tensor
}

func (p place) span() cuda.Range { return cuda.Range{At: p.at, Bytes: p.bytes} }
