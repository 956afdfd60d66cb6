// Package gputest is a test suite for the GPU device and its gather kernel. Package
// gpu's own tests run it on the fake driver with a C twin of the kernel, and
// test/gpu runs it on a GPU.
//
//	func TestMain(m *testing.M) { gputest.Child(); os.Exit(m.Run()) }
//	func TestGPU(t *testing.T) { gputest.Run(t) }
package gputest

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudatest"
	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Twins does on the fake driver what gather.cu does on a GPU: for cudafake.Kernels.
//
//go:embed twins/gather.c
var Twins string

// Run runs the suite on the first device and leaves nothing on it. It takes about a
// minute, mostly for thousands of random pictures.
func Run(t *testing.T) {
	runtime.LockOSThread() // never unlocked: cleanups need the bound thread too
	b := newHarness(t)
	opens := func(o gpu.Options) devicetest.Open {
		return func(in models.Input) (devicetest.Target, error) {
			d, err := gpu.New(in, o)
			if err != nil {
				return devicetest.Target{}, err
			}
			return devicetest.Target{Device: d, Read: b.read, Write: b.write}, nil
		}
	}
	open := opens(gpu.Options{Device: "cuda"})
	t.Run("ItIsADevice", func(t *testing.T) { devicetest.Run(t, open) })
	t.Run("ItIsADeviceWhereTheCPUGathers", func(t *testing.T) { devicetest.Run(t, opens(gpu.Options{Device: "cuda", Copy: true})) })
	t.Run("ItHasPartitions", func(t *testing.T) {
		split, err := b.context.Device().Split()
		if errors.Is(err, cuda.ErrNotSupported) {
			t.Skipf("this driver or device has no green contexts: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		devicetest.RunPartitioned(t, open, split.GroupSMs())
	})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *harness)
	}{
		{"RandomPicturesGatherLikeTheCPUs", agrees},
		{"EveryAlignmentOfSourceAndPlaceIsRight", alignments},
		{"LongPiecesAreCut", longFragments},
		{"BadDescriptorsAreReportedAndWriteNothing", badDescriptors},
		{"RandomDescriptorsWriteNothingOutside", randomDescriptors},
		{"ASlabThatIsMappedReadOnlyIsRead", readOnly},
		{"WhatIsCopiedIsWhatTheKernelGathers", bothWays},
		{"Pictures", pictures},
		{"PicturesInManyRooms", manyPictures},
		{"LargePictures", largePicture},
		{"ABatchAllocatesNothing", allocatesNothing},
		{"Follow", follows},
		{"AWaitingThreadSleeps", sleeps},
		{"ALostDeviceIsToldSoon", reportsLoss},
	} {
		t.Run(test.name, func(t *testing.T) {
			runtime.LockOSThread()
			b.bind(t)
			test.run(t, b)
		})
	}
}

// harness is the harness: a context that stays open, and access to device memory.
type harness struct {
	context *cuda.Context
	stream  cuda.Stream
	stage   []byte
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	found, err := cuda.Find("cuda")
	must.OK(t, err)
	b := &harness{}
	if b.context, err = found.OpenContext(); err != nil {
		t.Fatal(err)
	}
	b.bind(t)
	if b.stream, err = b.context.NewStream(); err != nil {
		t.Fatal(err)
	}
	if b.stage, err = b.context.AllocateHost(stageBytes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.bind(t)
		if err := errors.Join(b.context.FreeHost(b.stage), b.stream.Destroy(), b.context.Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// stageBytes is the max size of one copy.
const stageBytes = 1 << 20

func (b *harness) bind(t *testing.T) {
	t.Helper()
	must.OK(t, b.context.Bind())
}

// read copies device memory to the host.
func (b *harness) read(tensor device.Buffer) []byte {
	var out []byte
	for at := 0; at < tensor.Len(); at += stageBytes {
		n := min(stageBytes, tensor.Len()-at)
		b.copy(cuda.At(b.stage), cuda.Pointer(tensor.Address()+uintptr(at)), n)
		out = append(out, b.stage[:n]...)
	}
	return out
}

// write copies into device memory.
func (b *harness) write(tensor device.Buffer, data []byte) {
	for at := 0; at < len(data); at += stageBytes {
		n := copy(b.stage, data[at:])
		b.copy(cuda.Pointer(tensor.Address()+uintptr(at)), cuda.At(b.stage), n)
	}
}

// copy panics on errors, because its callers cannot return them.
func (b *harness) copy(dst, src cuda.Pointer, n int) {
	if err := errors.Join(b.stream.Copy(dst, src, n), b.stream.Synchronize()); err != nil {
		panic(fmt.Sprintf("copy %d bytes: %v", n, err))
	}
}

// pages returns whole pages of zeros, valid until the test's end.
func pages(t *testing.T, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	must.OK(t, err)
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

// small returns a device for pictures of 64 bytes that are not converted, with a
// slab, and with tensors for eight pictures.
func small(t *testing.T, slab []byte) (*gpu.Device, []device.Tensors) {
	t.Helper()
	return smallWith(t, slab, gpu.Options{Device: "cuda"})
}

func smallWith(t *testing.T, slab []byte, o gpu.Options) (*gpu.Device, []device.Tensors) {
	t.Helper()
	return deviceOf(t, models.Input{
		Height: 8, Width: 8, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC,
	}, slab, o)
}

func deviceOf(t *testing.T, in models.Input, slab []byte, o gpu.Options) (*gpu.Device, []device.Tensors) {
	t.Helper()
	d, err := gpu.New(in, o)
	must.OK(t, err)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	must.OK(t, d.AddSlab(slab))
	sizes := device.Sizes{Input: 8 * 64, Outputs: []int{8 * 400, 8 * 4}}
	tensors, err := d.Tensors(pages(t, gpu.SharedBytes(sizes)), sizes)
	must.OK(t, err)
	return d, tensors
}

func requests(n int) []device.Request {
	reqs := make([]device.Request, n)
	for i := range reqs {
		reqs[i] = device.Request{Bytes: 64, Fragments: []shm.Fragment{{Offset: uint64(64 * i), Length: 64}}}
	}
	return reqs
}

func readOnly(t *testing.T, b *harness) {
	fd, err := unix.MemfdCreate("slab", unix.MFD_CLOEXEC)
	must.OK(t, err)
	defer unix.Close(fd)
	want := make([]byte, 4096)
	for i := range want {
		want[i] = byte(i*7 + 1)
	}
	if _, err := unix.Write(fd, want); err != nil {
		t.Fatal(err)
	}
	slab, err := unix.Mmap(fd, 0, len(want), unix.PROT_READ, unix.MAP_SHARED)
	must.OK(t, err)
	t.Cleanup(func() {
		if err := unix.Munmap(slab); err != nil {
			t.Error(err)
		}
	})
	d, tensors := small(t, slab)
	must.OK(t, d.Gather(0, tensors[0].Input, requests(8), make([]bool, 8)))
	if _, err := d.Wait(0); err != nil {
		t.Fatal(err)
	}
	if got := b.read(tensors[0].Input); !slices.Equal(got, want[:len(got)]) {
		t.Error("what was gathered is not what the slab has")
	}
}

func allocatesNothing(t *testing.T, b *harness) {
	for _, o := range []gpu.Options{{LargestPicture: 64}, {Copy: true}} {
		b.bind(t)
		reqs := requests(6)
		if o.LargestPicture > 0 {
			reqs[1].Picture = wire.Picture{Format: wire.FormatGrey8, Width: 4, Height: 16}
		}
		o.Device = "cuda"
		d, tensors := smallWith(t, pages(t, 4096), o)
		batchesAllocateNothing(t, d, tensors, reqs)
	}
}

func batchesAllocateNothing(t *testing.T, d *gpu.Device, tensors []device.Tensors, reqs []device.Request) {
	refused := make([]bool, len(reqs))
	batch := func() {
		for slot := range 2 {
			err := errors.Join(d.Gather(slot, tensors[slot].Input, reqs, refused), d.Pad(slot, tensors[slot].Input, 6, 8), d.Fetch(slot, 8))
			must.OK(t, err)
		}
		for slot := range 2 {
			for done := false; !done; {
				var err error
				if done, err = d.Done(slot); err != nil {
					t.Fatal(err)
				}
			}
			if inferred, err := d.Wait(slot); err != nil || inferred < 0 {
				t.Fatal(inferred, err)
			}
		}
	}
	// errors.Join of only nil values allocates nothing.
	if n := testing.AllocsPerRun(100, batch); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// sleeps makes batches take some milliseconds, by copies in place of a framework's
// work. It measures how busy the waiting thread is, and how much later it notices
// the end than a thread that polls all the time.
func sleeps(t *testing.T, b *harness) {
	d, tensors := small(t, pages(t, 4096))
	target, err := b.context.Allocate(stageBytes)
	must.OK(t, err)
	defer func() {
		if err := b.context.Free(target); err != nil {
			t.Error(err)
		}
	}()
	const batches, copies = 40, 150
	run := func(spin bool) (busy, all, after time.Duration) {
		for i := range batches {
			must.OK(t, d.Gather(0, tensors[0].Input, requests(8), make([]bool, 8)))
			for range copies {
				must.OK(t, cuda.StreamOf(d.Stream(0)).Copy(target, cuda.At(b.stage), stageBytes))
			}
			must.OK(t, d.Fetch(0, 8))
			from, cpu := time.Now(), threadTime(t)
			for done := !spin; !done; {
				if done, err = d.Done(0); err != nil {
					t.Fatal(err)
				}
			}
			inferred, err := d.Wait(0)
			must.OK(t, err)
			if i >= batches/2 { // in the first half the device learns how long a batch takes
				took := time.Since(from)
				busy, all, after = busy+threadTime(t)-cpu, all+took, after+took-inferred
			}
		}
		return busy / (batches / 2), all / (batches / 2), after / (batches / 2)
	}
	busy, all, after := run(false)
	_, watched, least := run(true)
	t.Logf("a batch of %v: busy for %v of it; watched all the time it takes %v; known %v later than if watched", all, busy, watched, after-least)
	if busy > all*9/10 {
		t.Errorf("the thread was busy for %v of the %v that it waited", busy, all)
	}
}

func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	must.OK(t, unix.Getrusage(unix.RUSAGE_THREAD, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const childEnv = "PENSTOCK_GPUTEST"

// Child runs the process whose device is lost and exits, if this process was started
// as one, because a context does not survive that. Every TestMain of a package that
// calls Run must call Child first.
func Child() {
	if os.Getenv(childEnv) == "" {
		return
	}
	if err := loseDevice(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func reportsLoss(t *testing.T, _ *harness) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the process that loses its device: %v\n%s", err, out)
	}
}

// loseDevice makes a kernel write to an invalid address in the middle of a batch.
func loseDevice() error {
	runtime.LockOSThread()
	d, err := gpu.New(models.Input{
		Height: 8, Width: 8, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC,
	}, gpu.Options{Device: "cuda"})
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		return err
	}
	if err := d.AddSlab(memory[:4096]); err != nil {
		return err
	}
	tensors, err := d.Tensors(memory[8192:], device.Sizes{Input: 8 * 64, Outputs: []int{64}})
	if err != nil {
		return err
	}
	found, err := cuda.Find("cuda")
	if err != nil {
		return err
	}
	context, err := found.OpenContext()
	if err != nil {
		return err
	}
	module, err := context.Load(cudatest.PTX)
	if err != nil {
		return err
	}
	faulty, err := module.Function("penstock_fault")
	if err != nil {
		return err
	}
	args := cuda.NewArgs(8)
	args.SetPointer(0, 0x10)
	if err := d.Gather(0, tensors[0].Input, requests(8), make([]bool, 8)); err != nil {
		return err
	}
	one := [3]uint32{1, 1, 1}
	if err := faulty.Launch(one, one, 0, cuda.StreamOf(d.Stream(0)), args); err != nil {
		return err
	}
	if err := d.Fetch(0, 8); err != nil && !errors.Is(err, device.ErrLost) {
		return fmt.Errorf("fetch: %w", err)
	}
	if _, err := d.Wait(0); !errors.Is(err, device.ErrLost) {
		return fmt.Errorf("wait says %v, want %w", err, device.ErrLost)
	}
	for what, err := range map[string]error{
		"gather": d.Gather(1, tensors[1].Input, requests(8), make([]bool, 8)),
		"fetch":  d.Fetch(1, 1),
		"close":  d.Close(),
	} {
		if !errors.Is(err, device.ErrLost) {
			return fmt.Errorf("after the loss %s says %v", what, err)
		}
	}
	return nil
}
