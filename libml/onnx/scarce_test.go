//go:build cgo

package onnx

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
)

// takers are the driver's functions that take memory until a batch is configured, or that may
// report that there is none.
var takers = []string{
	"cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate", "cuEventCreate",
	"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAlloc_v2", "cuMemHostAlloc",
	"cuStreamBeginCapture_v2", "cuGraphClone", "cuGraphInstantiateWithFlags", "cuGraphUpload",
}

// inEachStep calls try many times. In each run one call of one of the takers is refused. Then
// it gives each run more memory than the last: for no allocation, for one, for two, and so
// on. try reports whether it met a refusal; the last run of each kind meets none.
func inEachStep(t *testing.T, try func(*testing.T, func() cudafake.Setting) (met bool)) {
	const most = 100
	for _, call := range takers {
		met, n := 0, 1
		// weights.Upload can do without pinned memory, so one refusal without an effect is not the last.
		for ; n-met <= 2; n++ {
			if n > most {
				t.Fatalf("%s: no end of its calls", call)
			}
			if try(t, func() cudafake.Setting { return cudafake.Refuse(call, n, cuda.OutOfMemory) }) {
				met++
			}
		}
		t.Logf("%s: refused %d times", call, met)
	}
	const grain = 2 * mebi // the driver's
	n := int64(0)
	for try(t, func() cudafake.Setting { return cudafake.Memory(cudafake.Now().Taken() + n*grain) }) {
		if n++; n > most {
			t.Fatal("no amount of memory is enough")
		}
	}
	if n < 2 {
		t.Errorf("%d MiB are enough", n*grain/mebi)
	}
	t.Logf("%d MiB are enough", n*grain/mebi)
}

// Whichever step of linking finds no memory, also in a later attempt of another kind: LinkModel
// returns an error of one line, or the process serves.
func TestLinkWithoutMemory(t *testing.T) {
	for name, c := range map[string]scarceCase{
		"prepared here, shared":  {},
		"prepared here, its own": {refuses: framework.ErrNoWeights},
		"shared":                 {prepared: true},
		"its own":                {prepared: true, refuses: framework.ErrNoWeights},
		"node by node":           {prepared: true, byNode: true},
		"a size's own":           {private: true},
	} {
		t.Run(name, func(t *testing.T) { inEachStep(t, c.link) })
	}
}

type scarceCase struct {
	prepared bool  // by an earlier process
	refuses  error // of the weight server
	private  bool  // nothing is shared
	byNode   bool
}

// link links a model with the given memory, and reports whether it met a refusal.
func (c scarceCase) link(t *testing.T, scarce func() cudafake.Setting) (met bool) {
	dir := t.TempDir()
	if c.prepared {
		t.Run("before", func(t *testing.T) {
			r, _ := sharingRig(t, dir)
			r.linked()
		})
	}

	t.Run("process", func(t *testing.T) {
		r, s := sharingRig(t, dir)
		s.refuses = c.refuses
		if c.private {
			r.gpu.env.Weights = nil
		}
		if c.byNode {
			r.played.unqueued = func(s settings) error { return s.stream.Synchronize() } // refused in a capture
		}
		r.loaded()
		cudafake.Set(t, scarce())
		_, err := r.f.LinkModel()
		cudafake.Reset()

		if met = err != nil || r.logged("OUT_OF_MEMORY"); err == nil {
			r.answers(r.card.Batches[0])
			r.answers(r.card.MaxBatch())
			return
		}
		r.isOfMemory(err)
		if r.played.sessions != 0 {
			t.Errorf("%d sessions are left", r.played.sessions)
		}
	})
	return met
}

// A larger batch that finds no memory does not affect the batches that serve.
func TestLargerBatchWithoutMemory(t *testing.T) {
	inEachStep(t, func(t *testing.T, scarce func() cudafake.Setting) (met bool) {
		t.Run("process", func(t *testing.T) {
			r, _ := sharingRig(t, t.TempDir())
			r.card.Batches = []int{1, 4}
			r.loaded()
			if _, err := r.f.LinkModel(); err != nil {
				t.Fatal(err)
			}
			r.answers(1)
			b := r.tensors(4)
			cudafake.Set(t, scarce())
			_, err := r.f.ConfigureBatch(0, 4, b.inputs, b.outputs)
			cudafake.Reset()
			if met = err != nil || r.logged("OUT_OF_MEMORY"); err != nil {
				r.isOfMemory(err)
			}
			r.answers(1)
			r.answers(4)
		})
		return met
	})
}

// isOfMemory fails unless the error reports missing memory in one line.
func (r *rig) isOfMemory(err error) {
	r.t.Helper()
	if !errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, device.ErrLost) || strings.Contains(err.Error(), "\n") {
		r.t.Errorf("got %v", err)
	}
}

// answers configures a batch, runs it and checks its answer.
func (r *rig) answers(n int) {
	r.t.Helper()
	b := r.tensors(n)
	r.fillWith(b, 7)
	r.configure(0, n, b)
	r.infer(0, n)
	if got := r.output(b); !all(got, 7) {
		r.t.Errorf("batch of %d answered %v", n, got)
	}
}
