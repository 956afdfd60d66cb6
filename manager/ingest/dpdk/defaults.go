package dpdk

import (
	"crypto/sha256"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strings"
)

// device is a port as DPDK is to be told of it.
type device struct {
	// spec is the name and the arguments: those that were given, and those that
	// DPDK's own defaults are not fit for pictures in.
	spec string
	// frameBytes is what an mbuf must have room for.
	frameBytes int
	// pci is a NIC, allowed by its address.
	pci string
}

// headerBytes is what surrounds an IP packet in a frame: Ethernet, two VLAN tags,
// and the check sequence that some NICs write too.
const headerBytes = 14 + 2*4 + 4

// roomBytes is the grain of receive buffers: NICs of Intel take them in whole KiB.
const roomBytes = 1 << 10

// Sizes of an af_packet ring (packet(7), PACKET_RX_RING).
const (
	packetHeaderBytes = 52 // TPACKET2_HDRLEN, which precedes a frame in the ring
	packetBlockBytes  = 64 << 10
	// packetRingBytes holds a picture of 600 KB of 1 KB frames dozens of times over.
	// DPDK's own 512 frames are less than one.
	packetRingBytes = 32 << 20
)

// describe fills in what a port's arguments leave out; own is the first of its
// addresses.
func describe(port string, own netip.Addr, mtu, queues int) device {
	name, given, _ := strings.Cut(port, ",")
	d := device{spec: port, frameBytes: roundUp(mtu+headerBytes, roomBytes)}
	if !strings.HasPrefix(name, "net_") {
		d.pci = name
		return d
	}
	has := func(key string) bool {
		for _, arg := range strings.Split(given, ",") {
			if k, _, _ := strings.Cut(arg, "="); k == key {
				return true
			}
		}
		return false
	}
	add := func(key string, value any) {
		if !has(key) {
			d.spec += fmt.Sprintf(",%s=%v", key, value)
		}
	}
	switch strings.TrimRight(name, "0123456789") {
	case "net_af_packet":
		frame := powerOfTwo(mtu + headerBytes + packetHeaderBytes)
		add("framesz", frame)
		add("blocksz", max(packetBlockBytes, frame))
		add("framecnt", packetRingBytes/frame)
		if queues > 1 {
			add("qpairs", queues)
		}
		// The driver wants room for all of a ring's frame, whichever it was told.
		d.frameBytes = max(d.frameBytes, argument(d.spec, "framesz"))
	case "net_af_xdp":
		// The kernel copies: what veth and most drivers can. Its busy polling loses
		// frames where the poller polls anyhow.
		add("force_copy", 1)
		add("busy_budget", 0)
		if queues > 1 {
			add("queue_count", queues)
		}
	case "net_tap":
		add("mac", stableMAC(own))
	case "net_memif":
		add("mac", stableMAC(own))
		add("rsize", 11) // 2048 slots, the logarithm
		if mtu+headerBytes > 2048 {
			add("bsize", powerOfTwo(mtu+headerBytes))
		}
	}
	return d
}

// stableMAC is an Ethernet address for whoever has own, the same each time: DPDK's own
// choice is another one at each start, and senders go on sending to the last. It is a
// locally administered one (IEEE 802 8.4).
func stableMAC(own netip.Addr) net.HardwareAddr {
	sum := sha256.Sum256(own.AsSlice())
	return net.HardwareAddr{sum[0]&^3 | 2, sum[1], sum[2], sum[3], sum[4], sum[5]}
}

// argument reads a number of a device's arguments, 0 where it is none.
func argument(spec, key string) (n int) {
	for _, arg := range strings.Split(spec, ",") {
		if value, ok := strings.CutPrefix(arg, key+"="); ok {
			_, _ = fmt.Sscanf(value, "%d", &n) // DPDK says what is wrong with one that is none
		}
	}
	return n
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// powerOfTwo is the least that is n or more.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }
