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
func openNetwork(cfg *configs.Config, log zerolog.Logger) (datapath.Network, error) {
	d := cfg.Source.DPDK
	if d == nil {
		return kernelNetwork(cfg, log), nil
	}
	return datapath.DPDKNetwork(dpdk.Options{
		Port: d.Port, Addresses: d.Addresses,
		Queues: d.Queues, LCores: d.LCores, MTU: d.MTU,
		Memory: int(d.Memory), HugePages: d.HugePages, Mbufs: d.Mbufs,
		EAL:      d.EAL,
		BusyPoll: cfg.BusyPoll,
		Log:      log,
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
