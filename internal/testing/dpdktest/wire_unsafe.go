//go:build dpdk && cgo

// Package dpdktest is the far end of a DPDK port that is made of rings in memory. With it a test
// needs no NIC and no privilege.
package dpdktest

/*
#cgo pkg-config: libdpdk
#cgo LDFLAGS: -lrte_net_ring -lrte_bus_vdev
#include <stdlib.h>
#include <string.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

static int make_port(const char *name, void **rx, void **tx, uint32_t queues)
{
	if (rte_eth_from_rings(name, (struct rte_ring *const *)rx, queues, (struct rte_ring *const *)tx, queues, 0) < 0)
		return rte_errno != 0 ? rte_errno : EINVAL;
	return 0;
}

static int push(void *ring, uint8_t *base, uint64_t mbuf, uint32_t length)
{
	struct rte_mbuf *m = (struct rte_mbuf *)(base + mbuf);
	m->data_len = m->pkt_len = length;
	return rte_ring_enqueue(ring, m);
}

static int pop(void *ring, uint8_t *into, uint32_t room)
{
	void *m;
	if (rte_ring_dequeue(ring, &m) != 0)
		return -1;
	uint32_t length = RTE_MIN(rte_pktmbuf_pkt_len((struct rte_mbuf *)m), room);
	const void *at = rte_pktmbuf_read(m, 0, length, into);
	if (at != into)
		memcpy(into, at, length);
	rte_pktmbuf_free(m);
	return length;
}
*/
// #cgo noescape push
// #cgo nocallback push
// #cgo noescape pop
// #cgo nocallback pop
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/yerden/go-dpdk/ring"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/dpdk/eal"
)

// Wire is the far end of a port. The port receives what is put here, and what the port sends is
// taken here. Only one goroutine at a time may use each direction.
type Wire struct {
	// Name is the argument for eal.OpenDevice.
	Name string

	in, out []*ring.Ring
}

// NewWire makes such a port. depth is a power of two; a ring holds depth-1 frames.
func NewWire(name string, queues, depth int) (_ *Wire, err error) {
	w := &Wire{Name: "net_ring_" + name}
	defer func() {
		if err != nil {
			w.Close()
			err = fmt.Errorf("make DPDK port %s of rings: %w", w.Name, err)
		}
	}()
	for q := range queues {
		for side, to := range map[string]*[]*ring.Ring{"in": &w.in, "out": &w.out} {
			r, err := ring.Create(fmt.Sprintf("%s_%s%d", name, side, q), uint(depth))
			if err != nil {
				return nil, err
			}
			*to = append(*to, r)
		}
	}
	cname, in, out := C.CString(name), pointers(w.in), pointers(w.out)
	defer C.free(unsafe.Pointer(cname))
	defer C.free(unsafe.Pointer(in))
	defer C.free(unsafe.Pointer(out))
	if code := C.make_port(cname, in, out, C.uint32_t(queues)); code != 0 {
		return nil, unix.Errno(code)
	}
	return w, nil
}

// pointers copies a list to C memory, because it holds pointers to C memory.
func pointers(of []*ring.Ring) *unsafe.Pointer {
	p := (*unsafe.Pointer)(C.malloc(C.size_t(len(of)) * C.size_t(unsafe.Sizeof(of[0]))))
	list := unsafe.Slice(p, len(of))
	for i, r := range of {
		list[i] = unsafe.Pointer(r)
	}
	return p
}

// errRingFull is returned by Put if the port has not yet taken earlier frames.
var errRingFull = errors.New("ring is full")

// Put copies frames to mbufs of p, the port's pool, and puts them into a queue. With an
// error, n frames were put, and err is about the next one.
func (w *Wire) Put(p *eal.Pool, queue int, frames ...[]byte) (n int, err error) {
	memory := p.Memory().Bytes()
	var mbuf, data [1]uint64
	for n, f := range frames {
		if err := p.Alloc(mbuf[:], data[:]); err != nil {
			return n, fmt.Errorf("allocate mbuf: %w", err)
		}
		if len(f) > p.FrameBytes() {
			p.Free(mbuf[:])
			return n, fmt.Errorf("frame of %d bytes: an mbuf holds %d", len(f), p.FrameBytes())
		}
		copy(memory[data[0]:], f)
		if C.push(unsafe.Pointer(w.in[queue]), (*C.uint8_t)(&memory[0]), C.uint64_t(mbuf[0]), C.uint32_t(len(f))) != 0 {
			p.Free(mbuf[:])
			return n, errRingFull
		}
	}
	return len(frames), nil
}

// Take copies a frame that the port sent on a queue to b. ok is false if there is none.
func (w *Wire) Take(queue int, b []byte) (n int, ok bool) {
	n = int(C.pop(unsafe.Pointer(w.out[queue]), (*C.uint8_t)(&b[0]), C.uint32_t(len(b))))
	return max(n, 0), n >= 0
}

// Close frees the rings. The port must be closed, and both directions empty: mbufs left in a
// ring would be lost to their pool.
func (w *Wire) Close() {
	for _, r := range append(w.in, w.out...) {
		r.Free()
	}
	w.in, w.out = nil, nil
}
