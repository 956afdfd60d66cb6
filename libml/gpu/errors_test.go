//go:build cgo

package gpu_test

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

var input = models.Input{
	Height: 8, Width: 8, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC,
}

var sizes = device.Sizes{Input: 8 * 64, Outputs: []int{8 * 16, 8 * 4}}

func open() (*gpu.Device, error) { return gpu.New(input, gpu.Options{Device: "cuda"}) }

// opened returns a device on this thread, with a slab and tensors.
func opened(t *testing.T) (*gpu.Device, []device.Tensors) {
	t.Helper()
	runtime.LockOSThread()
	d, err := open()
	must.OK(t, err)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	must.OK(t, d.AddSlab(memory(t)))
	tensors, err := d.Tensors(memory(t), sizes)
	must.OK(t, err)
	return d, tensors
}

func memory(t *testing.T) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	must.OK(t, err)
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

func requests() []device.Request {
	reqs := make([]device.Request, 8)
	for i := range reqs {
		reqs[i] = device.Request{Bytes: 64, Fragments: []shm.Fragment{{Offset: uint64(64 * i), Length: 64}}}
	}
	return reqs
}

func begin(d *gpu.Device, tensors []device.Tensors, slot int) error {
	return errors.Join(d.Gather(slot, tensors[slot].Input, requests(), make([]bool, 8)), d.Fetch(slot, 8))
}

func batch(d *gpu.Device, tensors []device.Tensors, slot int) error {
	if err := begin(d, tensors, slot); err != nil {
		return err
	}
	_, err := d.Wait(slot)
	return err
}

const (
	outOfMemory    = 2
	notSupported   = 801
	illegalAddress = 700
	outOfResources = 701
)

// Each call that New makes fails once.
func TestOpenFails(t *testing.T) {
	runtime.LockOSThread()
	for call, times := range map[string]int{
		"cuDevicePrimaryCtxRetain": 1, "cuCtxSetCurrent": 1, "cuModuleLoadDataEx": 1, "cuModuleGetFunction": 2, "cuMemAlloc_v2": 1,
		"cuMemHostAlloc": 2, "cuStreamCreate": 1 + device.Slots, "cuMemcpyAsync": 1, "cuEventCreate": 2 * device.Slots,
	} {
		for nth := range times {
			t.Run(call, func(t *testing.T) {
				runtime.LockOSThread()
				cudafake.Check(t)
				cudafake.Apply(t, cudafake.Refuse(call, nth+1, outOfMemory))
				if d, err := open(); err == nil {
					t.Errorf("opened all the same: %v", d.Close())
				} else if !errors.Is(err, cuda.ErrOutOfMemory) {
					t.Errorf("open says %v", err)
				}
			})
		}
	}
}

func TestInvalidInput(t *testing.T) {
	runtime.LockOSThread()
	cudafake.Check(t)
	in := input
	in.WireType = "u16"
	if _, err := gpu.New(in, gpu.Options{Device: "cuda"}); !errors.Is(err, cpu.ErrInput) {
		t.Errorf("open says %v, want %v", err, cpu.ErrInput)
	}
	if _, err := gpu.New(input, gpu.Options{Device: "cuda:9"}); !errors.Is(err, cuda.ErrNoDevice) {
		t.Errorf("open says %v, want %v", err, cuda.ErrNoDevice)
	}
}

