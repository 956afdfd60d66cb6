//go:build cgo

package capi

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/capitest"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nulltest"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

func TestMain(m *testing.M) { cudafake.Main(m, cudafake.Kernels(nulltest.Twins)) }

// captured has a framework on the fake GPU, and a graph of one kernel. Slot 0 has the whole device,
// slot 2 a part of it.
func captured(t *testing.T) (f *Framework, callbacks *capitest.Callbacks, graph *cuda.Graph, partSMs uint32) {
	t.Helper()
	cudafake.Check(t)
	closing := func(give func() error) {
		t.Cleanup(func() {
			if err := give(); err != nil {
				t.Error(err)
			}
		})
	}
	must := func(err error) {
		t.Helper()
		must.OK(t, err)
	}
	devices, err := cuda.Devices()
	must(err)
	context, err := devices[0].OpenContext()
	must(err)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	closing(context.Close)
	must(context.Bind())
	ptx, err := os.ReadFile("../../internal/testing/null/null.ptx")
	must(err)
	module, err := context.Load(ptx)
	must(err)
	closing(module.Unload)
	digest, err := module.Function("null_digest")
	must(err)
	memory, err := context.Allocate(1 << 10)
	must(err)
	closing(func() error { return context.Free(memory) })
	split, err := devices[0].Split()
	must(err)
	part, err := context.Green(split, []int{1})
	must(err)
	closing(part.Destroy)
	whole, err := context.NewStream()
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

	c := capitest.New()
	t.Cleanup(c.Free)
	f, err = New(c.Table(), c.Self())
	must(err)
	t.Cleanup(f.Close)
	card := &models.Card{
		Name: "digest", Input: models.Input{Height: 4, Width: 4, Channels: 1, TensorType: models.U8, TensorLayout: models.HWC},
		Outputs: []models.Tensor{{Name: "digest", Type: models.F32, Shape: []int64{1}}}, Batches: []int{1, 2},
	}
	must(f.Init(framework.Environment{Card: card, Device: devices[0].UUID(), Stream: func(slot int) uintptr {
		return map[int]uintptr{0: whole.Handle(), 2: apart.Handle()}[slot]
	}}))
	_, err = f.LinkModel()
	must(err)
	t.Cleanup(SetRunning(f))
	closing(f.graphs.clear)
	return f, c, graph, uint32(part.SMs())
}

func TestGraphMultiprocessors(t *testing.T) {
	f, _, graph, partSMs := captured(t)
	for _, slot := range []int{0, 2} {
		must.OK(t, f.setGraph(slot, 1, graph.Handle()))
	}
	seen := len(cudafake.Launches())
	for _, slot := range []int{0, 2} {
		must.OK(t, f.InferBatch(slot, 1))
		must.OK(t, cuda.StreamOf(f.stream(slot)).Synchronize())
	}
	launches := cudafake.Launches()[seen:]
	if len(launches) != 2 || launches[0].SMs == partSMs || launches[1].SMs != partSMs {
		t.Errorf("launched %+v, want the second on %d multiprocessors", launches, partSMs)
	}
	if n := testing.AllocsPerRun(100, func() {
		must.OK(t, f.InferBatch(0, 1))
	}); n != 0 {
		t.Errorf("a launch allocates %v times", n)
	}
	// The kernels' memory is freed next.
	must.OK(t, cuda.StreamOf(f.stream(0)).Synchronize())
}

// A graph runs on the stream of each batch, so that the batch can be demoted.
func TestGraphStream(t *testing.T) {
	f, _, graph, _ := captured(t)
	if f.Demotable(0, 1) {
		t.Error("a batch of infer_batch can be demoted")
	}
	must.OK(t, f.setGraph(0, 1, graph.Handle()))
	if !f.Demotable(0, 1) {
		t.Error("a batch that is a graph cannot be demoted")
	}
	env := *f.env.Load()
	low := f.stream(2) // any other
	env.BatchStream = func(int) uintptr { return low }
	f.env.Store(&env)
	cudafake.Reset()
	must.OK(t, errors.Join(f.InferBatch(0, 1), cuda.StreamOf(low).Synchronize()))
	if l := cudafake.Launches(); len(l) != 1 || l[0].Stream != low {
		t.Errorf("launched %+v, want one on stream %#x", l, low)
	}
}

func TestInvalidGraphs(t *testing.T) {
	f, _, graph, _ := captured(t)
	for want, err := range map[string]error{
		"the graph is NULL":     f.setGraph(0, 1, 0),
		"slot 1 has no stream":  f.setGraph(1, 1, graph.Handle()),
		"no GPU":                new(Framework).setGraph(0, 1, graph.Handle()),
		"slot 9 has no stream":  f.setGraph(9, 1, graph.Handle()),
		"slot -1 has no stream": f.setGraph(-1, 1, graph.Handle()),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if f.graphs.find(batch{0, 1}) != nil {
		t.Error("a graph was taken that was refused")
	}
}

func TestGraphErrors(t *testing.T) {
	f, _, graph, _ := captured(t)
	cudafake.Apply(t, cudafake.Refuse("cuGraphInstantiateWithFlags", 1, cuda.OutOfMemory))
	if err := f.setGraph(0, 1, graph.Handle()); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("%v, want out of memory", err)
	}
	must.OK(t, f.setGraph(0, 1, graph.Handle()))
	const illegalAddress = cuda.Code(700)
	// Not the fake's, which is lost like a GPU then.
	if err := lost("launch graph", &cuda.Error{Op: "cuGraphLaunch", Code: illegalAddress}); !errors.Is(err, device.ErrLost) {
		t.Errorf("%v, want the device lost", err)
	}
}

