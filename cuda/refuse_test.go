//go:build cgo

package cuda_test

import (
	"errors"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/cudatest"
	"github.com/penstock/penstock/internal/testing/must"
)

// bench has every object that a call may need, on the fake GPU.
type bench struct {
	context    *cuda.Context
	stream     cuda.Stream
	event      cuda.Event
	timed      cuda.Event
	memory     cuda.Pointer
	pinned     []byte
	mapped     []byte
	module     *cuda.Module
	fill       cuda.Function
	args       *cuda.Args
	split      *cuda.Split
	green      *cuda.Green
	arena      *cuda.Arena
	graph      *cuda.Graph
	executable *cuda.Executable
}

var one = [3]uint32{1, 1, 1}

// newBench makes a bench that lasts until the test's end, and then checks that nothing
// is left.
func newBench(t *testing.T) *bench {
	t.Helper()
	cudafake.Check(t)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	device := must.Get(cuda.Find("cuda"))(t)
	b := &bench{context: must.Get(device.OpenContext())(t)}
	c := b.context
	undo := func(f func() error) { t.Cleanup(func() { must.OK(t, f()) }) }
	undo(c.Close)
	must.OK(t, c.Bind())
	b.stream = must.Get(c.NewStream())(t)
	undo(b.stream.Destroy)
	b.event = must.Get(c.NewEvent(false))(t)
	undo(b.event.Destroy)
	b.timed = must.Get(c.NewEvent(true))(t)
	undo(b.timed.Destroy)
	b.memory = must.Get(c.Allocate(4096))(t)
	undo(func() error { return c.Free(b.memory) })
	b.pinned = must.Get(c.AllocateHost(4096))(t)
	undo(func() error { return c.FreeHost(b.pinned) })
	b.mapped = must.Get(unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))(t)
	undo(func() error { return unix.Munmap(b.mapped) })
	b.module = must.Get(c.Load(cudatest.PTX))(t)
	undo(b.module.Unload)
	b.fill = must.Get(b.module.Function("penstock_fill"))(t)
	b.args = cuda.NewArgs(8, 4, 4)
	b.args.SetPointer(0, b.memory)
	b.split = must.Get(device.Split())(t)
	b.green = must.Get(c.Green(b.split, []int{0}))(t)
	undo(b.green.Destroy)
	b.arena = must.Get(c.NewArena(1))(t)
	undo(b.arena.Close)
	must.OK(t, b.stream.Capture())
	must.OK(t, b.fill.Launch(one, one, 0, b.stream, b.args))
	b.graph = must.Get(b.stream.EndCapture())(t)
	undo(b.graph.Destroy)
	b.executable = must.Get(b.graph.Instantiate())(t)
	undo(b.executable.Destroy)
	return b
}

func second[T any](_ T, err error) error { return err }

