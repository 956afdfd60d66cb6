package dpdk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/wire"
)

// host is a simulated machine on the camera's cable. It makes its frames itself,
// and no kernel answers for it. It uses gopacket to build and parse frames, which
// shares no code with the code under test.
type host struct {
	t    *testing.T
	fd   int
	mac  net.HardwareAddr
	at   netip.AddrPort
	to   netip.AddrPort   // a function's
	via  net.HardwareAddr // the node's
	vlan []uint16         // tags of its frames, the outer one first
}

// The first host is number 9: 10.77.0.9 and fd00:77::9.
var nextHost = byte(9)

// newHost connects a host to the cable. Its address is of the same family as to.
func newHost(t *testing.T, to netip.AddrPort, vlan ...uint16) *host {
	t.Helper()
	iface, err := net.InterfaceByName("cam0")
	must.OK(t, err)
	all := htons(unix.ETH_P_ALL)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	must.OK(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must.OK(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: iface.Index}))
	// The kernel removes the tag of a received frame, and reports it separately.
	must.OK(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1))
	must.OK(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	id := nextHost
	nextHost++
	addr := netip.AddrFrom4([4]byte{10, 77, 0, id})
	if to.Addr().Is6() {
		addr = netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x77, 15: id})
	}
	return &host{
		t: t, fd: fd, to: to, vlan: vlan,
		mac: net.HardwareAddr{2, 0, 0, 0, 0, id},
		at:  netip.AddrPortFrom(addr, 5000+uint16(id)),
		via: net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, // until resolve sets it
	}
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// frame assembles layers behind this host's Ethernet header and tags.
func (h *host) frame(dst net.HardwareAddr, kind layers.EthernetType, inner ...gopacket.SerializableLayer) []byte {
	h.t.Helper()
	ethernet := &layers.Ethernet{SrcMAC: h.mac, DstMAC: dst, EthernetType: kind}
	all := []gopacket.SerializableLayer{ethernet}
	next := &ethernet.EthernetType
	for i, id := range h.vlan {
		*next = layers.EthernetTypeDot1Q
		if i == 0 && len(h.vlan) == 2 {
			*next = layers.EthernetTypeQinQ
		}
		tag := &layers.Dot1Q{VLANIdentifier: id, Type: kind}
		all, next = append(all, tag), &tag.Type
	}
	b := gopacket.NewSerializeBuffer()
	must.OK(h.t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(all, inner...)...))
	return slices.Clone(b.Bytes())
}

// ip returns this host's IP header for the function.
func (h *host) ip(protocol layers.IPProtocol) (layers.EthernetType, gopacket.NetworkLayer, gopacket.SerializableLayer) {
	src, dst := h.at.Addr().AsSlice(), h.to.Addr().AsSlice()
	if h.to.Addr().Is4() {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: protocol, SrcIP: src, DstIP: dst}
		return layers.EthernetTypeIPv4, ip, ip
	}
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol, SrcIP: src, DstIP: dst}
	return layers.EthernetTypeIPv6, ip, ip
}

// datagram returns a frame with a UDP payload for the function.
func (h *host) datagram(payload []byte) []byte {
	kind, network, ip := h.ip(layers.IPProtocolUDP)
	udp := &layers.UDP{SrcPort: layers.UDPPort(h.at.Port()), DstPort: layers.UDPPort(h.to.Port())}
	must.OK(h.t, udp.SetNetworkLayerForChecksum(network))
	return h.frame(h.via, kind, ip, udp, gopacket.Payload(payload))
}

// picture returns a picture's frames, in order.
func (h *host) picture(id uint32, p []byte) (frames [][]byte) {
	for i := range wire.Fragments(len(p), fragmentBytes) {
		head := wire.FragmentHeader(wire.TypeData, id, len(p), fragmentBytes, i)
		b := make([]byte, wire.HeaderSize, wire.HeaderSize+fragmentBytes)
		head.Put(b)
		frames = append(frames, h.datagram(append(b, p[head.Offset:][:head.Length]...)))
	}
	return frames
}

