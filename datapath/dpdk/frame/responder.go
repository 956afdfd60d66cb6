package frame

import (
	"net/netip"
	"sync/atomic"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Responder answers what a kernel would answer for its addresses. It answers ARP and
// neighbour solicitations, so that senders find the port, and echo requests. Any goroutine
// may use it. Unlike the rest of the package it allocates: such frames are rare.
type Responder struct {
	host  Host
	table *Neighbours

	arp, neighbour, echo, conflicts atomic.Uint64
}

// ResponderStats counts answers since the start. Conflicts counts frames in which another
// machine claims one of our addresses.
type ResponderStats struct{ ARP, Neighbour, Echo, Conflicts uint64 }

// NewResponder answers for host, and records paths in table.
func NewResponder(host Host, table *Neighbours) *Responder {
	return &Responder{host: host, table: table}
}

// Stats reads the counters.
func (r *Responder) Stats() ResponderStats {
	return ResponderStats{
		ARP: r.arp.Load(), Neighbour: r.neighbour.Load(), Echo: r.echo.Load(), Conflicts: r.conflicts.Load(),
	}
}

// Answer returns the frame that answers b, for which Parse returned ARP or ICMP; nil means no
// answer. stripped is the 802.1Q tag's 16 bits if the NIC removed one from b, else 0; the
// answer has the tag. now is the table's clock. Answer does not keep b.
func (r *Responder) Answer(now int64, b []byte, stripped uint16) []byte {
	var p packet
	var l Link
	reason := p.parse(b, CheckIP, &l)
	if reason != OK && reason != ARP || l.Peer.group() || !l.Stripped(stripped) {
		return nil
	}
	ip, message := b[p.ip:p.start], b[p.start:p.end]
	switch {
	case reason == ARP:
		return r.answerARP(now, message, &l)
	case len(message) < icmpBytes:
	case p.v6 && p.protocol == protoICMP6 && fold(sum(message, pseudo(ip[8:40], protoICMP6, len(message)))) == 0xffff:
		return r.answer6(now, ip, message, &l)
	case !p.v6 && p.protocol == protoICMP && fold(sum(message, 0)) == 0xffff:
		return r.answer4(ip, message, &l)
	}
	return nil
}

// icmpBytes is the min size of the messages that are answered.
const icmpBytes = 8

// answerARP answers ARP for IPv4 over Ethernet (RFC 826).
func (r *Responder) answerARP(now int64, message []byte, l *Link) []byte {
	var q layers.ARP
	if q.DecodeFromBytes(message, gopacket.NilDecodeFeedback) != nil || q.AddrType != layers.LinkTypeEthernet ||
		q.Protocol != layers.EthernetTypeIPv4 || q.HwAddressSize != 6 || q.ProtAddressSize != 4 {
		return nil
	}
	sender := Link{Peer: MAC(q.SourceHwAddress), Own: r.host.MAC, Tags: l.Tags}
	from, to := netip.AddrFrom4([4]byte(q.SourceProtAddress)), netip.AddrFrom4([4]byte(q.DstProtAddress))
	// A probe asks whether an address is in use; its sender has no address yet (RFC 5227).
	known := !from.IsUnspecified()
	switch {
	case !sender.Peer.machine(), known && !answerable4(q.SourceProtAddress):
		return nil
	case r.host.has(from):
		r.conflict(&sender)
		return nil
	case q.Operation != layers.ARPRequest || !r.host.has(to):
		if known {
			r.table.update(from, &sender, now)
		}
		return nil
	case known:
		r.table.Learn(from, &sender, netip.Addr{}, now)
	}
	r.arp.Add(1)
	return arp(&sender, layers.ARPReply, to, from)
}

// conflict counts a frame whose sender claims one of our addresses.
func (r *Responder) conflict(sender *Link) {
	if sender.Peer != r.host.MAC {
		r.conflicts.Add(1)
	}
}

// arp returns a packet that tells l's peer the Ethernet address of from.
func arp(l *Link, operation uint16, from, to netip.Addr) []byte {
	target := l.Peer
	if operation == layers.ARPRequest {
		target = MAC{}
	}
	return enclose(l, typeARP, &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, Operation: operation,
		SourceHwAddress: l.Own[:], SourceProtAddress: from.AsSlice(), DstHwAddress: target[:], DstProtAddress: to.AsSlice(),
	})
}

// answer4 answers echo requests (RFC 792).
func (r *Responder) answer4(ip, message []byte, l *Link) []byte {
	to, from := netip.AddrFrom4([4]byte(ip[16:20])), netip.AddrFrom4([4]byte(ip[12:16]))
	var q layers.ICMPv4
	if q.DecodeFromBytes(message, gopacket.NilDecodeFeedback) != nil || q.TypeCode != layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0) ||
		l.Own != r.host.MAC || !r.host.has(to) || !answerable4(ip[12:16]) || r.host.has(from) {
		return nil
	}
	r.echo.Add(1)
	q.TypeCode = layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoReply, 0)
	return enclose(l, typeIP4, &layers.IPv4{
		Version: 4, Flags: layers.IPv4DontFragment, TTL: hopLimit, Protocol: layers.IPProtocolICMPv4, SrcIP: to.AsSlice(), DstIP: from.AsSlice(),
	}, &q, gopacket.Payload(q.Payload))
}

