//go:build cgo

package onnx

import (
	"os"
	"os/exec"
	"testing"

	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// inChild reports whether this process runs only this test. Otherwise it runs the test in a child process. There, ONNX
// Runtime may be opened: the other tests of this package play it.
func inChild(t *testing.T) bool {
	const child = "PENSTOCK_CHILD"
	if os.Getenv(child) == t.Name() {
		return true
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), child+"="+t.Name())
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return false
}

// A refused session is nil, not an interface that holds a nil pointer.
func TestRefusedSession(t *testing.T) {
	if !inChild(t) {
		return
	}
	must.OK(t, open())
	if err := loadProvider(); err != nil {
		t.Logf("it has no CUDA: %v", err) // and refuses for that
	}
	made, err := onnxRuntime{}.session([]byte("no model"), settings{}, new(pool))
	if made != nil || err == nil {
		t.Errorf("a session %#v of no model: %v", made, err)
	}
}

// sessionOnCPU makes a session with weights in a pool. The library of the tests has no provider for GPUs: a session on
// the CPU makes the same calls, with the same allocator.
func sessionOnCPU(t *testing.T, weights *pool, model []byte) *ortSession {
	t.Helper()
	must.OK(t, openAPI(must.Get(Library())(t)))
	var c calls
	defer c.release()
	library.environment = c.do(createEnv, loggingFatal, c.text("test"))
	library.onGPU = c.do(createMemoryInfo, c.text("Cpu"), deviceAllocator, 0, memoryDefault)
	library.queued = c.do(createRunOptions)
	c.do(registerAllocator, library.environment, allocator(library.onGPU, library.noMemory))
	options := c.do(createSessionOptions)
	c.do(setIntraOpNumThreads, options, 1)
	c.do(disableMemPattern, options)
	c.do(addSessionConfigEntry, options, c.text("session.use_env_allocators"), c.text("1"))
	s := &ortSession{memory: library.onGPU, handle: c.in(weights.all.At, createSessionFromArray, library.environment, array(&c.arguments, model), uint64(len(model)), options)}
	must.OK(t, c.err)
	return s
}

// onDevice allocates tensors of n images.
func onDevice(memory *pool, n int, tensors ...models.Tensor) []place {
	var buffers []device.Buffer
	for _, t := range tensors {
		buffers = append(buffers, device.DeviceBuffer(uintptr(memory.allocate(n*t.Bytes())), n*t.Bytes()))
	}
	return places(tensors, n, buffers)
}

func TestSessionAllocates(t *testing.T) {
	if !inChild(t) {
		return
	}
	weights := somePool(t, bound(t))
	scratch, err := newScratchPool(weights.device)
	must.OK(t, err)
	card := shipped(t, "fashion")
	s := sessionOnCPU(t, weights, must.Get(os.ReadFile(card.Model))(t))
	if weights.readState().used == 0 {
		t.Error("the session's weights are not in the pool")
	}

	in, out := card.InputTensors()[0], card.Outputs[0]
	b, err := s.bind(onDevice(weights, 1, in), onDevice(weights, 1, out))
	must.OK(t, err)
	must.OK(t, b.run(scratch))
	if s := scratch.readState(); s.used != 0 || s.peak == 0 {
		t.Errorf("the run left %d bytes, its peak was %d", s.used, s.peak)
	}
	if n := testing.AllocsPerRun(100, func() { must.OK(t, b.run(scratch)) }); n != 0 {
		t.Errorf("a run allocates %v times on Go's heap", n)
	}

	cudafake.Set(t, cudafake.Memory(0))
	scratch.trim(0)
	if err := b.run(scratch); err == nil || scratch.readState().refused == nil {
		t.Errorf("without memory: %v", err)
	}
	must.OK(t, scratch.close())
}
