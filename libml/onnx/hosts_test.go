//go:build cgo

package onnx

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/cudafake"
)

// readingHost returns a linked rig with batches that begin their outputs with 8 bytes of host
// memory: "constant", until the caller changes it.
func readingHost(t *testing.T) (r *rig, host []byte) {
	t.Helper()
	b := &played{}
	r = newRig(t, b)
	host, err := r.context.AllocateHost(8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.end()
		if err := r.context.FreeHost(host); err != nil {
			t.Error(err)
		}
	})
	copy(host, "constant")
	b.fromHost = host
	return r.linked(), host
}

// A graph must not read ONNX Runtime's host memory at its launch: it may have other contents by
// then.
func TestHostMemoryIsCopied(t *testing.T) {
	r, host := readingHost(t)
	tensors := r.tensors(1)
	r.configure(0, 1, tensors)
	clear(host)
	r.infer(0, 1)
	if got := r.output(tensors); !strings.HasPrefix(string(got), "constant") {
		t.Errorf("answered %q", got)
	}
}

// Two slots of a lane capture one after the other. The first slot's host memory stays when the
// second slot's graph takes the place of the first.
func TestHostMemoryOfTwoSlots(t *testing.T) {
	r, host := readingHost(t)
	before := cudafake.Now().HostAllocations
	first, second := r.tensors(1), r.tensors(1)
	r.configure(0, 1, first)
	copy(host, "another.") // the next capture may find other contents
	r.configure(2, 1, second)
	clear(host)
	r.infer(0, 1)
	r.infer(2, 1)
	if one, other := string(r.output(first)), string(r.output(second)); !strings.HasPrefix(one, "constant") || !strings.HasPrefix(other, "another.") {
		t.Errorf("answered %q and %q", one, other)
	}
	r.configure(0, 1, second) // uses slot 2's graph
	if got := cudafake.Now().HostAllocations - before; got != 1 {
		t.Errorf("%d blocks of pinned memory for one graph", got)
	}
	r.end()
	if got := cudafake.Now().HostAllocations - before; got != 0 {
		t.Errorf("%d blocks of pinned memory are left", got)
	}
}