// calls maps each of the driver's functions to a use of this package that calls it, and
// releases what it allocates.
func (b *bench) calls() map[string]func() error {
	c := b.context
	return map[string]func() error{
		"cuDriverGetVersion":            func() error { return second(cuda.DriverVersion()) },
		"cuDeviceGetCount":              func() error { return second(cuda.Devices()) },
		"cuDeviceGet":                   func() error { return second(cuda.Find("cuda")) },
		"cuDeviceGetUuid_v2":            func() error { return second(cuda.Devices()) },
		"cuDeviceGetName":               func() error { return second(cuda.Devices()) },
		"cuDeviceTotalMem_v2":           func() error { return second(c.Device().Properties()) },
		"cuDeviceGetAttribute":          func() error { return second(c.Device().Properties()) },
		"cuDevicePrimaryCtxRetain":      func() error { return reopen(c) },
		"cuCtxSetCurrent":               c.Bind,
		"cuMemGetInfo_v2":               func() error { _, _, err := c.Memory(); return err },
		"cuMemAlloc_v2":                 func() error { return second(c.Allocate(64)) },
		"cuMemHostAlloc":                func() error { return second(c.AllocateHost(64)) },
		"cuMemHostRegister_v2":          func() error { return second(c.Register(b.mapped, false)) },
		"cuMemHostGetDevicePointer_v2":  func() error { return second(c.Register(b.mapped, false)) },
		"cuMemGetAllocationGranularity": func() error { return second(c.NewArena(1)) },
		"cuMemCreate":                   func() error { return second(c.NewArena(1)) },
		"cuMemAddressReserve":           func() error { return second(c.NewArena(1)) },
		"cuMemMap":                      func() error { return second(c.NewArena(1)) },
		"cuMemSetAccess":                func() error { return second(c.NewArena(1)) },
		"cuMemExportToShareableHandle":  func() error { return second(b.arena.ExportFD()) },
		"cuMemImportFromShareableHandle": func() error {
			return second(c.ImportArena(0, 2<<20, false))
		},
		"cuStreamCreate":             func() error { return second(c.NewStream()) },
		"cuStreamCreateWithPriority": func() error { return second(c.NewPriorityStream(-1)) },
		"cuCtxGetStreamPriorityRange": func() error {
			_, _, err := c.StreamPriorities()
			return err
		},
		"cuStreamSynchronize":     b.stream.Synchronize,
		"cuStreamQuery":           func() error { return second(b.stream.Query()) },
		"cuStreamWaitEvent":       func() error { return b.stream.Wait(b.event) },
		"cuMemcpyAsync":           func() error { return b.stream.Copy(b.memory, b.memory+64, 64) },
		"cuMemsetD8Async":         func() error { return b.stream.Set(b.memory, 1, 64) },
		"cuStreamWriteValue32_v2": func() error { return b.stream.WriteValue(b.memory, 1) },
		"cuEventCreate":           func() error { return second(c.NewEvent(false)) },
		"cuEventRecord":           func() error { return b.event.Record(b.stream) },
		"cuEventQuery":            func() error { return second(b.event.Query()) },
		"cuEventSynchronize":      b.event.Synchronize,
		"cuEventElapsedTime":      func() error { return second(cuda.Elapsed(b.timed, b.timed)) },
		"cuModuleLoadDataEx":      func() error { return second(c.Load(cudatest.PTX)) },
		"cuModuleGetFunction":     func() error { return second(b.module.Function("penstock_fill")) },
		"cuLaunchKernel":          func() error { return b.fill.Launch(one, one, 0, b.stream, b.args) },
		"cuStreamBeginCapture_v2": b.stream.Capture,
		"cuStreamEndCapture":      func() error { return second(b.stream.EndCapture()) },
		"cuGraphInstantiateWithFlags": func() error {
			return second(b.graph.Instantiate())
		},
		"cuGraphLaunch":               func() error { return b.executable.Launch(b.stream) },
		"cuGraphUpload":               func() error { return b.executable.Upload(b.stream) },
		"cuDeviceGetDevResource":      func() error { return second(c.Device().Split()) },
		"cuDevSmResourceSplitByCount": func() error { return second(c.Device().Split()) },
		"cuDevResourceGenerateDesc":   func() error { return second(c.Green(b.split, []int{1})) },
		"cuGreenCtxCreate":            func() error { return second(c.Green(b.split, []int{1})) },
		"cuCtxFromGreenCtx":           func() error { return second(c.Green(b.split, []int{1})) },
		"cuGreenCtxGetDevResource":    func() error { return second(c.Green(b.split, []int{1})) },
		"cuGreenCtxStreamCreate":      func() error { return second(b.green.NewStream()) },
	}
}

func reopen(c *cuda.Context) error {
	again, err := c.Device().OpenContext()
	if err != nil {
		return err
	}
	return again.Close()
}

func TestRefusedCalls(t *testing.T) {
	b := newBench(t)
	for symbol, call := range b.calls() {
		before := cudafake.Now().Out()
		cudafake.Set(t, cudafake.Refuse(symbol, 0, 46))
		err := call()
		var refused *cuda.Error
		if !errors.As(err, &refused) || refused.Code != 46 || refused.Op+"_v2" != symbol && refused.Op != symbol {
			t.Errorf("%s: the error is %v", symbol, err)
		}
		cudafake.Reset()
		if after := cudafake.Now().Out(); after != before {
			t.Errorf("%s left\nbefore %+v\nafter  %+v", symbol, before, after)
		}
	}
}

// A refused release must also be reported.
func TestRefusedDestroy(t *testing.T) {
	b := newBench(t)
	c := b.context
	for symbol, call := range map[string]func() error{
		"cuDevicePrimaryCtxRelease_v2": c.Close,
		"cuMemFree_v2":                 func() error { return c.Free(b.memory) },
		"cuMemFreeHost":                func() error { return c.FreeHost(b.pinned) },
		"cuMemHostUnregister":          func() error { return c.Unregister(b.mapped) },
		"cuStreamDestroy_v2":           b.stream.Destroy,
		"cuEventDestroy_v2":            b.event.Destroy,
		"cuModuleUnload":               b.module.Unload,
		"cuGraphDestroy":               b.graph.Destroy,
		"cuGraphExecDestroy":           b.executable.Destroy,
	} {
		cudafake.Set(t, cudafake.Refuse(symbol, 0, 46))
		var refused *cuda.Error
		if err := call(); !errors.As(err, &refused) || refused.Code != 46 {
			t.Errorf("%s: the error is %v", symbol, err)
		}
		cudafake.Reset()
	}
	must.OK(t, c.Bind()) // Close has unbound this thread
}

