package serve

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// serving starts a process on the harness's device and waits until it owns the ring.
func (h *harness) serving(f *functiontest.Fake, generation uint32) *child {
	h.TB.Helper()
	c := h.start(generation, f.Build, nil)
	c.order(control.Order{Do: control.DoWake, SharePercent: 50})
	c.await(control.Ready)
	f.Serve()
	h.Channel.SetEpoch(generation)
	c.await(control.Active)
	return c
}

// drained drains a process and checks that it ends without an error.
func (c *child) drained() {
	c.t.Helper()
	c.order(control.Order{Do: control.DoDrain})
	if err := c.end(); err != nil {
		c.t.Errorf("a drained process ends with %v", err)
	}
}

// The ring changes hands with batches in flight: these belong to the old process, the
// waiting requests to the new one.
func TestGPUHandover(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	h.streams = 2
	old := h.Fake()
	first := h.serving(old, 1)
	release := h.Hold()
	for slot := range uint32(6) {
		h.Publish(slot, h.Picture(byte(slot)), nil)
		wait.For(t, "two batches in flight", func() bool {
			sizes, _ := old.History()
			return len(sizes) == min(int(slot)+1, 2)
		})
	}
	again := newGPUHarness(t, functiontest.Card()) // another object for the same GPU
	again.Channel.Close()
	h.GPU = again.GPU
	shadow := h.Fake()
	second := h.start(2, shadow.Build, nil)
	second.order(control.Order{Do: control.DoWake, SharePercent: 50})
	second.await(control.Ready)
	shadow.Serve()
	h.Channel.SetEpoch(2)
	time.Sleep(5 * time.Millisecond)
	h.Silent()
	release()
	for _, slot := range h.Replies(6) {
		h.Answered(slot, h.Picture(byte(slot)))
	}
	if sizes, _ := old.History(); len(sizes) != 2 {
		t.Errorf("the old process ran batches of %v, want the two in flight", sizes)
	}
	if err := first.end(); err != nil {
		t.Errorf("the old process ends with %v", err)
	}
	if r := second.awaitReport(1); r.Handovers != 1 || r.IdleNanos < 0 {
		t.Errorf("report is %+v, want a hand-over with work that waited", r)
	}
	second.drained()
}

// If a GPU fails, the requests in flight are answered as failed at once; the next
// process gets the waiting ones. Afterwards nothing that touches the GPU is called.
func TestDeviceLost(t *testing.T) {
	for _, c := range []struct {
		name     string
		inFlight int
	}{{"with one batch in flight", 1}, {"with two", 2}} {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUHarness(t, functiontest.Card())
			h.streams = c.inFlight
			f := h.Fake()
			p := h.serving(f, 1)
			h.Hold() // forever, as far as the process knows
			const requests = 5
			for slot := range uint32(requests) {
				h.Publish(slot, h.Picture(byte(slot)), nil)
				wait.For(t, "the batches are in flight", func() bool {
					sizes, _ := f.History()
					return len(sizes) == min(int(slot)+1, c.inFlight)
				})
			}
			h.GPU.Lose()
			failed := p.await(control.Failed)
			if !failed.DeviceLost || !strings.Contains(failed.Reason, device.ErrLost.Error()) {
				t.Errorf("the process reports %+v, want that its device is lost", failed)
			}
			if err := p.end(); !errors.Is(err, device.ErrLost) {
				t.Errorf("the process ends with %v", err)
			}
			if last := f.Calls[len(f.Calls)-1]; last == "deinit" {
				t.Error("the framework was called on a lost device")
			}
			for _, slot := range h.Replies(c.inFlight) {
				if got := h.Status(slot); got != wire.StatusFailed {
					t.Errorf("slot %d, in flight when the device was lost, is %v", slot, got)
				}
			}
			h.Silent()

			h.GPU = newGPUHarness(t, functiontest.Card()).GPU
			next := h.Fake()
			second := h.serving(next, 2)
			for _, slot := range h.Replies(requests - c.inFlight) {
				h.Answered(slot, h.Picture(byte(slot)))
			}
			second.drained()
		})
	}
}

// The batch that finds the device lost is the last one: no further batch begins, so the
// waiting requests do not fail with it.
func TestDeviceLostIdle(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	p := h.serving(f, 1)
	h.GPU.Lose()
	h.Publish(1, h.Picture(1), nil)
	if got := h.Status(h.Replies(1)[0]); got != wire.StatusFailed {
		t.Errorf("status %v, want failed", got)
	}
	if failed := p.await(control.Failed); !failed.DeviceLost {
		t.Errorf("the process reports %+v, want that its device is lost", failed)
	}
	if err := p.end(); !errors.Is(err, device.ErrLost) {
		t.Errorf("the process ends with %v", err)
	}
}

// The first touch fixes a process's share of the GPU. A shadow survives a fault only if
// it has not touched it.
func TestGPUShadow(t *testing.T) {
	const name = "PENSTOCK_TEST_PERCENTAGE"
	t.Setenv(name, "")
	os.Unsetenv(name)
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	var opened atomic.Pointer[string]
	h.opened = func(start control.Start) {
		seen := os.Getenv(name)
		opened.Store(&seen)
		if start.Device != h.GPU.Name() || !slices.Equal(start.GroupSMs, functiontest.Groups) {
			t.Errorf("opened %s with groups %v", start.Device, start.GroupSMs)
		}
	}
	c := h.start(1, f.Build, nil)
	c.await(control.Loaded)
	time.Sleep(10 * time.Millisecond)
	if opened.Load() != nil {
		t.Error("a shadow that sleeps has opened its GPU")
	}
	c.order(control.Order{Do: control.DoWake, SharePercent: 30, Environment: map[string]string{name: "30"}})
	ready := c.await(control.Ready)
	if seen := opened.Load(); seen == nil || *seen != "30" {
		t.Errorf("the GPU was opened with %s = %v, want 30", name, seen)
	}
	if want := 8 + 8 + 8 + 12; ready.SMs != want || ready.SMGroups != nil {
		t.Errorf("ready on %d multiprocessors, groups %v; want all %d", ready.SMs, ready.SMGroups, want)
	}
	// Both slots may be in flight, so the largest batch's memory counts twice.
	if ready.PersistentBytes != 100 || ready.EphemeralBytes != 160 {
		t.Errorf("ready with %d and %d bytes, want 100 and 160", ready.PersistentBytes, ready.EphemeralBytes)
	}
	c.drained()
	if last := f.Calls[len(f.Calls)-1]; last != "deinit" {
		t.Errorf("its last call was %s, want deinit", last)
	}
}

// The results belong to the owner of the ring; a warm-up must not write them.
func TestGPUWarmUp(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	shared := h.Tensors.Bytes()
	for i := range shared {
		shared[i] = 0xee
	}
	h.linked(h.Fake())
	if slices.Min(shared) != 0xee || slices.Max(shared) != 0xee {
		t.Error("the warm-up wrote results")
	}
}

// A process that cannot start on a GPU ends with one line about the reason.
func TestGPUStartFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		spoil  func(h *harness, f *functiontest.Fake)
		tamper func(*control.Attached)
		groups []int
		want   error
	}{
		{"no memory for tensors", func(h *harness, _ *functiontest.Fake) { h.GPU.NoMemory.Store(true) }, nil, nil, devicetest.ErrMemory},
		{"no memory for the model", func(_ *harness, f *functiontest.Fake) { f.Failing = functiontest.Only("link", devicetest.ErrMemory) }, nil, nil, devicetest.ErrMemory},
		{"no memory for a batch", func(_ *harness, f *functiontest.Fake) {
			f.Failing = functiontest.Only("configure", devicetest.ErrMemory)
		}, nil, nil, devicetest.ErrMemory},
		{"a batch that fails", func(_ *harness, f *functiontest.Fake) { f.Failing = functiontest.Only("infer", functiontest.ErrFake) }, nil, nil, functiontest.ErrFake},
		{"a device that is lost", func(h *harness, _ *functiontest.Fake) { h.GPU.Lose() }, nil, nil, device.ErrLost},
		{"too little shared memory", nil, func(a *control.Attached) { a.TensorBytes -= models.TensorAlignment }, nil, device.ErrShared},
		{"groups that there are not", nil, nil, []int{9}, devicetest.ErrGroups},
		{"no memory for a partition", func(h *harness, _ *functiontest.Fake) { h.GPU.FailRepartition.Store(1) }, nil, []int{1}, devicetest.ErrMemory},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUHarness(t, functiontest.Card())
			f := h.Fake()
			if c.spoil != nil {
				c.spoil(h, f)
			}
			p := h.start(1, f.Build, c.tamper)
			p.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: c.groups})
			err := p.end()
			if !errors.Is(err, c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the process ends with %q, want one line about %v", err, c.want)
			}
			if last := f.Calls[len(f.Calls)-1]; (last == "deinit") == (c.want == device.ErrLost) {
				t.Errorf("its last call was %s", last)
			}
		})
	}
}

// A process on the CPU refuses groups of multiprocessors.
func TestCPUGroups(t *testing.T) {
	h := newHarness(t, functiontest.Card())
	p := h.start(1, functiontest.NewFake().Build, nil)
	p.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: []int{1}})
	if err := p.end(); err == nil || !strings.Contains(err.Error(), "device cpu has no groups") {
		t.Errorf("the process ends with %v", err)
	}
}