const fragmentBytes = wire.DefaultFragmentBytes

func (h *host) send(frames ...[]byte) {
	h.t.Helper()
	for _, f := range frames {
		var err error
		wait.For(h.t, "room for a frame", func() bool {
			_, err = unix.Write(h.fd, f)
			return !errors.Is(err, unix.ENOBUFS)
		})
		must.OK(h.t, err)
	}
}

// receive returns the next frame for which match returns true, with its original
// tags, or nil if none arrives in time.
func (h *host) receive(patience time.Duration, match func(p gopacket.Packet) bool) gopacket.Packet {
	h.t.Helper()
	deadline := time.Now().Add(patience)
	b, oob := make([]byte, 1<<16), make([]byte, 256)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return nil
		}
		timeout := unix.NsecToTimeval(int64(left))
		must.OK(h.t, unix.SetsockoptTimeval(h.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
		n, noob, _, from, err := unix.Recvmsg(h.fd, b, oob, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
			continue
		}
		must.OK(h.t, err)
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		frame := withTag(b[:n], oob[:noob])
		packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		ethernet, ok := packet.LinkLayer().(*layers.Ethernet)
		if ok && bytes.Equal(ethernet.DstMAC, h.mac) && match(packet) {
			return packet
		}
	}
}

// withTag restores a tag that the kernel removed (struct tpacket_auxdata,
// linux/if_packet.h).
func withTag(frame, oob []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 || len(messages[0].Data) < 20 {
		return slices.Clone(frame)
	}
	aux := messages[0].Data
	status := binary.NativeEndian.Uint32(aux)
	tci, tpid := binary.NativeEndian.Uint16(aux[16:]), binary.NativeEndian.Uint16(aux[18:])
	if status&unix.TP_STATUS_VLAN_VALID == 0 {
		return slices.Clone(frame)
	}
	out := slices.Clone(frame[:12])
	out = binary.BigEndian.AppendUint16(out, tpid)
	out = binary.BigEndian.AppendUint16(out, tci)
	return append(out, frame[12:]...)
}

// resolve resolves the function's address on the cable, as a kernel does.
func (h *host) resolve() {
	h.t.Helper()
	for range 50 {
		if h.to.Addr().Is4() {
			h.send(h.frame(h.via, layers.EthernetTypeARP, &layers.ARP{
				AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4,
				Operation: layers.ARPRequest, SourceHwAddress: h.mac, SourceProtAddress: h.at.Addr().AsSlice(),
				DstHwAddress: make([]byte, 6), DstProtAddress: h.to.Addr().AsSlice(),
			}))
		} else {
			h.send(h.solicitation())
		}
		packet := h.receive(200*time.Millisecond, func(p gopacket.Packet) bool {
			if arp, ok := p.Layer(layers.LayerTypeARP).(*layers.ARP); ok {
				return arp.Operation == layers.ARPReply && bytes.Equal(arp.SourceProtAddress, h.to.Addr().AsSlice())
			}
			na, ok := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
			return ok && na.TargetAddress.Equal(h.to.Addr().AsSlice())
		})
		if packet == nil {
			continue
		}
		if arp, ok := packet.Layer(layers.LayerTypeARP).(*layers.ARP); ok {
			h.via = slices.Clone(arp.SourceHwAddress)
		} else {
			for _, o := range packet.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement).Options {
				if o.Type == layers.ICMPv6OptTargetAddress {
					h.via = slices.Clone(o.Data)
				}
			}
		}
		h.sameTags(packet)
		return
	}
	h.t.Fatalf("nobody says who has %v", h.to.Addr())
}

