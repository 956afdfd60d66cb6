//go:build cgo

package capi

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/fake"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/null/nulltest"
)

func TestMain(m *testing.M) { fake.Main(m, fake.Kernels(nulltest.Twins)) }

// captured is a framework on the fake GPU whose slot 0 has the whole device and whose
// slot 2 has a part of it, and a graph of one kernel.
func captured(t *testing.T) (f *Framework, graph *cuda.Graph, partSMs uint32) {
	t.Helper()
	fake.Check(t)
	closing := func(give func() error) {
		t.Cleanup(func() {
			if err := give(); err != nil {
				t.Error(err)
			}
		})
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	devices, err := cuda.Devices()
	must(err)
	c, err := devices[0].OpenContext(cuda.ScheduleAuto)
	must(err)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	closing(c.Close)
	must(c.Bind())
	ptx, err := os.ReadFile("../null/null.ptx")
	must(err)
	module, err := c.Load(ptx)
	must(err)
	closing(module.Unload)
	digest, err := module.Function("null_digest")
	must(err)
	memory, err := c.Allocate(1 << 10)
	must(err)
	closing(func() error { return c.Free(memory) })
	split, err := devices[0].Split(0)
	must(err)
	part, err := c.Green(split, []int{1})
	must(err)
	closing(part.Destroy)
	whole, err := c.NewStream()
	must(err)
	closing(whole.Destroy)
	apart, err := part.NewStream()
	must(err)
	closing(apart.Destroy)

	must(whole.Capture())
	args := cuda.NewArgs(8, 4, 8)
	args.SetPointer(0, memory)
	args.SetUint32(1, 64)
	args.SetPointer(2, memory+512)
	must(digest.Launch([3]uint32{1, 1, 1}, [3]uint32{256, 1, 1}, 0, whole, args))
	graph, err = whole.EndCapture()
	must(err)
	closing(graph.Destroy)

	f = new(Framework)
	f.env.Store(&libml.Environment{Stream: func(slot int) uintptr {
		return map[int]uintptr{0: whole.Handle(), 2: apart.Handle()}[slot]
	}})
	f.linked.Store(true)
	closing(f.graphs.clear)
	return f, graph, uint32(part.SMs())
}

func TestGraphIsLaunchedOnItsSlotsMultiprocessors(t *testing.T) {
	f, graph, partSMs := captured(t)
	for _, slot := range []int{0, 2} {
		if err := f.setGraph(slot, 1, graph.Handle()); err != nil {
			t.Fatal(err)
		}
	}
	seen := len(fake.Launches())
	for _, slot := range []int{0, 2} {
		if err := f.InferBatch(slot, 1); err != nil {
			t.Fatal(err)
		}
		if err := f.graphs.of(batch{slot, 1}).stream.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
	launches := fake.Launches()[seen:]
	if len(launches) != 2 || launches[0].SMs == partSMs || launches[1].SMs != partSMs {
		t.Errorf("launched %+v, want the second on %d multiprocessors", launches, partSMs)
	}
	if n := testing.AllocsPerRun(100, func() { _ = f.InferBatch(0, 1) }); n != 0 {
		t.Errorf("a launch allocates %v times", n)
	}
}

func TestGraphThatCannotBeLaunchedIsRefused(t *testing.T) {
	f, graph, _ := captured(t)
	for want, err := range map[string]error{
		"the graph is NULL":     f.setGraph(0, 1, 0),
		"slot 1 has no stream":  f.setGraph(1, 1, graph.Handle()),
		"there is no GPU":       new(Framework).setGraph(0, 1, graph.Handle()),
		"slot 9 has no stream":  f.setGraph(9, 1, graph.Handle()),
		"slot -1 has no stream": f.setGraph(-1, 1, graph.Handle()),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if f.graphs.of(batch{0, 1}) != nil {
		t.Error("a graph was taken that was refused")
	}
}

func TestGraphsErrorsHaveTheirMeaning(t *testing.T) {
	f, graph, _ := captured(t)
	fake.Apply(t, fake.Refuse("cuGraphInstantiateWithFlags", 1, cuda.OutOfMemory))
	if err := f.setGraph(0, 1, graph.Handle()); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("%v, want out of memory", err)
	}
	if err := f.setGraph(0, 1, graph.Handle()); err != nil {
		t.Fatal(err)
	}
	const illegalAddress = cuda.Code(700)
	// Not of the fake, which is as lost as a GPU then.
	if err := lost("launch graph", &cuda.Error{Op: "cuGraphLaunch", Code: illegalAddress}); !errors.Is(err, device.ErrLost) {
		t.Errorf("%v, want the device lost", err)
	}
}

// Twice for the same batch: the first is given back, and fake.Check counts.
func TestGraphReplacesTheOneBefore(t *testing.T) {
	f, graph, _ := captured(t)
	for range 3 {
		if err := f.setGraph(0, 1, graph.Handle()); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.graphs.set(batch{0, 1}, nil); err != nil {
		t.Fatal(err)
	}
	if f.graphs.of(batch{0, 1}) != nil {
		t.Error("the graph is still there")
	}
}
