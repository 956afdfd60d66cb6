package manager

import (
	"errors"
	"math"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/manager/ingest"
	"github.com/penstock/penstock/manager/ingest/dpdk"
	"github.com/penstock/penstock/manager/ingest/replay"
	"github.com/penstock/penstock/manager/ingest/udp"
)

// ports opens the UDP ports of functions. Only this file knows which kind of source a node uses.
type ports interface {
	// open opens a port; 0 means any free one. It returns the port's sources, which share one slab.
	// A thread of its own receives from each. receivers is their number for ports of the kernel.
	// All datagrams of a client come from one of the sources. closeSlab frees their memory; call it
	// when all are closed and the slab has no user left.
	open(port uint16, receivers int) (sources []ingest.Source, closeSlab func() error, err error)
	// move opens another port for the sources of a port. They keep the old one until Commit.
	move(sources []ingest.Source, port uint16) (portMove, error)
	// parted reports whether each source of a port receives into its own part of the slab.
	parted() bool
	// address is the address that clients send to.
	address() netip.Addr
	// frames returns the counters of a network interface that the ports share; nil for ports of the
	// kernel.
	frames() *dpdk.GroupStats
	// close frees what the ports share. All of them must be closed.
	close() error
}

// portMove is a port that is open and does not receive yet.
type portMove interface {
	// Commit lets the sources receive from the new port. The old one stays open for linger: it
	// answers the requests that arrive there.
	Commit(linger time.Duration)
	Abort()
}

// openSource opens the source of a function: a port, or a capture.
func (m *Manager) openSource(c configs.Function) ([]ingest.Source, func() error, error) {
	if c.Replay.File == "" {
		receivers, had := m.cfg.ReceiversOf(c), m.had[c.Name]
		if c.Port == 0 && had != 0 {
			sources, closeSlab, err := m.ports.open(had, receivers)
			if err == nil {
				return sources, closeSlab, nil
			}
			m.log.Warn().Err(err).Str("if", c.Name).Msg("function gets another port than it had")
		}
		return m.ports.open(c.Port, receivers)
	}
	src, err := replay.Open(replay.Options{
		Path: c.Replay.File, Port: c.Port, Speed: c.Replay.Speed,
		SlabBytes: int(m.cfg.Slab.Size), HugePages: m.cfg.Slab.HugePages,
	})
	if err != nil {
		return nil, nil, err
	}
	return []ingest.Source{src}, src.CloseSlab, nil
}

// newPorts prepares ports as configured. It returns an error that names what this machine lacks for
// them.
func (m *Manager) newPorts() (ports, error) {
	d := m.cfg.Source.DPDK
	if d == nil {
		return kernelPorts{cfg: &m.cfg, log: m.log}, nil
	}
	group, err := dpdk.Open(dpdk.Options{
		Port: d.Port, Addresses: d.Addresses,
		Queues: d.Queues, LCores: d.LCores, MTU: d.MTU,
		Memory: int(d.Memory), HugePages: d.HugePages, Mbufs: d.Mbufs,
		Checksums: dpdk.Checksums(d.Checksums),
		EAL:       d.EAL,
		BusyPoll:  m.cfg.BusyPoll,
		Log:       m.log,
	})
	if err != nil {
		return nil, err
	}
	return dpdkPorts{group, d.Addresses[0]}, nil
}

// kernelPorts are UDP sockets. The sockets of a function share one slab, each with its own part.
type kernelPorts struct {
	cfg *configs.Config
	log zerolog.Logger
}

func (p kernelPorts) open(port uint16, receivers int) (sources []ingest.Source, closeSlab func() error, err error) {
	all, err := udp.OpenSeveral(udp.Options{
		BusyPoll:   p.cfg.BusyPoll,
		Listen:     netip.AddrPortFrom(p.cfg.Listen, port),
		SlabBytes:  int(p.cfg.Slab.Size),
		RecvBuffer: int(p.cfg.Slab.ReceiveBuffer),
		HugePages:  p.cfg.Slab.HugePages,
		OnOverrun:  func(o udp.Overrun) { logOverrun(p.log, port, o) },
	}, receivers)
	if err != nil {
		return nil, nil, err
	}
	sources, closeSlab = together(all)
	return sources, closeSlab, nil
}

// logOverrun logs the begin and the end of a receiver's overload. An overrun ends after one second
// without overload, so the lines do not come faster. That a receiver cannot shed requests is
// reported, and logged, once.
func logOverrun(log zerolog.Logger, port uint16, o udp.Overrun) {
	if o.Err != nil {
		log.Warn().Err(o.Err).Uint16("port", port).Int("receiver", o.Receiver).
			Msg("receiver cannot shed requests: offered more than it takes, it loses single datagrams of nearly all (docs/receivers.md)")
		return
	}
	percent := math.Round(100 * o.Shed)
	if o.Ended {
		log.Info().Uint16("port", port).Int("receiver", o.Receiver).Float64("shed_percent", percent).Dur("lasted", o.Lasted).Msg("receiver overrun is over")
		return
	}
	log.Warn().Uint16("port", port).Int("receiver", o.Receiver).Msgf("receiver overrun: shedding %.0f %% of requests", percent)
}

// together returns the sources of a port, and the function that frees their memory.
func together[S interface {
	ingest.Source
	CloseSlab() error
}](all []S) (sources []ingest.Source, closeSlab func() error) {
	for _, src := range all {
		sources = append(sources, src)
	}
	return sources, func() (err error) {
		for _, src := range all {
			err = errors.Join(err, src.CloseSlab())
		}
		return err
	}
}

func (p kernelPorts) move(sources []ingest.Source, port uint16) (portMove, error) {
	var all []*udp.Source
	for _, src := range sources {
		all = append(all, src.(*udp.Source))
	}
	move, err := udp.OpenMove(all, netip.AddrPortFrom(p.cfg.Listen, port))
	if err != nil {
		return nil, err
	}
	return move, nil
}

func (kernelPorts) parted() bool { return true }

func (p kernelPorts) address() netip.Addr    { return p.cfg.Listen }
func (kernelPorts) frames() *dpdk.GroupStats { return nil }
func (kernelPorts) close() error             { return nil }

// dpdkPorts are UDP ports of one Ethernet port that DPDK polls; they share one slab.
type dpdkPorts struct {
	group *dpdk.Group
	addr  netip.Addr
}

func (p dpdkPorts) open(port uint16, _ int) (sources []ingest.Source, closeSlab func() error, err error) {
	all, err := p.group.ListenSeveral(port, p.group.Queues())
	if err != nil {
		return nil, nil, err
	}
	sources, closeSlab = together(all)
	return sources, closeSlab, nil
}

func (dpdkPorts) move([]ingest.Source, uint16) (portMove, error) {
	return nil, errors.New("source is dpdk, which cannot change a port while its function runs: take the function out of the file, save, put it back")
}

func (dpdkPorts) parted() bool          { return false }
func (p dpdkPorts) address() netip.Addr { return p.addr }

func (p dpdkPorts) frames() *dpdk.GroupStats {
	s := p.group.Stats()
	return &s
}

func (p dpdkPorts) close() error { return p.group.Close() }