// solicitation requests the function's IPv6 address at its solicited-node multicast
// address (RFC 4861).
func (h *host) solicitation() []byte {
	target := h.to.Addr().As16()
	group := netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: target[13], 14: target[14], 15: target[15]})
	mac := net.HardwareAddr{0x33, 0x33, 0xff, target[13], target[14], target[15]}
	ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: h.at.Addr().AsSlice(), DstIP: group.AsSlice()}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborSolicitation, 0)}
	must.OK(h.t, icmp.SetNetworkLayerForChecksum(ip))
	return h.frame(mac, layers.EthernetTypeIPv6, ip, icmp, &layers.ICMPv6NeighborSolicitation{
		TargetAddress: h.to.Addr().AsSlice(),
		Options:       layers.ICMPv6Options{{Type: layers.ICMPv6OptSourceAddress, Data: h.mac}},
	})
}

// sameTags checks that an answer has the tags of the request.
func (h *host) sameTags(p gopacket.Packet) {
	h.t.Helper()
	var tags []uint16
	for _, l := range p.Layers() {
		if tag, ok := l.(*layers.Dot1Q); ok {
			tags = append(tags, tag.VLANIdentifier)
		}
	}
	if !slices.Equal(tags, h.vlan) {
		h.t.Errorf("an answer came with tags %v, want %v", tags, h.vlan)
	}
}

// answer waits for an answer to this host's port. It checks that source and
// destination are those of the request, exchanged, and that its checksums are
// correct.
func (h *host) answer(patience time.Duration) (wire.Header, *wire.Result, []byte) {
	h.t.Helper()
	var head wire.Header
	var result *wire.Result
	var payload []byte
	h.receive(patience, func(p gopacket.Packet) bool {
		udp, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if !ok || udp.DstPort != layers.UDPPort(h.at.Port()) {
			return false
		}
		flow := p.NetworkLayer().NetworkFlow()
		if src, dst := flow.Src().String(), flow.Dst().String(); src != h.to.Addr().String() || dst != h.at.Addr().String() || uint16(udp.SrcPort) != h.to.Port() {
			h.t.Errorf("an answer came from %s:%d to %s, want from %v to %v", src, udp.SrcPort, dst, h.to, h.at)
		}
		if wrong := badChecksums(h.t, p); wrong != "" {
			h.t.Errorf("an answer came with %s", wrong)
		}
		h.sameTags(p)
		if ethernet := p.LinkLayer().(*layers.Ethernet); !bytes.Equal(ethernet.SrcMAC, h.via) {
			h.t.Errorf("an answer came from %v, want from %v", ethernet.SrcMAC, h.via)
		}
		var r wire.Result
		var err error
		if head, r, payload, err = wire.DecodeResult(udp.Payload); err != nil {
			return false // a NACK
		}
		result = &r
		return true
	})
	return head, result, payload
}

// badChecksums computes a UDP packet's checksums again and returns those that
// differ.
func badChecksums(t *testing.T, p gopacket.Packet) string {
	t.Helper()
	udp := *p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	had := udp.Checksum
	b := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	must.OK(t, udp.SetNetworkLayerForChecksum(p.NetworkLayer()))
	must.OK(t, gopacket.SerializeLayers(b, options, &udp, gopacket.Payload(udp.Payload)))
	if udp.Checksum != had {
		return "a wrong UDP checksum"
	}
	if ip, ok := p.NetworkLayer().(*layers.IPv4); ok {
		again := *ip
		must.OK(t, gopacket.SerializeLayers(gopacket.NewSerializeBuffer(), gopacket.SerializeOptions{ComputeChecksums: true}, &again))
		if again.Checksum != ip.Checksum {
			return "a wrong IPv4 header checksum"
		}
	}
	return ""
}

// shuffled returns frames in another order, the same for the same seed.
func shuffled(frames [][]byte, seed uint64) [][]byte {
	out := slices.Clone(frames)
	newRandom(seed).Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

// wirePort returns an address with another port.
func wirePort(a netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), port)
}
