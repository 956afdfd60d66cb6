//go:build dpdk

package eal

// #cgo noescape pst_ring_push
// #cgo nocallback pst_ring_push
// #cgo noescape pst_ring_pop
// #cgo nocallback pst_ring_pop
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/yerden/go-dpdk/ring"
)

// Wire is the far end of a port made of rings in memory. The port receives what is put here,
// and what the port sends is taken here. It is for tests and benchmarks. Only one goroutine
// at a time may use each direction.
type Wire struct {
	name    string
	in, out []*ring.Ring
}

// NewWire makes such a port, which OpenDevice opens by its Name. depth is a power of two; a
// ring holds depth-1 frames.
func NewWire(name string, queues, depth int) (_ *Wire, err error) {
	w := &Wire{name: "net_ring_" + name}
	defer func() {
		if err != nil {
			w.Close()
			err = fmt.Errorf("make DPDK port %s of rings: %w", w.name, err)
		}
	}()
	in, out := make([]unsafe.Pointer, queues), make([]unsafe.Pointer, queues)
	for q := range queues {
		for _, side := range []struct {
			name string
			to   *[]*ring.Ring
			at   []unsafe.Pointer
		}{{"in", &w.in, in}, {"out", &w.out, out}} {
			r, err := ring.Create(fmt.Sprintf("%s_%s%d", name, side.name, q), uint(depth))
			if err != nil {
				return nil, err
			}
			*side.to = append(*side.to, r)
			side.at[q] = unsafe.Pointer(r)
		}
	}
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	// The arrays are read only during the call. They are in C memory because they hold
	// pointers to C memory.
	cin, cout := pointers(in), pointers(out)
	defer C.free(unsafe.Pointer(cin))
	defer C.free(unsafe.Pointer(cout))
	var id C.uint16_t
	if err := code(C.pst_ring_port(cname, cin, cout, C.uint32_t(queues), &id)); err != nil {
		return nil, err
	}
	return w, nil
}

func pointers(of []unsafe.Pointer) *unsafe.Pointer {
	p := (*unsafe.Pointer)(C.malloc(C.size_t(len(of)) * C.size_t(unsafe.Sizeof(of[0]))))
	copy(unsafe.Slice(p, len(of)), of)
	return p
}

// Name is the argument for OpenDevice.
func (w *Wire) Name() string { return w.name }

// errRingFull is returned by Put if the port has not yet taken earlier frames.
var errRingFull = errors.New("ring is full")

// Put copies frames to mbufs of p, the port's pool, and puts them into a queue. With an
// error, n frames were put, and err is about the next one.
func (w *Wire) Put(p *Pool, queue int, frames ...[]byte) (n int, err error) {
	var mbuf, data [1]uint64
	for n, f := range frames {
		if err := p.Alloc(mbuf[:], data[:]); err != nil {
			return n, fmt.Errorf("allocate mbuf: %w", err)
		}
		if len(f) > p.FrameBytes() {
			p.Free(mbuf[:])
			return n, fmt.Errorf("frame of %d bytes: an mbuf holds %d", len(f), p.FrameBytes())
		}
		copy(p.memory.bytes[data[0]:], f)
		length := C.uint32_t(len(f))
		if C.pst_ring_push(unsafe.Pointer(w.in[queue]), p.base(), (*C.uint64_t)(&mbuf[0]), &length, 1) == 0 {
			p.Free(mbuf[:])
			return n, errRingFull
		}
	}
	return len(frames), nil
}

// PutMbufs puts mbufs that already hold frames, at most Burst, and returns how many the ring
// accepted. The caller still owns the others.
func (w *Wire) PutMbufs(p *Pool, queue int, mbufs []uint64, lengths []uint32) int {
	_ = lengths[len(mbufs)-1]
	return int(C.pst_ring_push(unsafe.Pointer(w.in[queue]), p.base(), (*C.uint64_t)(&mbufs[0]), (*C.uint32_t)(&lengths[0]), C.uint32_t(len(mbufs))))
}

// Take copies a frame that the port sent on a queue to b. ok is false if there is none.
func (w *Wire) Take(queue int, b []byte) (n int, ok bool) {
	var length C.uint32_t
	ok = C.pst_ring_pop(unsafe.Pointer(w.out[queue]), (*C.uint8_t)(&b[0]), C.uint32_t(len(b)), &length) == 1
	return int(length), ok
}

// Close frees the rings. The port must be closed, and both directions empty: mbufs left in a
// ring would be lost to their pool.
func (w *Wire) Close() {
	for _, r := range append(w.in, w.out...) {
		r.Free()
	}
	w.in, w.out = nil, nil
}
