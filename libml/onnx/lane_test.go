//go:build cgo

package onnx

import (
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/libml/device"
)

func TestLaneScratch(t *testing.T) {
	r := newRig(t, &played{scratch: mebi}).linked()
	var scratch [device.Slots]cuda.Pointer
	for slot := range scratch {
		cudafake.Reset()
		r.configure(slot, 4, r.tensors(4))
		r.infer(slot, 4)
		l := cudafake.Launches()
		if len(l) != 1 {
			t.Fatalf("launches: %v", l)
		}
		for i := range 8 {
			scratch[slot] |= cuda.Pointer(l[0].Arguments[0][i]) << (8 * i)
		}
	}
	if scratch[0] != scratch[2] || scratch[1] != scratch[3] || scratch[0] == scratch[1] {
		t.Errorf("scratch of the slots: %#x", scratch)
	}
}

// A graph that writes outside its lane waits on the device for the one before it.
func TestExclusiveGraph(t *testing.T) {
	r := newRig(t, &played{outside: true}).linked()
	for slot := range 2 {
		r.configure(slot, 1, r.tensors(1))
	}
	if !r.gpu.order.exclusive {
		t.Fatal("it may run beside another")
	}
	waits := func() bool { return cudafake.Now().Events > 0 }
	if !waits() {
		t.Fatal("no event to wait for")
	}
	for range 3 {
		r.infer(0, 1)
		r.infer(1, 1)
	}
	if n := testing.AllocsPerRun(20, func() { r.f.InferBatch(0, 1) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
	r.streams[0].Synchronize()
}
