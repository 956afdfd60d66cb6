// Package ingest says where datagrams come from: kernel UDP sockets
// (udp), a capture file (replay), a port of DPDK's (dpdk). A fake in memory
// is internal/testing/ingestfake. Nothing above it knows which.
//
// A source owns one slab. A datagram is written into it once, by the kernel or
// the NIC, and stays where it landed until Release.
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
// slab. A datagram that straddled two free runs when it was received lies in
// two spans, First then Rest; Rest.Length is 0 otherwise.
type Datagram struct {
	From  netip.AddrPort
	First Span
	Rest  Span
	// Arrived is when it came to this machine, before it waited to be received: nanoseconds
	// of shm.Now's clock, 0 where the source does not know.
	Arrived int64
	// Shed says that the datagram is piece 0 of a request that the kernel shed: only its
	// header, and its extension where it has one, were kept.
	Shed bool
}

// Length is the datagram's size in bytes.
func (d *Datagram) Length() int { return int(d.First.Length) + int(d.Rest.Length) }

// Packet is one UDP payload to send; the source does not keep Data after Send
// returns.
type Packet struct {
	To   netip.AddrPort
	Data []byte
}

// Source receives datagrams for one port group and sends answers back from it.
//
// Receive is called by one goroutine (locked to its thread). Send and Release
// may be called by any goroutine, at the same time as Receive.
type Source interface {
	// Slab is the memory that spans point into. It outlives Close, because spans
	// may still be in use then: whoever opened the source closes it (CloseSlab of
	// each kind) when its last user is gone.
	Slab() shm.Memory
	// Receive fills batch and says how many datagrams it holds. It returns 0 and
	// no error at the deadline (shm.Now's clock, in nanoseconds; 0 for none), or
	// when Wake was called, with nothing received; it may do so earlier, up to a
	// thousand times a second.
	// The caller owns every datagram returned until it releases its spans. A
	// batch shorter than what one read brings is filled from the rest at the
	// next call. It returns ErrClosed after Close, io.EOF at a capture's end.
	Receive(batch []Datagram, deadline int64) (n int, err error)
	// Release gives spans back, each exactly once; adjacent spans may be merged
	// by the caller.
	Release(spans []Span)
	// Send sends packets, as many as the socket takes without blocking for long;
	// it returns how many were sent and the error that stopped it: then packets[n]
	// is the one that failed, and those after it were not tried.
	Send(packets []Packet) (n int, err error)
	// Wake makes a blocked Receive return early.
	Wake()
	// LocalAddr is where the source listens, with the port that was really bound.
	LocalAddr() netip.AddrPort
	// Stats reads counters; any goroutine may.
	Stats() Stats
	// Close stops reception; a blocked Receive returns ErrClosed. The slab stays,
	// and spans can still be released.
	Close() error
}

// Stats counts since the source was opened.
type Stats struct {
	Datagrams, Bytes uint64
	// KernelDrops is what the kernel dropped for want of socket buffer, or to shed whole
	// requests (SO_RXQ_OVFL).
	KernelDrops uint64
	// Shedding is the part of the requests that is being shed, 0 to 1.
	Shedding float64
	// Truncated datagrams did not fit the room given to the kernel and were
	// dropped; NoRoom counts reads put off because the slab was full.
	Truncated, NoRoom uint64
	// HeldBytes is slab now held by datagrams, SlabBytes the slab's size.
	HeldBytes, SlabBytes uint64
}
