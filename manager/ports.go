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

// ports opens the UDP ports of functions. Which kind of source a node has is known
// here and nowhere above.
type ports interface {
	// open opens a port, 0 for any free one: the sources that it is received from, each
	// by a thread of its own, over one slab; receivers is how many, where the kernel has
	// the port. All datagrams of a client come from one of
	// them. closeSlab gives their memory back when all are closed and nobody uses the
	// slab any more.
	open(port uint16, receivers int) (sources []ingest.Source, closeSlab func() error, err error)
	// move opens another port for the sources of one, which go on as they are until Commit.
	move(sources []ingest.Source, port uint16) (portMove, error)
	// parted reports whether each source of a port receives into a part of the slab that
	// is its own.
	parted() bool
	// address is where clients send to.
	address() netip.Addr
	// frames are the counters of a network interface that the ports share, nil where
	// the kernel has them.
	frames() *dpdk.GroupStats
	// close gives up what the ports have in common, when all are closed.
	close() error
}

// portMove is a port that is open and does not receive yet.
type portMove interface {
	// Commit lets the sources receive from the port. The one before stays open for linger: what
	// comes there is answered from there.
	Commit(linger time.Duration)
	Abort()
}

// openSource opens what feeds a function: a port, or a capture.
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

// newPorts makes ready for opening ports, as the configuration says. What a port
// needs that this machine does not have is an error that says so.
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

// kernelPorts are UDP sockets; those of a function have one slab, each a part of it.
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

// logOverrun says that a receiver is offered more than it can take, or is so no more. Once begun, an
// overrun ends after a second without, so these lines do not come faster. That it sheds nothing is
// said once.
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

// together are the sources of a port, and what gives their memory up.
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

// dpdkPorts are UDP ports of one Ethernet port that DPDK polls, on one slab.
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
