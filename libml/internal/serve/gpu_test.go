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
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// serving starts a process on the harness's device and waits until it owns the ring.
func (h *harness) serving(f *fake, generation uint32) *child {
	h.t.Helper()
	c := h.start(generation, f.build, nil)
	c.order(control.Order{Do: control.DoWake, SharePercent: 50})
	c.await(control.Ready)
	f.serve()
	h.channel.SetEpoch(generation)
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

// A process on a GPU returns the same answers as one on a CPU.
func TestGPUAnswers(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	l := h.loop(f)
	l.queue.State.Limit = 4
	l.queue.Expected = func(int) time.Duration { return time.Microsecond }
	for round := range 3 {
		for slot := range uint32(3) {
			h.publish(slot, h.picture(byte(round*10)+byte(slot)), nil)
		}
		must.OK(t, l.turn())
		for _, slot := range h.replies(3) {
			h.answered(slot, h.picture(byte(round*10)+byte(slot)))
		}
	}
	if !slices.Equal(f.ran, []int{4, 4, 4}) {
		t.Errorf("ran batches of %v, want three of 4", f.ran)
	}
}

// On a GPU the host sees only the begin and the end of a batch. The times between are
// computed back from the device's measurements.
func TestGPUStages(t *testing.T) {
	h := newGPUHarness(t, testCard())
	l := h.loop(h.fake())
	const late = 20 * time.Millisecond
	h.gpu.Late.Store(int64(late))
	h.publish(1, h.picture(1), nil)
	must.OK(t, l.turn())
	r := h.channel.Result(h.replies(1)[0])
	whole := h.table.Request(1).Complete
	if !(whole <= r.Dispatched && r.Dispatched <= r.Gathered && r.Gathered+int64(late) <= r.Inferred && r.Inferred <= h.channel.LastBatchEnd()) {
		t.Errorf("whole %d, %+v, batch end %d: not in order, or inference took no %v", whole, r, h.channel.LastBatchEnd(), late)
	}
}

func TestFlightsAllocations(t *testing.T) {
	h := newGPUHarness(t, testCard())
	h.streams = 2
	l := h.loop(h.fake())
	l.queue.State.Limit = 4
	picture := h.picture(1)
	slots := make([]uint32, h.geometry.Slots)
	turn := func() {
		l.queue.State.Limit = 4
		for slot := range uint32(8) {
			h.publish(slot, picture, nil)
		}
		for got := 0; got < 8; {
			for l.take(); l.mayBegin(); {
				l.pick()
				l.begin()
			}
			if !l.await() {
				t.Fatal("another batch may begin next to two")
			}
			got += len(h.finish(l, slots))
		}
	}
	if n := allocations(10, turn); n != 0 {
		t.Errorf("%v allocations in eight requests, want none", n)
	}
	h.answered(0, picture)
}

// The second batch begins in the middle of the first if enough requests wait. The third
// does not begin before one of them has ended.
func TestSecondBatch(t *testing.T) {
	for _, c := range []struct {
		name    string
		streams int // as granted
		slots   []int
	}{
		{"near the first one's end", 0, []int{0, 1}},
		{"where half of a batch waits", 2, []int{0, 1}},
		{"not where it may not", 1, []int{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUHarness(t, testCard())
			h.streams = c.streams
			f := h.fake()
			p := h.serving(f, 1)
			release := h.hold()
			for slot := range uint32(4) {
				h.publish(slot, h.picture(byte(slot)), nil)
				wait.For(t, "batches in flight", func() bool {
					_, slots := f.history()
					return slices.Equal(slots, c.slots[:min(int(slot)+1, len(c.slots))])
				})
			}
			time.Sleep(10 * time.Millisecond)
			if _, slots := f.history(); !slices.Equal(slots, c.slots) {
				t.Errorf("batches in slots %v at once, want %v", slots, c.slots)
			}
			h.silent()
			release()
			for _, slot := range h.replies(4) {
				h.answered(slot, h.picture(byte(slot)))
			}
			p.drained()
		})
	}
}

// With two batches configured, the second begins when half of a batch waits.
func TestSecondBatchHalfFull(t *testing.T) {
	h := newGPUHarness(t, testCard())
	h.streams = 2
	l := h.loop(h.fake())
	l.queue.State.Limit = 8
	release := h.hold()
	h.publish(0, h.picture(0), nil)
	l.take()
	l.pick()
	l.begin()
	for slot := uint32(1); slot < 4; slot++ {
		h.publish(slot, h.picture(byte(slot)), nil)
	}
	if l.take(); l.mayBegin() {
		t.Error("a batch of 3 where 8 may be begins next to another")
	}
	h.publish(4, h.picture(4), nil)
	if l.await() {
		t.Error("a batch is done that was held")
	}
	if !l.mayBegin() {
		t.Error("a batch of 4 where 8 may be does not begin next to another")
	}
	// It has waited for the first batch since it arrived, not since the batch before
	// that ended.
	least := time.Duration(shm.Now() - h.table.Request(1).Complete)
	if l.pick(); l.choice.Waited < least {
		t.Errorf("waited %v for the running batch, want at least %v", l.choice.Waited, least)
	}
	l.begin()
	release()
	for range 2 {
		if !l.await() {
			t.Error("a batch is not done that was released")
		}
		must.OK(t, l.finish())
	}
	for _, slot := range h.replies(5) {
		h.answered(slot, h.picture(byte(slot)))
	}
}

// If libml decides, a second batch begins when the first is about to end. libml knows
// how long batches of that size take, and how long a gather takes.
func TestSecondBatchNearEnd(t *testing.T) {
	h := newGPUHarness(t, testCard())
	l := h.loop(h.fake())
	const takes, lead = 20 * time.Minute, time.Minute
	l.queue.State, l.queue.Lead = l.queue.Rule.Warm(l.queue.Rule.Start(), 1, takes), lead
	release := h.hold()
	h.publish(0, h.picture(0), nil)
	l.take()
	l.pick()
	l.begin()
	h.publish(1, h.picture(1), nil)
	if l.take(); l.mayBegin() {
		t.Error("a batch begins next to one that has just begun")
	}
	const answering = 2 * time.Minute
	l.queue.Running[0].Dispatched -= int64(takes - answering - lead)
	if l.mayBegin() {
		t.Error("a batch begins while the one before still uses the device")
	}
	l.queue.Answering = answering
	if !l.mayBegin() || l.await() {
		t.Fatal("no batch may begin next to another that is about to end")
	}
	l.pick()
	l.begin()
	release()
	must.OK(t, l.finish())
	if l.queue.Lead == lead {
		t.Error("a batch that ran alone does not change the lead")
	}
	if l.queue.Answering == answering {
		t.Error("a batch does not change the time of its answers")
	}
	before := l.queue.Lead
	must.OK(t, l.finish())
	if l.queue.Lead == before {
		t.Error("a batch next to another does not change the lead")
	}
	h.replies(2)
}

// The ring changes hands with batches in flight: these belong to the old process, the
// waiting requests to the new one.
func TestGPUHandover(t *testing.T) {
	h := newGPUHarness(t, testCard())
	h.streams = 2
	old := h.fake()
	first := h.serving(old, 1)
	release := h.hold()
	for slot := range uint32(6) {
		h.publish(slot, h.picture(byte(slot)), nil)
		wait.For(t, "two batches in flight", func() bool {
			sizes, _ := old.history()
			return len(sizes) == min(int(slot)+1, 2)
		})
	}
	again := newGPUHarness(t, testCard()) // another object for the same GPU
	again.channel.Close()
	h.gpu = again.gpu
	shadow := h.fake()
	second := h.start(2, shadow.build, nil)
	second.order(control.Order{Do: control.DoWake, SharePercent: 50})
	second.await(control.Ready)
	shadow.serve()
	h.channel.SetEpoch(2)
	time.Sleep(5 * time.Millisecond)
	h.silent()
	release()
	for _, slot := range h.replies(6) {
		h.answered(slot, h.picture(byte(slot)))
	}
	if sizes, _ := old.history(); len(sizes) != 2 {
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
			h := newGPUHarness(t, testCard())
			h.streams = c.inFlight
			f := h.fake()
			p := h.serving(f, 1)
			h.hold() // forever, as far as the process knows
			const requests = 5
			for slot := range uint32(requests) {
				h.publish(slot, h.picture(byte(slot)), nil)
				wait.For(t, "the batches are in flight", func() bool {
					sizes, _ := f.history()
					return len(sizes) == min(int(slot)+1, c.inFlight)
				})
			}
			h.gpu.Lose()
			failed := p.await(control.Failed)
			if !failed.DeviceLost || !strings.Contains(failed.Reason, device.ErrLost.Error()) {
				t.Errorf("the process reports %+v, want that its device is lost", failed)
			}
			if err := p.end(); !errors.Is(err, device.ErrLost) {
				t.Errorf("the process ends with %v", err)
			}
			if last := f.calls[len(f.calls)-1]; last == "deinit" {
				t.Error("the framework was called on a lost device")
			}
			for _, slot := range h.replies(c.inFlight) {
				if got := h.status(slot); got != wire.StatusFailed {
					t.Errorf("slot %d, in flight when the device was lost, is %v", slot, got)
				}
			}
			h.silent()

			h.gpu = newGPUHarness(t, testCard()).gpu
			next := h.fake()
			second := h.serving(next, 2)
			for _, slot := range h.replies(requests - c.inFlight) {
				h.answered(slot, h.picture(byte(slot)))
			}
			second.drained()
		})
	}
}

// The batch that finds the device lost is the last one: no further batch begins, so the
// waiting requests do not fail with it.
func TestDeviceLostIdle(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	p := h.serving(f, 1)
	h.gpu.Lose()
	h.publish(1, h.picture(1), nil)
	if got := h.status(h.replies(1)[0]); got != wire.StatusFailed {
		t.Errorf("status %v, want failed", got)
	}
	if failed := p.await(control.Failed); !failed.DeviceLost {
		t.Errorf("the process reports %+v, want that its device is lost", failed)
	}
	if err := p.end(); !errors.Is(err, device.ErrLost) {
		t.Errorf("the process ends with %v", err)
	}
}

// A framework's own error on a GPU costs its batch, as on a CPU.
func TestGPUBatchFails(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	l := h.loop(f)
	f.fail(func(string) error { return errFake })
	h.publish(1, h.picture(1), nil)
	if err := l.turn(); !errors.Is(err, errFake) || isLost(err) {
		t.Errorf("the turn gives %v, want %v", err, errFake)
	}
	if got := h.status(h.replies(1)[0]); got != wire.StatusFailed {
		t.Errorf("status %v, want failed", got)
	}
	f.fail(nil)
	h.publish(2, h.picture(2), func(_ *shm.Request, p []shm.Fragment) { p[0].Offset = 1 << 40 })
	h.publish(3, h.picture(3), nil)
	l.queue.State.Limit = 2
	l.queue.Expected = func(int) time.Duration { return time.Microsecond }
	if err := l.turn(); !errors.Is(err, device.ErrOutsideSlab) {
		t.Errorf("the turn gives %v, want %v", err, device.ErrOutsideSlab)
	}
	for _, slot := range h.replies(2) {
		if slot == 3 {
			h.answered(slot, h.picture(3))
		} else if got := h.status(slot); got != wire.StatusFailed {
			t.Errorf("slot %d is %v, want failed", slot, got)
		}
	}
}

// The first touch fixes a process's share of the GPU. A shadow survives a fault only if
// it has not touched it.
func TestGPUShadow(t *testing.T) {
	const name = "PENSTOCK_TEST_PERCENTAGE"
	t.Setenv(name, "")
	os.Unsetenv(name)
	h := newGPUHarness(t, testCard())
	f := h.fake()
	var opened atomic.Pointer[string]
	h.opened = func(start control.Start) {
		seen := os.Getenv(name)
		opened.Store(&seen)
		if start.Device != h.gpu.Name() || !slices.Equal(start.GroupSMs, testGroups) {
			t.Errorf("opened %s with groups %v", start.Device, start.GroupSMs)
		}
	}
	c := h.start(1, f.build, nil)
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
	if last := f.calls[len(f.calls)-1]; last != "deinit" {
		t.Errorf("its last call was %s, want deinit", last)
	}
}

// The results belong to the owner of the ring; a warm-up must not write them.
func TestGPUWarmUp(t *testing.T) {
	h := newGPUHarness(t, testCard())
	shared := h.tensors.Bytes()
	for i := range shared {
		shared[i] = 0xee
	}
	h.loop(h.fake())
	if slices.Min(shared) != 0xee || slices.Max(shared) != 0xee {
		t.Error("the warm-up wrote results")
	}
}

// A process that cannot start on a GPU ends with one line about the reason.
func TestGPUStartFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		spoil  func(h *harness, f *fake)
		tamper func(*control.Attached)
		groups []int
		want   error
	}{
		{"no memory for tensors", func(h *harness, _ *fake) { h.gpu.NoMemory.Store(true) }, nil, nil, devicetest.ErrMemory},
		{"no memory for the model", func(_ *harness, f *fake) { f.failing = only("link", devicetest.ErrMemory) }, nil, nil, devicetest.ErrMemory},
		{"no memory for a batch", func(_ *harness, f *fake) { f.failing = only("configure", devicetest.ErrMemory) }, nil, nil, devicetest.ErrMemory},
		{"a batch that fails", func(_ *harness, f *fake) { f.failing = only("infer", errFake) }, nil, nil, errFake},
		{"a device that is lost", func(h *harness, _ *fake) { h.gpu.Lose() }, nil, nil, device.ErrLost},
		{"too little shared memory", nil, func(a *control.Attached) { a.TensorBytes -= models.TensorAlignment }, nil, device.ErrShared},
		{"groups that there are not", nil, nil, []int{9}, devicetest.ErrGroups},
		{"no memory for a partition", func(h *harness, _ *fake) { h.gpu.FailRepartition.Store(1) }, nil, []int{1}, devicetest.ErrMemory},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUHarness(t, testCard())
			f := h.fake()
			if c.spoil != nil {
				c.spoil(h, f)
			}
			p := h.start(1, f.build, c.tamper)
			p.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: c.groups})
			err := p.end()
			if !errors.Is(err, c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the process ends with %q, want one line about %v", err, c.want)
			}
			if last := f.calls[len(f.calls)-1]; (last == "deinit") == (c.want == device.ErrLost) {
				t.Errorf("its last call was %s", last)
			}
		})
	}
}

// only makes one step fail.
func only(step string, err error) func(string) error {
	return func(s string) error {
		if s == step {
			return err
		}
		return nil
	}
}

// A process on the CPU refuses groups of multiprocessors.
func TestCPUGroups(t *testing.T) {
	h := newHarness(t, testCard())
	p := h.start(1, newFake().build, nil)
	p.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: []int{1}})
	if err := p.end(); err == nil || !strings.Contains(err.Error(), "device cpu has no groups") {
		t.Errorf("the process ends with %v", err)
	}
}
