package dpdk

import (
	"net/netip"
	"testing"
)

func TestVirtualDeviceDefaults(t *testing.T) {
	own := netip.MustParseAddr("10.9.0.1")
	mac := stableMAC(own).String()
	for _, test := range []struct {
		port        string
		mtu, queues int
		spec        string
		frameBytes  int
	}{
		{"net_af_packet0,iface=v", 1500, 1, "net_af_packet0,iface=v,framesz=2048,blocksz=65536,framecnt=16384", 2048},
		{"net_af_packet0,iface=v", 1500, 2, "net_af_packet0,iface=v,framesz=2048,blocksz=65536,framecnt=16384,qpairs=2", 2048},
		{"net_af_packet0,iface=v", 9000, 1, "net_af_packet0,iface=v,framesz=16384,blocksz=65536,framecnt=2048", 16384},
		{"net_af_packet0,iface=v,framecnt=512,framesz=4096", 1500, 1, "net_af_packet0,iface=v,framecnt=512,framesz=4096,blocksz=65536", 4096},
		{"net_af_xdp0,iface=v", 1500, 1, "net_af_xdp0,iface=v,force_copy=1,busy_budget=0", 2048},
		{"net_af_xdp0,iface=v,busy_budget=64", 1500, 2, "net_af_xdp0,iface=v,busy_budget=64,force_copy=1,queue_count=2", 2048},
		{"net_tap0", 1500, 1, "net_tap0,mac=" + mac, 2048},
		{"net_tap0,mac=02:00:00:00:00:07", 1500, 1, "net_tap0,mac=02:00:00:00:00:07", 2048},
		{"net_memif3,role=server", 1500, 1, "net_memif3,role=server,mac=" + mac + ",rsize=11", 2048},
		{"net_memif3", 9000, 1, "net_memif3,mac=" + mac + ",rsize=11,bsize=16384", 9216},
		{"net_pcap0,iface=v", 1500, 1, "net_pcap0,iface=v", 2048},
		{"net_ring0", 9000, 1, "net_ring0", 9216},
		{"0000:3b:00.0", 1500, 4, "0000:3b:00.0", 2048},
	} {
		d := describe(test.port, own, test.mtu, test.queues)
		if d.spec != test.spec || d.frameBytes != test.frameBytes {
			t.Errorf("%s, MTU %d: %q with frames of %d, want %q, %d", test.port, test.mtu, d.spec, d.frameBytes, test.spec, test.frameBytes)
		}
		if test.port[0] == '0' && d.pci != "0000:3b:00.0" {
			t.Errorf("%s is not allowed by its address: %q", test.port, d.pci)
		}
	}
}
