//go:build dpdk

package eal

// #include "shim.h"
import "C"

import (
	"sync/atomic"
	"unsafe"
)

// Entry is a frame in packet memory: struct pst_entry.
type Entry struct {
	At     uint64
	Length uint32
	Flags  Flags
	Tag    uint16 // VLAN tag, if Tagged
}

// Flags are what a NIC or the kernel reports about a frame.
type Flags uint16

const (
	IPGood  Flags = C.PST_IP_GOOD
	UDPGood Flags = C.PST_UDP_GOOD
	IPBad   Flags = C.PST_IP_BAD
	UDPBad  Flags = C.PST_UDP_BAD
	// Tagged frames had a VLAN tag, which was removed.
	Tagged Flags = C.PST_TAGGED
)

// This does not compile unless the layouts agree.
var _ = [1]struct{}{}[unsafe.Sizeof(Entry{})-unsafe.Sizeof(C.struct_pst_entry{})]

// entries is the Go side of a struct pst_ring.
type entries struct {
	head, tail *atomic.Uint32
	entries    []Entry
}

func entriesOf(r *C.struct_pst_ring, n int) entries {
	return entries{
		head:    (*atomic.Uint32)(unsafe.Pointer(&r.head)),
		tail:    (*atomic.Uint32)(unsafe.Pointer(&r.tail)),
		entries: unsafe.Slice((*Entry)(unsafe.Add(unsafe.Pointer(r), C.sizeof_struct_pst_ring)), n),
	}
}

func (r *entries) waiting() int { return int(r.tail.Load() - r.head.Load()) }

func (r *entries) take(into []Entry) int {
	head := r.head.Load()
	n := min(len(into), int(r.tail.Load()-head))
	if n == 0 {
		return 0
	}
	at := int(head) & (len(r.entries) - 1)
	k := copy(into[:n], r.entries[at:])
	copy(into[k:n], r.entries)
	r.head.Store(head + uint32(n))
	return n
}

func loadWord(w *C.uint32_t) uint32     { return atomic.LoadUint32((*uint32)(w)) }
func storeWord(w *C.uint32_t, v uint32) { atomic.StoreUint32((*uint32)(w), v) }
func swapWord(w *C.uint32_t, v uint32) uint32 {
	return atomic.SwapUint32((*uint32)(w), v)
}
func loadLong(w *C.uint64_t) uint64 { return atomic.LoadUint64((*uint64)(w)) }

// storeByte writes a byte that a poller reads. x86 and arm64 write a single
// byte atomically. A frame that the poller classified before the write goes to
// the port's old sink.
func storeByte(b *C.uint8_t, v uint8) { *b = C.uint8_t(v) }

func storePointer(p **C.struct_pst_sink, v unsafe.Pointer) {
	atomic.StorePointer((*unsafe.Pointer)(unsafe.Pointer(p)), v)
}
