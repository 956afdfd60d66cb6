//go:build cgo

package onnx

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/libml/device"
)

func TestOutOfMemory(t *testing.T) {
	t.Run("when it is linked", func(t *testing.T) {
		r := newRig(t, &played{weights: 64 * mebi})
		r.loaded()
		before := cudafake.Now()
		cudafake.Set(t, cudafake.Memory(before.Bytes+50*mebi))
		_, err := r.f.LinkModel()
		if !errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, device.ErrLost) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
		if r.played.sessions != 0 {
			t.Errorf("%d sessions are left", r.played.sessions)
		}
	})
	t.Run("when it is tried", func(t *testing.T) {
		r := newRig(t, &played{scratch: 64 * mebi})
		r.loaded()
		cudafake.Set(t, cudafake.Memory(cudafake.Now().Taken()+50*mebi))
		if _, err := r.f.LinkModel(); !errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("when a batch is configured", func(t *testing.T) {
		r := newRig(t, &played{scratch: 32 * mebi}).linked()
		small, big := r.tensors(1), r.tensors(4)
		r.configure(1, 1, small) // of the lane that LinkModel has not used
		cudafake.Set(t, cudafake.Memory(cudafake.Now().Taken()+16*mebi))
		if _, err := r.f.ConfigureBatch(1, 4, big.inputs, big.outputs); !errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("got %v", err)
		}
		// The configured batch still runs. With memory, the other one does too.
		r.infer(1, 1)
		cudafake.Reset()
		r.configure(1, 4, big)
		r.infer(1, 4)
	})
	t.Run("as ONNX Runtime says it", func(t *testing.T) {
		r := newRig(t, &played{unmade: func(settings) error {
			return &ortError{text: "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=h ; file=x"}
		}})
		r.loaded()
		_, err := r.f.LinkModel()
		if !errors.Is(err, cuda.ErrOutOfMemory) || strings.Contains(err.Error(), "hostname") || !strings.Contains(err.Error(), "ALLOC_FAILED") {
			t.Errorf("got %v", err)
		}
	})
}

func TestLostDevice(t *testing.T) {
	t.Run("InferBatch", func(t *testing.T) {
		r := newRig(t, &played{}).linked()
		b := r.tensors(1)
		r.configure(0, 1, b)
		cudafake.Set(t, cudafake.Lose(cuda.IllegalAddress))
		for what, err := range map[string]error{
			"run":       r.f.InferBatch(0, 1),
			"configure": func() error { _, err := r.f.ConfigureBatch(0, 2, b.inputs, b.outputs); return err }(),
		} {
			if what == "run" && (!errors.Is(err, device.ErrLost) || !errors.Is(err, cuda.ErrLost)) {
				t.Errorf("%s: %v", what, err)
			}
		}
		cudafake.Reset()
	})
	t.Run("what ONNX Runtime was refused", func(t *testing.T) {
		p := &played{}
		r := newRig(t, p)
		r.card.Batches = []int{1}
		p.unmade = func(settings) error {
			cudafake.Set(t, cudafake.Lose(cuda.IllegalAddress))
			return &ortError{text: "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=x"}
		}
		r.loaded()
		if _, err := r.f.LinkModel(); !errors.Is(err, device.ErrLost) || !strings.Contains(err.Error(), "CUDA failure 700") {
			t.Errorf("got %v", err)
		}
		cudafake.Reset()
	})
}

// With this error, the manager gives the process more multiprocessors.
func TestTooFewMultiprocessors(t *testing.T) {
	t.Run("for a graph", func(t *testing.T) {
		r := newRig(t, &played{}).linked()
		b := r.tensors(1)
		cudafake.Apply(t, cudafake.Refuse("cuGraphInstantiateWithFlags", 1, cuda.InvalidClusterSize))
		if _, err := r.f.ConfigureBatch(0, 1, b.inputs, b.outputs); !errors.Is(err, cuda.ErrTooFewSMs) || errors.Is(err, device.ErrLost) {
			t.Errorf("got %v", err)
		}
		r.configure(0, 1, b)
	})
	t.Run("for what ONNX Runtime launches", func(t *testing.T) {
		p := &played{}
		r := newRig(t, p)
		r.card.Batches = []int{1}
		p.unmade = func(settings) error {
			return &ortError{text: "CUDA failure 912: invalid cluster size ; GPU=0 ; hostname=x"}
		}
		r.loaded()
		if _, err := r.f.LinkModel(); !errors.Is(err, cuda.ErrTooFewSMs) || errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("got %v", err)
		}
	})
}

func TestErrorLine(t *testing.T) {
	for said, want := range map[string]string{
		"Non-zero status code returned while running Conv node. Name:'/conv1/Conv' Status Message: /onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:129 std::conditional_t<THRW, void> onnxruntime::CudaCall(ERRTYPE) [with ERRTYPE = cudaError] CUDA failure 2: out of memory ; GPU=0 ; hostname=box ; file=/x/y.cc ; line=80 ; expr=cudaMalloc((void**)&p, size);": "Conv node. Name:'/conv1/Conv': CUDA failure 2: out of memory",
		"CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=box":                                                                   "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
		"Non-zero status code returned while running Transpose node. Name:'t' Status Message: CUDA error cudaErrorStreamCaptureUnsupported: no": "Transpose node. Name:'t': CUDA error cudaErrorStreamCaptureUnsupported: no",
		"two\n  lines": "two lines",
	} {
		if got := (&ortError{text: said}).Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if got := (&ortError{text: strings.Repeat("é ", 1000)}).Error(); len(got) > 610 {
		t.Errorf("%d bytes", len(got))
	}
}
