package dpdk

import (
	"crypto/sha256"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strings"
)

// device is a port as DPDK expects its description.
type device struct {
	// spec is the name and the arguments: those that were given, and replacements for
	// defaults of DPDK that do not suit pictures.
	spec string
	// frameBytes is the min room of an mbuf.
	frameBytes int
	// pci is the address of a NIC, which DPDK is allowed to use; empty for a virtual device.
	pci string
}

// headerBytes is what surrounds an IP packet in a frame: Ethernet, two VLAN tags, and the
// check sequence, which some NICs write too.
const headerBytes = 14 + 2*4 + 4

// roomBytes is the unit of receive buffers: Intel NICs need whole KiB.
const roomBytes = 1 << 10

// Sizes of an af_packet ring (packet(7), PACKET_RX_RING).
const (
	packetHeaderBytes = 52 // TPACKET2_HDRLEN, which precedes a frame in the ring
	packetBlockBytes  = 64 << 10
	// packetRingBytes holds a picture of 600 KB in 1 KB frames dozens of times. DPDK's
	// default of 512 frames is less than one picture.
	packetRingBytes = 32 << 20
)

// describe adds the arguments that a port lacks; own is the first of its addresses.
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
		// The driver wants room for a whole frame of the ring, whichever size was given.
		d.frameBytes = max(d.frameBytes, argument(d.spec, "framesz"))
	case "net_af_xdp":
		// force_copy: the kernel copies, which veth and most drivers support. busy_budget:
		// the kernel's busy polling loses frames when the poller polls too.
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

// stableMAC is an Ethernet address derived from own, the same at each start. DPDK chooses
// another one at each start, while senders keep sending to the last one. The address is
// locally administered (IEEE 802 8.4).
func stableMAC(own netip.Addr) net.HardwareAddr {
	sum := sha256.Sum256(own.AsSlice())
	return net.HardwareAddr{sum[0]&^3 | 2, sum[1], sum[2], sum[3], sum[4], sum[5]}
}

// argument reads a number from a device's arguments, 0 if there is none.
func argument(spec, key string) (n int) {
	for _, arg := range strings.Split(spec, ",") {
		if value, ok := strings.CutPrefix(arg, key+"="); ok {
			_, _ = fmt.Sscanf(value, "%d", &n) // DPDK reports an argument that is no number
		}
	}
	return n
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// powerOfTwo returns the smallest power of two that is n or more.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }
