//go:build cgo

package gpu_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gpu"
)

// All work of a batch is queued on the stream that Choose chose: kernels, zeros,
// events, and the word that the CPU polls.
func TestDemotedBatch(t *testing.T) {
	const level = 3
	for _, c := range []struct {
		name          string
		level, before budget.Level
	}{{"demoted", 0, level}, {"within the guarantee", level, 0}, {"at a lower level", level - 1, level}, {"from a lower level", level, level - 1}} {
		t.Run(c.name, func(t *testing.T) {
			cudafake.Check(t)
			d, tensors := opened(t)
			must.OK(t, d.Prioritize([]int{0, 1}, level))
			choose(t, d, 0, c.before)
			idle := d.BatchStream(0)
			must.OK(t, batch(d, tensors, 0))
			choose(t, d, 0, c.level)
			cudafake.Apply(t, cudafake.Hold)
			must.OK(t, begin(d, tensors, 0))
			must.OK(t, d.Pad(0, tensors[0].Input, 7, 8))
			must.OK(t, d.Fetch(0, 8))
			if done, err := cuda.StreamOf(idle).Query(); !done || err != nil {
				t.Errorf("work is on stream %#x, which was not chosen; %v", idle, err)
			}
			if done, err := cuda.StreamOf(d.BatchStream(0)).Query(); done || err != nil {
				t.Errorf("no work is on the stream that was chosen; %v", err)
			}
			cudafake.Reset() // forget what ran, and let it continue
			if _, err := d.Wait(0); err != nil {
				t.Fatal(err)
			}
			ran := cudafake.Launches()
			if len(ran) == 0 {
				t.Error("no kernel ran")
			}
			for _, l := range ran {
				if l.Stream != d.BatchStream(0) || l.Priority != -int(c.level) {
					t.Errorf("%s ran on stream %#x of priority %d, want %#x of %d", l.Name, l.Stream, l.Priority, d.BatchStream(0), -c.level)
				}
			}
		})
	}
}

// A slot keeps its level and its second stream when it moves to other multiprocessors.
func TestDemotedBatchAfterMove(t *testing.T) {
	cudafake.Check(t)
	d, tensors := opened(t)
	must.OK(t, d.Prioritize([]int{0, 1}, budget.MaxLevel))
	for round := range 4 {
		slot := round % 2 * 2
		must.OK(t, d.Repartition([]int{slot, slot + 1}, []int{round}))
		for _, level := range []budget.Level{budget.MaxLevel, budget.Demoted, 2, budget.MaxLevel, 2} {
			cudafake.Reset()
			choose(t, d, slot, level)
			must.OK(t, batch(d, tensors, slot))
			for _, l := range cudafake.Launches() {
				if l.Priority != -int(level) || l.SMs != 8 {
					t.Errorf("%s ran at priority %d on %d multiprocessors, want %d on 8", l.Name, l.Priority, l.SMs, -level)
				}
			}
		}
	}
}

// Slots that are not prioritized cost no streams: a process has few channels.
func TestStreamsOfADevice(t *testing.T) {
	cudafake.Check(t)
	before := cudafake.Now().Streams
	d, _ := opened(t)
	if n := cudafake.Now().Streams - before; n != device.Slots {
		t.Errorf("%d streams without levels, want %d", n, device.Slots)
	}
	must.OK(t, d.Prioritize([]int{0, 1}, budget.MinLevel))
	if n := cudafake.Now().Streams - before; n != device.Slots+2 {
		t.Errorf("%d streams with a level, want %d", n, device.Slots+2)
	}
}

func TestPrioritizeRefused(t *testing.T) {
	for _, c := range []struct {
		call string
		nth  int
	}{{"cuCtxGetStreamPriorityRange", 1}, {"cuStreamCreateWithPriority", 1}, {"cuStreamCreateWithPriority", 2}} {
		t.Run(c.call, func(t *testing.T) {
			cudafake.Check(t)
			d, tensors := opened(t)
			cudafake.Apply(t, cudafake.Refuse(c.call, c.nth, outOfMemory))
			if err := d.Prioritize([]int{0, 1}, budget.MaxLevel); !errors.Is(err, cuda.ErrOutOfMemory) {
				t.Errorf("prioritize says %v", err)
			}
			for slot := range 2 {
				if err := d.Choose(slot, budget.Demoted); err != nil && !errors.Is(err, cuda.ErrOutOfMemory) {
					t.Error(err)
				}
				if err := batch(d, tensors, slot); err != nil {
					t.Error(err)
				}
			}
		})
	}
	t.Run("in flight", func(t *testing.T) {
		runtime.LockOSThread()
		cudafake.Check(t)
		d, tensors := opened(t)
		must.OK(t, begin(d, tensors, 1))
		if err := d.Prioritize([]int{0, 1}, budget.MaxLevel); !errors.Is(err, gpu.ErrBusy) {
			t.Errorf("prioritize says %v", err)
		}
		if _, err := d.Wait(1); err != nil {
			t.Error(err)
		}
	})
}

func choose(t *testing.T, d *gpu.Device, slot int, level budget.Level) {
	t.Helper()
	must.OK(t, d.Choose(slot, level))
}

// If the stream of a level cannot be created, the slot stays unchanged.
func TestChooseRefused(t *testing.T) {
	cudafake.Check(t)
	d, tensors := opened(t)
	must.OK(t, d.Prioritize([]int{0, 1}, 3))
	before := d.BatchStream(0)
	cudafake.Apply(t, cudafake.Refuse("cuStreamCreateWithPriority", 1, outOfMemory))
	if err := d.Choose(0, 2); !errors.Is(err, cuda.ErrOutOfMemory) || d.BatchStream(0) != before {
		t.Errorf("choose says %v; stream %#x, was %#x", err, d.BatchStream(0), before)
	}
	if err := batch(d, tensors, 0); err != nil {
		t.Error(err)
	}
}