func TestTensorsTooLarge(t *testing.T) {
	runtime.LockOSThread()
	sizes := sizes
	table := device.Table{Output: 1, Columns: 1, RowStride: 1, ColumnStride: 1}
	sizes.Selections = []device.Selection{{Rows: 1, Scores: table, Read: []device.Table{table}}}
	for call, times := range map[string]int{
		"cuMemAlloc_v2": 1, "cuMemHostRegister_v2": 1, "cuMemHostAlloc": 1 + device.Slots, "cuModuleLoadDataEx": 1, "cuModuleGetFunction": 1,
	} {
		for nth := range times {
			t.Run(call, func(t *testing.T) {
				runtime.LockOSThread()
				cudafake.Check(t)
				d, err := open()
				must.OK(t, err)
				cudafake.Apply(t, cudafake.Refuse(call, nth+1, outOfMemory))
				if _, err := d.Tensors(memory(t), sizes); !errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, device.ErrLost) {
					t.Errorf("tensors says %v", err)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestTooManySlabs(t *testing.T) {
	cudafake.Check(t)
	d, tensors := opened(t)
	for range gpu.Slabs - 1 {
		must.OK(t, d.AddSlab(memory(t)))
	}
	if err := d.AddSlab(memory(t)); err == nil {
		t.Errorf("slab %d was added", gpu.Slabs)
	}
	reqs := requests()
	reqs[7].Fragments[0].Slab = gpu.Slabs - 1
	if err := d.Gather(0, tensors[0].Input, reqs, make([]bool, 8)); err != nil {
		t.Error(err)
	}
	if _, err := d.Wait(0); err != nil {
		t.Error(err)
	}
}

// A failed call costs its batch, and no more.
func TestRefusedBatch(t *testing.T) {
	for _, call := range []string{"cuLaunchKernel", "cuEventRecord", "cuStreamWriteValue32_v2"} {
		for nth := 1; nth <= 2; nth++ {
			t.Run(call, func(t *testing.T) {
				cudafake.Check(t)
				d, tensors := opened(t)
				cudafake.Apply(t, cudafake.Refuse(call, nth, outOfResources))
				failed := 0
				for range 3 {
					if err := batch(d, tensors, 0); err != nil {
						failed++
						if errors.Is(err, device.ErrLost) {
							t.Fatalf("the batch says %v", err)
						}
						if _, err := d.Wait(0); err != nil {
							t.Errorf("after it, wait says %v", err)
						}
					}
				}
				if failed != 1 {
					t.Errorf("%d batches failed", failed)
				}
			})
		}
	}
}

func TestDone(t *testing.T) {
	cudafake.Check(t)
	d, tensors := opened(t)
	if done, err := d.Done(0); !done || err != nil {
		t.Errorf("of a slot that was asked nothing Done says %v, %v", done, err)
	}
	cudafake.Apply(t, cudafake.Hold)
	must.OK(t, begin(d, tensors, 0))
	for until := time.Now().Add(5 * time.Millisecond); time.Now().Before(until); {
		if done, err := d.Done(0); done || err != nil {
			t.Fatalf("Done says %v, %v", done, err)
		}
	}
	if err := d.Repartition([]int{0, 1}, nil); !errors.Is(err, gpu.ErrBusy) {
		t.Errorf("a slot in flight is moved: %v", err)
	}
	cudafake.Set(t, cudafake.Release)
	if inferred, err := d.Wait(0); err != nil || inferred <= 0 {
		t.Errorf("Wait says %v, %v", inferred, err)
	}
}

func TestLostDevice(t *testing.T) {
	for name, look := range map[string]func(d *gpu.Device) error{
		"Wait": func(d *gpu.Device) error { _, err := d.Wait(0); return err },
		"Done": func(d *gpu.Device) error {
			for {
				if done, err := d.Done(0); done {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			d, err := open()
			must.OK(t, err)
			must.OK(t, d.AddSlab(memory(t)))
			tensors, err := d.Tensors(memory(t), sizes)
			must.OK(t, err)
			before := cudafake.Now().Out()
			cudafake.Set(t, cudafake.Fault("gather_copy", 1, illegalAddress))
			if err := begin(d, tensors, 0); err != nil && !errors.Is(err, device.ErrLost) {
				t.Fatal(err)
			}
			if err := look(d); !errors.Is(err, device.ErrLost) || !errors.Is(err, cuda.ErrLost) {
				t.Errorf("%s says %v", name, err)
			}
			_, bySMs := d.SMs(0)
			for what, err := range map[string]error{
				"Gather": d.Gather(1, tensors[1].Input, requests(), make([]bool, 8)), "Pad": d.Pad(1, tensors[1].Input, 0, 1),
				"Fetch": d.Fetch(1, 1), "Repartition": d.Repartition([]int{2}, nil), "SMs": bySMs,
			} {
				if !errors.Is(err, device.ErrLost) {
					t.Errorf("after the loss %s says %v", what, err)
				}
			}
			// A real process would end now. Here the device comes back, and
			// everything is freed.
			cudafake.Reset()
			if err := d.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if after := cudafake.Now().Out(); after == before || after != (cudafake.Accounts{}) {
				t.Errorf("left on the fake GPU: %+v", after)
			}
		})
	}
}

// A slot that cannot be moved keeps its place.
func TestRepartitionFails(t *testing.T) {
	for call, times := range map[string]int{"cuDeviceGetDevResource": 1, "cuGreenCtxCreate": 1, "cuGreenCtxStreamCreate": 2, "cuStreamDestroy_v2": 1} {
		for nth := range times {
			t.Run(call, func(t *testing.T) {
				cudafake.Check(t)
				d, tensors := opened(t)
				if call != "cuDeviceGetDevResource" {
					for _, groups := range [][]int{{0}, {1}} { // so that there is something to destroy
						must.OK(t, d.Repartition([]int{0, 1}, groups))
					}
				}
				sms, err := d.SMs(0)
				must.OK(t, err)
				stream := d.Stream(0)
				cudafake.Apply(t, cudafake.Refuse(call, nth+1, notSupported))
				if err := d.Repartition([]int{0, 1}, []int{2, 3}); !errors.Is(err, cuda.ErrNotSupported) {
					t.Errorf("repartition says %v", err)
				}
				if now, err := d.SMs(0); now != sms || err != nil || d.Stream(0) != stream {
					t.Errorf("slot 0 has %d multiprocessors and stream %#x, %v; had %d and %#x", now, d.Stream(0), err, sms, stream)
				}
				if err := batch(d, tensors, 0); err != nil {
					t.Error(err)
				}
				if err := d.Repartition([]int{0, 1}, []int{2, 3}); err != nil {
					t.Errorf("the second time: %v", err)
				}
				if err := batch(d, tensors, 0); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A slot's old place lives until the slot moves again, and no longer.
func TestPartitionsFreed(t *testing.T) {
	cudafake.Check(t)
	d, _ := opened(t)
	for i := range 20 {
		slots := []int{0, 1}
		if i%2 == 1 {
			slots = []int{2, 3}
		}
		must.OK(t, d.Repartition(slots, []int{i % 15}))
		// Each slot has its present stream and the one before.
		want := int64(min(device.Slots+2*(i+1), 2*device.Slots))
		if got := cudafake.Now().Streams; got != want {
			t.Fatalf("after %d moves there are %d streams, want %d", i+1, got, want)
		}
	}
}

func TestLargeOutputs(t *testing.T) {
	runtime.LockOSThread()
	cudafake.Check(t)
	d, err := open()
	must.OK(t, err)
	defer d.Close()
	shared, err := unix.Mmap(-1, 0, 8<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	must.OK(t, err)
	defer unix.Munmap(shared)
	tensors, err := d.Tensors(shared, device.Sizes{Input: 8 * 64, Outputs: []int{8 * 200 << 10}})
	must.OK(t, err)
	cudafake.Apply(t)
	for images, want := range map[int][]string{5: {"fetch"}, 8: nil} {
		cudafake.Reset()
		must.OK(t, d.Fetch(0, images))
		if _, err := d.Wait(0); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, l := range cudafake.Launches() {
			names = append(names, l.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("for %d images of 200 KiB these kernels ran: %v, want %v", images, names, want)
		}
	}
	if len(tensors[0].Results[0]) != 8*200<<10 {
		t.Errorf("results have %d bytes", len(tensors[0].Results[0]))
	}
}

// TestInFlight opens a device for one batch at a time. It takes half of the memory.
func TestInFlight(t *testing.T) {
	runtime.LockOSThread()
	cudafake.Check(t)
	sizes := device.Sizes{Input: 16 << 20, Outputs: []int{512}}
	var bytes [3]int64
	for n := 1; n <= 2; n++ {
		d, err := gpu.New(input, gpu.Options{Device: "cuda", InFlight: n})
		must.OK(t, err)
		before := cudafake.Now().Bytes
		tensors, err := d.Tensors(memory(t), sizes)
		must.OK(t, err)
		bytes[n] = int64(cudafake.Now().Bytes - before)
		if d.InFlight() != n || (tensors[0].Input.Address() == tensors[1].Input.Address()) != (n == 1) {
			t.Errorf("in flight %d, want %d; tensors at %#x and %#x", d.InFlight(), n, tensors[0].Input.Address(), tensors[1].Input.Address())
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if bytes[1] < 16<<20 || 2*bytes[1] > bytes[2]+4<<20 {
		t.Errorf("%d bytes for one batch in flight, %d for two", bytes[1], bytes[2])
	}
}
