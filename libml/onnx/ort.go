//go:build cgo

package onnx

import (
	"strings"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/models"
)

// What the GPU path needs of ONNX Runtime: sessions that run on a stream and take
// their memory from pools. ort_unsafe.go has ONNX Runtime's own, the tests one that
// plays a model on the fake driver.
type backend interface {
	// session makes a session; its weights, but those that the settings bring, and all
	// that it keeps lie in the pool.
	session(model []byte, s settings, weights *pool) (session, error)
	// optimise makes a session that is given back at once, and returns the model as it was
	// optimised for it. The file is for its use, and is not there before or after.
	optimise(model []byte, s settings, weights *pool, file string) ([]byte, error)
}

// settings of a session.
type settings struct {
	stream cuda.Stream // that it queues its work on
	nhwc   bool        // convolutions in NHWC where there are kernels for it
	tf32   bool        // tensor cores; for f32 with TF32's 11 bits of mantissa
	// initializers are weights that are in the GPU's memory. The model is optimised
	// already then, and refers to a file in folder for them, which is not read.
	initializers []initializer
	folder       string
}

// initializer is a model's weights by their name, for it to read.
type initializer struct {
	name    string
	at      cuda.Pointer
	bytes   int64
	shape   []int64
	element int // ONNXTensorElementDataType
}

// session is made, captured and closed by one thread.
type session interface {
	// bind says where the model reads and writes.
	bind(input place, outputs []place) (binding, error)
	close()
}

// binding is a session and its tensors.
type binding interface {
	// run queues the model on the session's stream and returns; memory that it uses
	// in between is taken from scratch. It allocates nothing on the Go heap.
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
}

func (p place) span() cuda.Range { return cuda.Range{At: p.at, Bytes: p.bytes} }

// ortError is what ONNX Runtime or the loader says was wrong, as it says it.
type ortError struct {
	code int32 // OrtErrorCode; -1 for the loader's
	text string
}

// Error is one line, without the places in ONNX Runtime's source and the names of
// its templates.
func (e *ortError) Error() string { return plain(e.text) }

// outOfMemory says whether the message is of memory that there is none of: the
// codes of CUDA, cuBLAS and cuDNN as ONNX Runtime prints them.
func (e *ortError) outOfMemory() bool {
	for _, sign := range []string{"CUDA failure 2:", "out of memory", "ALLOC_FAILED", "cudaErrorMemoryAllocation", "resource allocation failed"} {
		if strings.Contains(e.text, sign) {
			return true
		}
	}
	return false
}

// tooFewSMs says whether the message is of a kernel that does not fit the stream's
// multiprocessors (cuda.ErrTooFewSMs).
func (e *ortError) tooFewSMs() bool {
	return strings.Contains(e.text, "CUDA failure 720:") || strings.Contains(e.text, "CUDA failure 912:")
}

// plain makes a line of what ONNX Runtime says of a failure: "CUDA failure 2: out of
// memory" of half a page with template arguments, host name, file and expression.
func plain(text string) string {
	s := strings.Join(strings.Fields(text), " ")
	for _, start := range []string{"CUDA failure ", "CUDNN failure ", "CUDNN_FE failure ", "CUBLAS failure ", "CUFFT failure "} {
		at := strings.Index(s, start)
		if at < 0 {
			continue
		}
		rest, _, _ := strings.Cut(s[at:], " ;")
		if node := between(s, "while running ", " Status Message"); node != "" {
			rest = node + ": " + rest
		}
		return rest
	}
	if _, message, found := strings.Cut(s, "Status Message: "); found {
		if node := between(s, "while running ", " Status Message"); node != "" {
			message = node + ": " + message
		}
		s = message
	}
	const longest = 300
	if len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "") + "..."
	}
	return s
}

func between(s, from, to string) string {
	_, rest, found := strings.Cut(s, from)
	if !found {
		return ""
	}
	inner, _, found := strings.Cut(rest, to)
	if !found {
		return ""
	}
	return strings.TrimSuffix(inner, ".")
}
