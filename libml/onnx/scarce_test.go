//go:build cgo

package onnx

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/device"
)

// takers are the driver's functions that take memory on the way to a batch that is
// configured, or may say that there is none.
var takers = []string{
	"cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate", "cuEventCreate",
	"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAlloc_v2", "cuMemHostAlloc",
	"cuStreamBeginCapture_v2", "cuGraphClone", "cuGraphInstantiateWithFlags", "cuGraphUpload",
}

// inEachStep has try run again and again: with each call of each of the takers refused,
// one a run, and with memory for none of them, for the first, for the first two ... A run
// says whether it met with a refusal; the counts are of runs that did.
func inEachStep(t *testing.T, try func(*testing.T, func() cudafake.Setting) (met bool)) {
	const most = 100
	for _, call := range takers {
		n := 1
		for try(t, func() cudafake.Setting { return cudafake.Refuse(call, n, cuda.OutOfMemory) }) {
			if n++; n > most {
				t.Fatalf("%s: no end of its calls", call)
			}
		}
		t.Logf("%s: refused %d times", call, n-1)
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

// Whichever step of linking finds no memory, the first attempt's or that of another way
// after it: the process says so in one line, or it serves.
func TestWithoutMemoryForAnyStepOfLinkingItIsToldOrServes(t *testing.T) {
	uncaptured := func(s settings) error { return s.stream.Synchronize() } // which is refused in a capture
	for what, is := range map[string]struct {
		prepared bool  // by a process before
		refuses  error // the holder of weights
		private  bool
		byNode   bool
	}{
		"prepared here, shared":  {},
		"prepared here, its own": {refuses: libml.ErrNoWeights},
		"shared":                 {prepared: true},
		"its own":                {prepared: true, refuses: libml.ErrNoWeights},
		"node by node":           {prepared: true, byNode: true},
		"a size's own":           {private: true},
	} {
		t.Run(what, func(t *testing.T) {
			inEachStep(t, func(t *testing.T, scarce func() cudafake.Setting) (met bool) {
				dir := t.TempDir()
				if is.prepared {
					t.Run("before", func(t *testing.T) {
						r, _ := sharingRig(t, dir)
						r.linked()
					})
				}
				t.Run("process", func(t *testing.T) {
					r, s := sharingRig(t, dir)
					s.refuses = is.refuses
					if is.private {
						r.gpu.env.Weights = nil
					}
					if is.byNode {
						r.played.unqueued = uncaptured
					}
					r.loaded()
					cudafake.Set(t, scarce())
					_, err := r.f.LinkModel()
					cudafake.Reset()
					if met = err != nil || r.said("OUT_OF_MEMORY"); err == nil {
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
			})
		})
	}
}

// Nor does a larger batch that finds no memory cost those that serve.
func TestWithoutMemoryForAnyStepOfALargerBatchTheSmallerServe(t *testing.T) {
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
			_, err := r.f.ConfigureBatch(0, 4, b.input, b.outputs)
			cudafake.Reset()
			if met = err != nil || r.said("OUT_OF_MEMORY"); err != nil {
				r.isOfMemory(err)
			}
			r.answers(1)
			r.answers(4)
		})
		return met
	})
}

// isOfMemory: what is told of too little memory is that, in one line.
func (r *rig) isOfMemory(err error) {
	r.t.Helper()
	if !errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, device.ErrLost) || strings.Contains(err.Error(), "\n") {
		r.t.Errorf("got %v", err)
	}
}

// answers configures a batch and has it run.
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

// What ONNX Runtime makes no session of is none, and not a nil pointer as a session. It is
// opened in a process of its own: the others of this package play it.
func TestASessionThatONNXRuntimeRefusesIsNone(t *testing.T) {
	const child = "PENSTOCK_REFUSED_SESSION"
	if os.Getenv(child) == "" {
		c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), child+"=1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	if err := open(); err != nil {
		t.Fatal(err)
	}
	if err := openProvider(environment.path); err != nil {
		t.Logf("it has no CUDA: %v", err) // and refuses for that
	}
	made, err := onnxRuntime{}.session([]byte("no model"), settings{}, new(pool))
	if made != nil || err == nil {
		t.Errorf("a session %#v of no model: %v", made, err)
	}
}
