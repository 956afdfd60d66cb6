package manager

import (
	"net/netip"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/datapath/dpdk"
	"github.com/penstock/penstock/datapath/udp"
)

// openNetwork prepares ports as configured. It returns an error that names what this machine lacks
// for them.
func (m *Manager) openNetwork() (datapath.Network, error) {
	d := m.cfg.Source.DPDK
	if d == nil {
		return kernelNetwork(&m.cfg, m.log), nil
	}
	return datapath.DPDKNetwork(dpdk.Options{
		Port: d.Port, Addresses: d.Addresses,
		Queues: d.Queues, LCores: d.LCores, MTU: d.MTU,
		Memory: int(d.Memory), HugePages: d.HugePages, Mbufs: d.Mbufs,
		Checksums: dpdk.Checksums(d.Checksums),
		EAL:       d.EAL,
		BusyPoll:  m.cfg.BusyPoll,
		Log:       m.log,
	})
}

func kernelNetwork(cfg *configs.Config, log zerolog.Logger) datapath.Network {
	return datapath.KernelNetwork(udp.Options{
		Listen:     netip.AddrPortFrom(cfg.Listen, 0),
		SlabBytes:  int(cfg.Slab.Size),
		HugePages:  cfg.Slab.HugePages,
		RecvBuffer: int(cfg.Slab.ReceiveBuffer),
		BusyPoll:   cfg.BusyPoll,
	}, log)
}

// openSources opens the port of a function.
func (m *Manager) openSources(c configs.Function) (*datapath.Sources, error) {
	receivers, before := m.cfg.ReceiversOf(c), m.folder.formerPorts[c.Name]
	shed := c.Format == ""
	if c.Port == 0 && before != 0 {
		sources, err := m.network.Open(before, receivers, shed)
		if err == nil {
			return sources, nil
		}
		m.log.Warn().Err(err).Str("if", c.Name).Msg("port of function changed at its restoration")
	}
	return m.network.Open(c.Port, receivers, shed)
}
