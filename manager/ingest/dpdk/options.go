package dpdk

import (
	"errors"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/manager/ingest/dpdk/frame"
)

// ErrNotBuilt is returned by Open of a program that was built without DPDK.
var ErrNotBuilt = errors.New("this penstock was built without DPDK: install it (apt-get install libdpdk-dev), build again (make build-dpdk), and see what penstock doctor says; or configure `source: udp`")

// Checksums says who verifies the checksums of what is received.
type Checksums string

// Auto leaves to a NIC what it can verify, verifies the rest, and takes from a
// virtual device what its sender's kernel left unfilled for an offload. Verify takes
// nothing that is unfilled, Ignore whatever comes.
const (
	Auto   Checksums = "auto"
	verify Checksums = "verify"
	ignore Checksums = "ignore"
)

// Options of a port group.
type Options struct {
	// Port is a PCI address, or a virtual device with its arguments.
	Port string
	// Addresses are the port's own, all of which every function is reached at.
	Addresses []netip.Addr
	// Queues is how many receive queues are polled; LCores are the CPUs that poll
	// them, one each, or nil.
	Queues int
	LCores []int
	// MTU is the largest IP packet, in bytes.
	MTU int
	// Memory is the packet memory in bytes, on huge pages or not; Mbufs how many
	// packets it holds, 0 for as many as fit.
	Memory    int
	HugePages bool
	Mbufs     int
	Checksums Checksums
	// EAL are more arguments for DPDK's environment.
	EAL []string
	// BusyPoll is how long Receive looks for datagrams before it sleeps, and a virtual
	// port's poller before it naps.
	BusyPoll time.Duration
	Log      zerolog.Logger
}

// GroupStats counts what a port's functions have in common, since it was opened.
type GroupStats struct {
	// Frames are those received, by what was made of them.
	Frames [frame.Reasons]uint64
	// Answered are ARP, neighbour discovery and echo.
	Answered frame.ResponderStats
	// Missed were dropped by the NIC or the virtual device since no buffer was free
	// or nobody polled in time, or by a poller since their function, or the thread that
	// answers, lagged behind; NoMbuf counts refills that found the pool empty.
	Missed, NoMbuf uint64
	// Unsent are replies that the transmit queue did not take, NoNeighbour those
	// to an address that nothing was heard of, or not any more.
	Unsent, NoNeighbour uint64
	// MbufsHeld are not in the pool now, of Mbufs in all.
	MbufsHeld, Mbufs uint64
	// LinkUp is whether the port can receive: its link is up, and it has not gone.
	LinkUp bool
}
