//go:build cgo

package onnx

import (
	"strings"
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

// A model that writes outside its lane has no graph, which could disturb the other lane.
func TestGraphOutsideLane(t *testing.T) {
	r := newRig(t, &played{outside: true}).linked()
	b := r.tensors(1)
	r.fillWith(b, 5)
	for slot := range 2 {
		r.configure(slot, 1, b)
		r.infer(slot, 1)
	}
	if got := r.output(b); !all(got, 5) {
		t.Errorf("answered %v", got)
	}
	if log := r.log.String(); !r.gpu.byNode.sizes[1] || !strings.Contains(log, "outside its lane") {
		t.Errorf("it has a graph, or the log gives no reason: %s", log)
	}
}
