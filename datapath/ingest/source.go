// Package ingest defines sources of datagrams: kernel UDP sockets (udp), or a
// port that DPDK polls (dpdk).
// internal/testing/ingestfake is a fake in memory. The packages above ingest do
// not know which of them they use.
//
// A source owns one slab. The kernel or the NIC writes a datagram into it once,
// and the datagram stays in that place until Release.
package ingest

import (
	"net/netip"

	"github.com/penstock/penstock/shm"
)

// Span is a contiguous run of bytes in a source's slab.
type Span struct {
	Offset uint64
	Length uint32
}

// Datagram is one UDP payload (the wire header and what follows it) in the
// slab. A datagram that was received into two free runs has two spans, First
// then Rest. Otherwise Rest.Length is 0.
type Datagram struct {
	From  netip.AddrPort
	First Span
	Rest  Span
	// Arrived is when the datagram reached this machine, before it waited to be
	// received. It is in nanoseconds of shm.Now's clock, or 0 if the source
	// does not know.
	Arrived int64
	// Shed means that the datagram is fragment 0 of a request that the kernel
	// dropped to shed load. The kernel kept only its header, and its extension
	// if it has one.
	Shed bool
}

// Length is the datagram's size in bytes.
func (d *Datagram) Length() int { return int(d.First.Length) + int(d.Rest.Length) }

// Packet is one UDP payload to send. The source does not use Data after Send
// returns.
type Packet struct {
	To   netip.AddrPort
	Data []byte
}

// Source receives datagrams for one port group and sends answers from it.
//
// Only one goroutine may call Receive, and it must be locked to its thread. Any
// goroutine may call Send and Release, at the same time as Receive.
type Source interface {
	// Slab is the memory that spans point into. It outlives Close, because
	// spans may still be in use then. The code that opened the source closes
	// the slab after its last use (CloseSlab of each kind).
	Slab() shm.Memory
	// Receive fills batch and returns the number of datagrams. It returns 0 and
	// no error if nothing arrives before the deadline (shm.Now's clock, in
	// nanoseconds; 0 for none). It may do so earlier, up to a thousand times per
	// second.
	//
	// The caller owns every returned datagram until it releases its spans. If
	// one read brings more than the batch holds, the next call returns the
	// rest. Receive returns ErrClosed after Close.
	Receive(batch []Datagram, deadline int64) (n int, err error)
	// Release returns spans to the slab, each exactly once. The caller may
	// merge adjacent spans.
	Release(spans []Span)
	// Send sends as many packets as the socket accepts without blocking for
	// long. It returns the number sent and the error that stopped it. With an
	// error, packets[n] failed, and Send did not try the packets after it.
	Send(packets []Packet) (n int, err error)
	// LocalAddr is the address that the source listens on, with the actual
	// port.
	LocalAddr() netip.AddrPort
	// Stats reads the counters. Any goroutine may call it.
	Stats() Stats
	// Close stops reception; a blocked Receive returns ErrClosed. The slab
	// stays mapped, and spans can still be released.
	Close() error
}

// Stats holds counters since the source was opened.
type Stats struct {
	Datagrams, Bytes uint64
	// KernelDrops counts what the kernel dropped because the socket buffer was
	// full, or to shed whole requests.
	KernelDrops uint64
	// Shedding is the share of requests that is being shed, 0 to 1.
	Shedding float64
	// Truncated counts datagrams that were dropped because they exceeded the
	// room given to the kernel. NoRoom counts reads that were postponed because
	// the slab was full.
	Truncated, NoRoom uint64
	// HeldBytes is how much of the slab datagrams hold now, SlabBytes the
	// slab's size.
	HeldBytes, SlabBytes uint64
}