func TestArenaFailure(t *testing.T) {
	b := newBench(t)
	fd := must.Get(b.arena.ExportFD())(t)
	file := os.NewFile(uintptr(fd), "arena")
	defer file.Close()
	for _, symbol := range []string{"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"} {
		before := cudafake.Now()
		cudafake.Set(t, cudafake.Refuse(symbol, 0, cuda.OutOfMemory))
		if a, err := b.context.ImportArena(fd, b.arena.Bytes(), true); !errors.Is(err, cuda.ErrOutOfMemory) || a != nil {
			t.Errorf("%s: %v, %v", symbol, a, err)
		}
		cudafake.Reset()
		if after := cudafake.Now(); after != before {
			t.Errorf("%s left %+v", symbol, after)
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	b := newBench(t)
	c := b.context
	cudafake.Apply(t, cudafake.Memory(cudafake.Now().Taken()+10<<20))
	free, total, err := c.Memory()
	if err != nil || free != 10<<20 || total <= free {
		t.Errorf("%d of %d are free, %v", free, total, err)
	}
	p := must.Get(c.Allocate(8 << 20))(t)
	if _, err := c.Allocate(8 << 20); !errors.Is(err, cuda.ErrOutOfMemory) || !strings.Contains(err.Error(), "8388608 bytes") {
		t.Errorf("with 2 MiB left 8 MiB are %v", err)
	}
	if _, err := c.NewArena(8 << 20); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("with 2 MiB left an arena of 8 MiB is %v", err)
	}
	must.OK(t, c.Free(p))
	a := must.Get(c.NewArena(8 << 20))(t)
	if _, err := c.Allocate(8 << 20); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("beside an arena of 8 MiB, 8 MiB are %v", err)
	}
	must.OK(t, a.Close())
	must.OK(t, c.Free(must.Get(c.Allocate(8<<20))(t)))
}

func TestQuery(t *testing.T) {
	b := newBench(t)
	cudafake.Apply(t, cudafake.Hold)
	clear(b.pinned)
	must.OK(t, b.stream.Set(cuda.At(b.pinned), 7, 64))
	must.OK(t, b.event.Record(b.stream))
	if done, err := b.stream.Query(); done || err != nil {
		t.Errorf("held, the stream is done: %v, %v", done, err)
	}
	if done, err := b.event.Query(); done || err != nil {
		t.Errorf("held, the event is done: %v, %v", done, err)
	}
	if b.pinned[0] != 0 {
		t.Error("held, the work was done")
	}
	start := time.Now() // before the timer starts that releases the work
	time.AfterFunc(20*time.Millisecond, func() { cudafake.Set(t, cudafake.Release) })
	must.OK(t, b.event.Synchronize())
	if took := time.Since(start); took < 20*time.Millisecond || b.pinned[0] != 7 {
		t.Errorf("after %v the work is done: %d", took, b.pinned[0])
	}
	cudafake.Set(t, cudafake.Late(5*time.Millisecond))
	for try := 1; ; try++ { // if this thread was stopped in between, queueing took longer
		start = time.Now()
		must.OK(t, b.stream.Set(b.memory, 1, 64))
		must.OK(t, b.stream.Set(b.memory, 2, 64))
		queued := time.Since(start)
		must.OK(t, b.stream.Synchronize())
		took := time.Since(start)
		if took < 10*time.Millisecond || queued > took/2 && try == 100 {
			t.Errorf("try %d: two pieces of 5 ms were queued in %v and took %v", try, queued, took)
		}
		if queued <= took/2 || try == 100 {
			break
		}
	}
	cudafake.Set(t, cudafake.Delay("cuCtxSetCurrent", 10*time.Millisecond))
	start = time.Now()
	must.OK(t, b.context.Bind())
	if took := time.Since(start); took < 10*time.Millisecond {
		t.Errorf("a call of 10 ms took %v", took)
	}
}

func TestFaultIsSticky(t *testing.T) {
	b := newBench(t)
	cudafake.Apply(t, cudafake.Fault("penstock_fill", 2, cuda.IllegalAddress))
	clear(b.pinned)
	must.OK(t, b.fill.Launch(one, one, 0, b.stream, b.args))
	must.OK(t, b.stream.WriteValue(cuda.At(b.pinned), 1))
	must.OK(t, b.stream.Synchronize())
	must.OK(t, b.fill.Launch(one, one, 0, b.stream, b.args))
	if err := b.stream.WriteValue(cuda.At(b.pinned), 2); err != nil && !errors.Is(err, cuda.ErrLost) {
		t.Error(err)
	}
	if err := b.stream.Synchronize(); !errors.Is(err, cuda.ErrLost) || !strings.Contains(err.Error(), "CUDA_ERROR_ILLEGAL_ADDRESS (700)") {
		t.Errorf("after the fault: %v", err)
	}
	if b.pinned[0] != 1 {
		t.Error("what was queued after the fault was done")
	}
	// Calls that the driver answers without the device still work.
	without := []string{"cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2", "cuDeviceGetName",
		"cuDeviceTotalMem_v2", "cuDeviceGetAttribute", "cuDeviceGetDevResource", "cuDevSmResourceSplitByCount",
		"cuMemGetAllocationGranularity", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"}
	for symbol, call := range b.calls() {
		if err := call(); !errors.Is(err, cuda.ErrLost) && !slices.Contains(without, symbol) {
			t.Errorf("%s: after the fault the error is %v", symbol, err)
		}
	}
	if cudafake.Now().Lost != 700 {
		t.Errorf("the device was lost with %d", cudafake.Now().Lost)
	}
}

func TestLostWhileWaiting(t *testing.T) {
	b := newBench(t)
	cudafake.Apply(t, cudafake.Hold)
	must.OK(t, b.stream.Set(b.memory, 1, 64))
	time.AfterFunc(10*time.Millisecond, func() { cudafake.Set(t, cudafake.Lose[cuda.Code](719)) })
	if err := b.stream.Synchronize(); !errors.Is(err, cuda.ErrLost) {
		t.Errorf("the thread that waited was told %v", err)
	}
}

func TestThreadNotBound(t *testing.T) {
	b := newBench(t)
	refused := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		refused <- second(b.context.Allocate(64))
		refused <- b.context.Bind()
		p, err := b.context.Allocate(64)
		refused <- errors.Join(err, b.context.Free(p))
		s, err := b.context.NewStream()
		refused <- err
		err = b.fill.Launch(one, one, 0, s, b.args)
		refused <- errors.Join(err, s.Synchronize(), s.Destroy())
	}()
	var e *cuda.Error
	if err := <-refused; !errors.As(err, &e) || e.Code != cuda.InvalidContext {
		t.Errorf("an unbound thread allocates: %v", err)
	}
	for range 4 {
		must.OK(t, <-refused)
	}
}

func TestCloseUnbinds(t *testing.T) {
	b := newBench(t)
	again := must.Get(b.context.Device().OpenContext())(t)
	must.OK(t, again.Close())
	if err := second(b.context.Allocate(64)); err == nil {
		t.Error("after Close the thread is still bound")
	}
	must.OK(t, b.context.Bind()) // the first context is still open
	must.OK(t, b.context.Free(must.Get(b.context.Allocate(64))(t)))
}

func TestLaunch(t *testing.T) {
	b := newBench(t)
	cudafake.Reset()
	s := must.Get(b.green.NewStream())(t)
	defer func() { must.OK(t, s.Destroy()) }()
	b.args.SetUint32(1, 17)
	b.args.SetUint32(2, 1<<32-1)
	must.OK(t, b.fill.Launch([3]uint32{2, 3, 4}, [3]uint32{5, 6, 7}, 1024, s, b.args))
	b.args.SetUint32(1, math.Float32bits(1.5))
	b.args.SetUint32(2, 0)
	must.OK(t, b.fill.Launch(one, one, 0, b.stream, b.args))
	must.OK(t, s.Synchronize())
	must.OK(t, b.stream.Synchronize())
	ran := cudafake.Launches()
	if len(ran) != 2 {
		t.Fatalf("%d launches ran", len(ran))
	}
	if ran[0].Stream != s.Handle() {
		ran[0], ran[1] = ran[1], ran[0]
	}
	first, second := ran[0], ran[1]
	if first.Name != "penstock_fill" || first.Grid != [3]uint32{2, 3, 4} || first.Block != [3]uint32{5, 6, 7} ||
		first.SharedBytes != 1024 || first.SMs != 8 || second.SMs != 132 || second.Stream != b.stream.Handle() {
		t.Errorf("%+v", ran)
	}
	if len(first.Arguments) != 3 || first.Arguments[1][0] != 17 || !slices.Equal(first.Arguments[2], []byte{255, 255, 255, 255}) ||
		!slices.Equal(second.Arguments[1], []byte{0, 0, 0xc0, 0x3f}) {
		t.Errorf("%+v", ran)
	}
}

