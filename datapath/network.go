package datapath

import (
	"errors"
	"math"
	"net/netip"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/datapath/dpdk"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/udp"
)

// Network opens UDP ports. Only this file knows which kind of source a node uses.
type Network interface {
	// Open opens a port; 0 means any free one. receivers is the number of sources for ports of
	// the kernel. All datagrams of a client come from one of the sources. With shed, an overloaded
	// port of the kernel drops whole requests, which only Penstock's protocol allows.
	Open(port uint16, receivers int, shed bool) (*Sources, error)
	// Address is the address that clients send to.
	Address() netip.Addr
	// Frames returns the counters of a network interface that the ports share; nil for ports of
	// the kernel.
	Frames() *dpdk.GroupStats
	// Close frees what the ports share. All of them must be closed.
	Close() error
}

// Sources feed one port. They share one slab. Each has its own receive thread.
type Sources struct {
	// All has at least one source.
	All []ingest.Source
	// Parted: each source receives into its own part of the slab.
	Parted bool
	// Close frees the slab. Call it when all sources are closed and the slab has no user left.
	Close func() error
}

// stats sums up the sources' counters. Shedding is the highest of them.
func (s *Sources) stats() ingest.Stats {
	sum := s.All[0].Stats()
	for _, src := range s.All[1:] {
		one := src.Stats()
		sum.Datagrams += one.Datagrams
		sum.Bytes += one.Bytes
		sum.KernelDrops += one.KernelDrops
		sum.Shedding = max(sum.Shedding, one.Shedding)
		sum.Truncated += one.Truncated
		sum.NoRoom += one.NoRoom
		sum.HeldBytes += one.HeldBytes
		if s.Parted {
			sum.SlabBytes += one.SlabBytes
		}
	}
	return sum
}

// kernelNetwork opens UDP sockets. The sockets of a port share one slab, each with its own part.
type kernelNetwork struct {
	options udp.Options
	log     zerolog.Logger
}

// KernelNetwork opens sockets with these options, on the address of Listen. It logs their
// overload.
func KernelNetwork(o udp.Options, log zerolog.Logger) Network {
	return kernelNetwork{o, log}
}

func (n kernelNetwork) Open(port uint16, receivers int, shed bool) (*Sources, error) {
	o := n.options
	o.NoShedding = o.NoShedding || !shed
	o.Listen = netip.AddrPortFrom(n.Address(), port)
	o.OnOverrun = func(e udp.Overrun) { logOverrun(n.log, port, e) }
	all, err := udp.Open(o, receivers)
	if err != nil {
		return nil, err
	}
	s := sources(all)
	s.Parted = true
	return s, nil
}

func (n kernelNetwork) Address() netip.Addr    { return n.options.Listen.Addr() }
func (kernelNetwork) Frames() *dpdk.GroupStats { return nil }
func (kernelNetwork) Close() error             { return nil }

// logOverrun logs the begin and the end of a receiver's overload. An overrun ends after one second
// without overload, so the lines do not come faster. That a receiver cannot shed requests is
// reported, and logged, once.
func logOverrun(log zerolog.Logger, port uint16, o udp.Overrun) {
	if o.Err != nil {
		log.Warn().Err(o.Err).Uint16("port", port).Int("receiver", o.Receiver).
			Msg("receiver cannot shed requests: an overrun loses datagrams of most requests (docs/networking.md)")
		return
	}
	percent := math.Round(100 * o.Shed)
	if o.Ended {
		log.Info().Uint16("port", port).Int("receiver", o.Receiver).Float64("shed_percent", percent).Dur("lasted", o.Lasted).Msg("receiver overrun ended")
		return
	}
	log.Warn().Uint16("port", port).Int("receiver", o.Receiver).Float64("shed_percent", percent).Msg("receiver overrun: shedding requests")
}

// sources returns the sources of a port.
func sources[S interface {
	ingest.Source
	CloseSlab() error
}](all []S) *Sources {
	s := &Sources{}
	for _, src := range all {
		s.All = append(s.All, src)
	}
	s.Close = func() (err error) {
		for _, src := range all {
			err = errors.Join(err, src.CloseSlab())
		}
		return err
	}
	return s
}

// dpdkNetwork opens UDP ports of one Ethernet port that DPDK polls; they share one slab.
type dpdkNetwork struct {
	group *dpdk.Group
	addr  netip.Addr
}

// DPDKNetwork prepares an Ethernet port. Its error names what this machine lacks for it.
func DPDKNetwork(o dpdk.Options) (Network, error) {
	group, err := dpdk.Open(o)
	if err != nil {
		return nil, err
	}
	return dpdkNetwork{group, o.Addresses[0]}, nil
}

func (n dpdkNetwork) Open(port uint16, _ int, _ bool) (*Sources, error) {
	all, err := n.group.Listen(port, n.group.Queues())
	if err != nil {
		return nil, err
	}
	return sources(all), nil
}

func (n dpdkNetwork) Address() netip.Addr { return n.addr }

func (n dpdkNetwork) Frames() *dpdk.GroupStats {
	s := n.group.Stats()
	return &s
}

func (n dpdkNetwork) Close() error { return n.group.Close() }