func TestGraphTooFewSMs(t *testing.T) {
	f, _, graph, _ := captured(t)
	reported := errors.New("penstock_graph failed")
	f.configuring.Store(&batch{0, 1})
	if err := f.handOver(0, 1, graph.Handle()); err != nil || f.markTooFew(reported) != reported {
		t.Errorf("%v, then %v; want the callback's error", err, f.markTooFew(reported))
	}
	cudafake.Apply(t, cudafake.Refuse("cuGraphInstantiateWithFlags", 1, cuda.InvalidClusterSize))
	if err := f.handOver(0, 1, graph.Handle()); !errors.Is(err, cuda.ErrTooFewSMs) {
		t.Errorf("%v, want too few multiprocessors", err)
	}
	if err := f.markTooFew(reported); !errors.Is(err, cuda.ErrTooFewSMs) || !errors.Is(err, reported) {
		t.Errorf("%v, want both", err)
	}
}

// The second graph of a batch replaces the first, which is destroyed: cudafake.Check counts.
func TestGraphReplaced(t *testing.T) {
	f, _, graph, _ := captured(t)
	for range 3 {
		must.OK(t, f.setGraph(0, 1, graph.Handle()))
	}
	must.OK(t, f.graphs.set(batch{0, 1}, nil))
	if f.graphs.find(batch{0, 1}) != nil {
		t.Error("the graph is still there")
	}
}

// A graph belongs to one configure_batch. If the next one of the slot and size hands over no graph,
// infer_batch runs the batch again.
func TestGraphWithdrawn(t *testing.T) {
	f, c, graph, _ := captured(t)
	const slot, n = 0, 2
	input, output := make([]byte, 16*n), make([]byte, 4*n)
	for round, hands := range []bool{false, true, true, false, true} {
		c.HandOver(0)
		if hands {
			c.HandOver(graph.Handle())
		}
		if _, err := f.ConfigureBatch(slot, n, device.HostBuffers(input), device.HostBuffers(output)); err != nil {
			t.Fatal(err)
		}
		calls, launches := c.Calls(capitest.Infer), len(cudafake.Launches())
		must.OK(t, f.InferBatch(slot, n))
		if f.graphs.find(batch{slot, n}) != nil {
			must.OK(t, cuda.StreamOf(f.stream(slot)).Synchronize())
		}
		calls, launches = c.Calls(capitest.Infer)-calls, len(cudafake.Launches())-launches
		if want := map[bool][2]int{false: {1, 0}, true: {0, 1}}[hands]; [2]int{calls, launches} != want {
			t.Errorf("round %d: %d calls and %d launches, want %v", round, calls, launches, want)
		}
	}
}

func TestGraphOutsideConfigure(t *testing.T) {
	f, c, graph, _ := captured(t)
	const refused = "penstock_graph: batch of 1 in slot 0 is not being configured; pass its graph in its configure_batch"
	if code, why := capitest.Graph(0, 1, graph.Handle()); code != 1 || why != refused {
		t.Errorf("%d, %q; want 1, %q", code, why, refused)
	}
	c.HandOver(graph.Handle())
	if _, err := f.ConfigureBatch(0, 1, device.HostBuffers(make([]byte, 16)), device.HostBuffers(make([]byte, 4))); err != nil {
		t.Fatal(err)
	}
	first := f.graphs.find(batch{0, 1})
	if code, why := capitest.Graph(0, 1, graph.Handle()); code != 1 || why != refused {
		t.Errorf("when it is configured: %d, %q; want 1, %q", code, why, refused)
	}
	if f.graphs.find(batch{0, 1}) != first {
		t.Error("the graph was replaced, which may be in flight")
	}
}

// If the driver fails to destroy a graph, the new buffers stay pinned.
func TestGraphDestroyFails(t *testing.T) {
	f, c, graph, _ := captured(t)
	c.HandOver(graph.Handle())
	buffers := func() ([]byte, [][]byte) { return make([]byte, 16), [][]byte{make([]byte, 4)} }
	input, outputs := buffers()
	if _, err := f.ConfigureBatch(0, 1, device.HostBuffers(input), device.HostBuffers(outputs...)); err != nil {
		t.Fatal(err)
	}
	kept := f.graphs.find(batch{0, 1})
	t.Cleanup(func() {
		if err := kept.executable.Destroy(); err != nil {
			t.Error(err)
		}
	})
	c.HandOver(0)
	const invalidValue = cuda.Code(1)
	cudafake.Apply(t, cudafake.Refuse("cuGraphExecDestroy", 1, invalidValue))
	input, outputs = buffers()
	if _, err := f.ConfigureBatch(0, 1, device.HostBuffers(input), device.HostBuffers(outputs...)); err == nil || !strings.Contains(err.Error(), "release graph") {
		t.Errorf("error %v, want one of a graph that is not given back", err)
	}
	// The runtime ends the process if a pinner becomes garbage while it pins.
	for range 3 {
		runtime.GC()
	}
}