func TestInvalidArguments(t *testing.T) {
	args := cuda.NewArgs(8, 4)
	for name, f := range map[string]func(){
		"a word of 8 bytes in 4": func() { args.SetPointer(1, 1) },
		"a word of 4 bytes in 8": func() { args.SetUint32(0, 1) },
		"an argument too many":   func() { args.SetUint32(2, 1) },
		"no size":                func() { cuda.NewArgs(0) },
		"too large":              func() { cuda.NewArgs(5000) },
		"too many":               func() { cuda.NewArgs(make([]int, 65)...) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
	many := cuda.NewArgs(slices.Repeat([]int{1}, 64)...)
	for i := range 64 {
		if len(many.Bytes(i)) != 1 || cap(many.Bytes(i)) != 1 || uint64(cuda.At(many.Bytes(i)))%16 != 0 {
			t.Errorf("argument %d is %d bytes of %d at %#x", i, len(many.Bytes(i)), cap(many.Bytes(i)), cuda.At(many.Bytes(i)))
		}
	}
}

func init() {
	// Uses of functions that an old driver lacks, by the function's name.
	children["old"] = func() error {
		runtime.LockOSThread()
		d, err := cuda.Find("cuda")
		if err != nil {
			return err
		}
		c, err := d.OpenContext()
		if err != nil {
			return err
		}
		if err := c.Bind(); err != nil {
			return err
		}
		s, err := c.NewStream()
		if err != nil {
			return err
		}
		if sms, err := c.SMs(); err != nil || sms == 0 {
			return errors.Join(errors.New("SMs are counted without cuCtxGetExecAffinity"), err)
		}
		for symbol, use := range map[string]func() error{
			"cuDeviceGetDevResource":        func() error { return second(d.Split()) },
			"cuMemGetAllocationGranularity": func() error { return second(c.NewArena(1)) },
			"cuStreamBeginCapture_v2":       s.Capture,
			"cuStreamWriteValue32_v2":       func() error { return s.WriteValue(0, 1) },
		} {
			err := use()
			var e *cuda.SymbolError
			if !errors.As(err, &e) || e.Symbol != symbol || e.Library != cuda.Library() || !errors.Is(err, cuda.ErrNotSupported) {
				return errors.Join(errors.New(symbol+" is missing, and the error is another"), err)
			}
		}
		return errors.Join(s.Destroy(), c.Close())
	}
}

func init() {
	// Close of a context with two green contexts: it cannot destroy the first, and the
	// second is in use.
	children["greens"] = func() error {
		runtime.LockOSThread()
		d, err := cuda.Find("cuda")
		if err != nil {
			return err
		}
		c, err := d.OpenContext()
		if err != nil {
			return err
		}
		s, err := d.Split()
		if err := errors.Join(err, c.Bind()); err != nil {
			return err
		}
		g, err := c.Green(s, []int{3})
		if err != nil {
			return err
		}
		if _, err := c.Green(s, []int{0, 1}); err != nil {
			return err
		}
		return errors.Join(g.Destroy(), c.Close())
	}
}

func TestCloseWithGreenContexts(t *testing.T) {
	message := inChild(t, "greens", cudafake.Env(cudafake.Refuse("cuGreenCtxDestroy", 0, 46)))
	for _, want := range []string{"cuGreenCtxDestroy: CUDA_ERROR_DEVICE_UNAVAILABLE", "groups [0 1] is in use"} {
		if !strings.Contains(message, want) {
			t.Errorf("Close says %q, without %q", message, want)
		}
	}
}

func TestGreenDestroy(t *testing.T) {
	b := newBench(t)
	cudafake.Apply(t, cudafake.Hold)
	must.OK(t, b.stream.Set(b.memory, 1, 64))
	start := time.Now()
	time.AfterFunc(10*time.Millisecond, func() { cudafake.Set(t, cudafake.Release) })
	must.OK(t, must.Get(b.context.Green(b.split, []int{5}))(t).Destroy())
	if took := time.Since(start); took < 10*time.Millisecond {
		t.Errorf("it was made in %v", took)
	}
}

func TestOldDriver(t *testing.T) {
	old, err := cudafake.Build(t.TempDir(), cudafake.Without("cuDeviceGetDevResource", "cuMemGetAllocationGranularity",
		"cuStreamBeginCapture_v2", "cuStreamWriteValue32_v2", "cuCtxGetExecAffinity"))
	must.OK(t, err)
	if message := inChild(t, "old", cudafake.Library(old)); message != "<nil>" {
		t.Error(message)
	}
}