// answer6 answers echo requests (RFC 4443) and neighbour discovery (RFC 4861).
func (r *Responder) answer6(now int64, ip, message []byte, l *Link) []byte {
	from, to := netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	body := message[4:]
	kind := message[0]
	switch {
	case message[1] != 0: // the code
	case kind == layers.ICMPv6TypeEchoRequest:
		if l.Own != r.host.MAC || !r.host.has(to) || !answerable6(ip[8:24]) || r.host.has(from) {
			return nil
		}
		r.echo.Add(1)
		return icmp6(l, hopLimit, to, from, layers.ICMPv6TypeEchoReply, gopacket.Payload(body))
	case ip[7] != neighbourHops:
	case kind == layers.ICMPv6TypeNeighborAdvertisement:
		r.hearAdvertisement(now, body, l)
	case kind == layers.ICMPv6TypeNeighborSolicitation:
		return r.answerSolicitation(now, from, to, body, l)
	}
	return nil
}

const (
	// neighbourHops is the hop limit of neighbour discovery. It shows that no router forwarded
	// the packet.
	neighbourHops = 255
	// Flags of an advertisement.
	flagSolicited = 0x40
	flagOverride  = 0x20
)

var (
	allNodes    = netip.MustParseAddr("ff02::1")
	allNodesMAC = MAC{0x33, 0x33, 0, 0, 0, 1} // RFC 2464 7
)

// linkAddress searches the options of neighbour discovery for a link-layer address. ok is
// false if it is not that of a machine.
func linkAddress(options layers.ICMPv6Options, kind layers.ICMPv6Opt) (addr MAC, found, ok bool) {
	for _, o := range options {
		if o.Type == kind && len(o.Data) == len(addr) {
			if addr, found = MAC(o.Data), true; !addr.machine() {
				return addr, true, false
			}
		}
	}
	return addr, found, true
}

func (r *Responder) answerSolicitation(now int64, from, to netip.Addr, body []byte, l *Link) []byte {
	var q layers.ICMPv6NeighborSolicitation
	if q.DecodeFromBytes(body, gopacket.NilDecodeFeedback) != nil {
		return nil
	}
	target := netip.AddrFrom16([16]byte(q.TargetAddress))
	peer, told, ok := linkAddress(q.Options, layers.ICMPv6OptSourceAddress)
	if !ok || !r.host.has(target) || to != target && to != solicitedNode(target) {
		return nil
	}
	sender := Link{Peer: l.Peer, Own: r.host.MAC, Tags: l.Tags}
	var flags byte = flagOverride
	switch {
	case from.IsMulticast(), from.IsLoopback():
		return nil
	case r.host.has(from):
		r.conflict(&sender)
		return nil
	case from.IsUnspecified():
		// The sender checks whether the address is free (RFC 4862 5.4.2); answer all nodes.
		if told || to == target {
			return nil
		}
		from, sender.Peer = allNodes, allNodesMAC
	default:
		if told {
			sender.Peer = peer
		}
		flags |= flagSolicited
		r.table.Learn(from, &sender, netip.Addr{}, now)
	}
	r.neighbour.Add(1)
	return advertisement(&sender, target, from, flags)
}

// hearAdvertisement updates the path to a client or router that reports a new one.
func (r *Responder) hearAdvertisement(now int64, body []byte, l *Link) {
	var a layers.ICMPv6NeighborAdvertisement
	if a.DecodeFromBytes(body, gopacket.NilDecodeFeedback) != nil {
		return
	}
	target := netip.AddrFrom16([16]byte(a.TargetAddress))
	peer, told, ok := linkAddress(a.Options, layers.ICMPv6OptTargetAddress)
	switch {
	case !ok:
	case r.host.has(target):
		r.conflict(l)
	case told && a.Override():
		r.table.update(target, &Link{Peer: peer, Own: r.host.MAC, Tags: l.Tags}, now)
	}
}

// solicitedNode returns the multicast group of an address (RFC 4291 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

func advertisement(l *Link, target, to netip.Addr, flags byte) []byte {
	return icmp6(l, neighbourHops, target, to, layers.ICMPv6TypeNeighborAdvertisement, &layers.ICMPv6NeighborAdvertisement{
		Flags: flags, TargetAddress: target.AsSlice(),
		Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptTargetAddress, Data: l.Own[:]}},
	})
}

func icmp6(l *Link, hops uint8, from, to netip.Addr, kind uint8, body gopacket.SerializableLayer) []byte {
	ip := &layers.IPv6{Version: 6, HopLimit: hops, NextHeader: layers.IPProtocolICMPv6, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
	message := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
	if message.SetNetworkLayerForChecksum(ip) != nil {
		return nil
	}
	return enclose(l, typeIP6, ip, message, body)
}

// enclose returns a frame to l's peer, of at least 60 bytes; nil if there is no such frame.
func enclose(l *Link, kind uint16, list ...gopacket.SerializableLayer) []byte {
	packet := gopacket.NewSerializeBuffer()
	if gopacket.SerializeLayers(packet, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...) != nil {
		return nil
	}
	b := make([]byte, max(leastFrame, l.bytes()+len(packet.Bytes())))
	putEther(b, l, kind)
	copy(b[l.bytes():], packet.Bytes())
	return b
}

// Announcements returns the frames that tell a network which Ethernet address has the host's
// addresses. They are sent when a link comes up, so that switches and senders replace what they
// learned before. They are ARP announcements (RFC 5227 2.3) and unsolicited advertisements
// (RFC 4861 7.2.6), without a VLAN tag.
func (r *Responder) Announcements() (frames [][]byte) {
	for _, addr := range r.host.Addresses {
		if addr.Is4() {
			all := Link{Peer: MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, Own: r.host.MAC}
			frames = append(frames, arp(&all, layers.ARPRequest, addr, addr))
		} else {
			frames = append(frames, advertisement(&Link{Peer: allNodesMAC, Own: r.host.MAC}, addr, allNodes, flagOverride))
		}
	}
	return frames
}
