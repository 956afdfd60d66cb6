package dpdk

import (
	"errors"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/datapath/dpdk/frame"
)

// ErrNotBuilt is returned by Open in a program that was built without DPDK.
var ErrNotBuilt = errors.New("this penstock was built without DPDK; install it (apt-get install libdpdk-dev) and build again (make build-dpdk), or configure `source: udp`")

// Options of a port group.
type Options struct {
	// Port is a PCI address, or a virtual device with its arguments.
	Port string
	// Addresses are the port's own IP addresses. Each function is reachable at all of them.
	Addresses []netip.Addr
	// Queues is the number of receive queues that are polled. LCores are the CPUs that poll
	// them, one each, or nil.
	Queues int
	LCores []int
	// MTU is the largest IP packet, in bytes.
	MTU int
	// Memory is the packet memory in bytes, on huge pages or not. Mbufs is the number of
	// packets it holds, 0 for as many as fit.
	Memory    int
	HugePages bool
	Mbufs     int
	// EAL holds more arguments for DPDK's environment.
	EAL []string
	// BusyPoll is how long Receive polls for datagrams before it sleeps. It is also how long
	// a virtual port's poller polls before it naps.
	BusyPoll time.Duration
	Log      zerolog.Logger
}

// GroupStats holds the counters that a port's functions share, since the port was opened.
type GroupStats struct {
	// Frames counts received frames, by the result of parsing.
	Frames [frame.Reasons]uint64
	// Answered counts answers to ARP, neighbour discovery and echo.
	Answered frame.ResponderStats
	// Missed counts dropped frames. The NIC or the virtual device drops if no buffer was free
	// or polling was late. A poller drops if the frame's function, or the thread that
	// answers, lagged behind. NoMbuf counts refills that found the pool empty.
	Missed, NoMbuf uint64
	// Unsent counts replies that the transmit queue did not accept. NoNeighbour counts
	// replies to an address that sent nothing, or nothing lately.
	Unsent, NoNeighbour uint64
	// MbufsHeld is how many of all Mbufs are not in the pool now.
	MbufsHeld, Mbufs uint64
	// LinkUp reports whether the port can receive: its link is up, and the device is present.
	LinkUp bool
}
