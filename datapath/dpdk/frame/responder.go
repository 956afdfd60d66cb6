package frame

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
)

// Responder answers what a kernel would answer for its addresses. It answers ARP and
// neighbour solicitations, so that senders find the port, and echo requests. Any goroutine
// may use it.
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

// Answer writes into out the frame that answers b, for which Parse returned ARP or ICMP. It
// returns the length. 0 means no answer, or none that fits out. stripped is the 802.1Q tag's
// 16 bits if the NIC removed one from b, else 0; the answer has the tag. now is the table's
// clock. Answer keeps neither b nor out; they must not overlap.
func (r *Responder) Answer(now int64, b []byte, stripped uint16, out []byte) int {
	var p packet
	var l Link
	switch p.parse(b, CheckIP, &l) {
	case ARP:
		_, at := parseEther(b, &l)
		if !l.Stripped(stripped) {
			return 0
		}
		return r.answerARP(now, b[at:], &l, out)
	case OK:
	default:
		return 0
	}
	if l.Peer.group() || !l.Stripped(stripped) {
		return 0
	}
	ip, message := b[p.ip:], b[p.start:p.end]
	switch {
	case p.v6 && p.protocol == protoICMP6:
		if len(message) < 8 || fold(sum(message, pseudo(ip[8:40], protoICMP6, len(message)))) != 0xffff {
			return 0
		}
		return r.answer6(now, ip, message, &l, out)
	case !p.v6 && p.protocol == protoICMP:
		if len(message) < 8 || fold(sum(message, 0)) != 0xffff {
			return 0
		}
		return r.answer4(ip, message, &l, out)
	}
	return 0
}

// ARP for IPv4 over Ethernet, RFC 826: the packet's fields.
const (
	arpBytes   = 28
	arpRequest = 1
	arpReply   = 2
	// arpKind means hardware Ethernet, protocol IPv4, and the lengths of their addresses.
	arpKind = 1<<48 | typeIP4<<32 | 6<<24 | 4<<16
)

func (r *Responder) answerARP(now int64, a []byte, l *Link, out []byte) int {
	if len(a) < arpBytes || binary.BigEndian.Uint64(a)&^0xffff != arpKind {
		return 0
	}
	operation := binary.BigEndian.Uint16(a[6:])
	sender := Link{Peer: MAC(a[8:14]), Own: r.host.MAC, Tags: l.Tags}
	from, to := netip.AddrFrom4([4]byte(a[14:18])), netip.AddrFrom4([4]byte(a[24:28]))
	if sender.Peer.group() || sender.Peer == (MAC{}) {
		return 0
	}
	// A probe asks whether an address is in use; its sender has no address yet (RFC 5227).
	known := !from.IsUnspecified()
	switch {
	case known && !answerable4(a[14:18]):
		return 0
	case r.host.has(from):
		if sender.Peer != r.host.MAC {
			r.conflicts.Add(1)
		}
		return 0
	case operation != arpRequest || !r.host.has(to):
		if known {
			r.table.update(from, &sender, now)
		}
		return 0
	}
	if known {
		r.table.Learn(from, &sender, now)
	}
	n := r.putARP(out, &sender, arpReply, to, from)
	if n > 0 {
		r.arp.Add(1)
	}
	return n
}

// putARP writes a packet that tells l's peer the Ethernet address of from.
func (r *Responder) putARP(out []byte, l *Link, operation uint16, from, to netip.Addr) int {
	ether := l.bytes()
	if len(out) < ether+arpBytes {
		return 0
	}
	putEther(out, l, typeARP)
	a := out[ether:]
	binary.BigEndian.PutUint64(a, arpKind|uint64(operation))
	copy(a[8:14], r.host.MAC[:])
	from4, to4 := from.As4(), to.As4()
	copy(a[14:18], from4[:])
	target := l.Peer
	if operation == arpRequest {
		target = MAC{}
	}
	copy(a[18:24], target[:])
	copy(a[24:28], to4[:])
	return pad(out, ether+arpBytes)
}

// ICMP types (RFC 792, 4443, 4861, 3810).
const (
	echoRequest4  = 8
	echoReply4    = 0
	echoRequest6  = 128
	echoReply6    = 129
	solicitation  = 135
	advertisement = 136
)

func (r *Responder) answer4(ip, message []byte, l *Link, out []byte) int {
	to, from := [4]byte(ip[16:20]), [4]byte(ip[12:16])
	if message[0] != echoRequest4 || message[1] != 0 || l.Own != r.host.MAC ||
		!r.host.has(netip.AddrFrom4(to)) || !answerable4(from[:]) || r.host.has(netip.AddrFrom4(from)) {
		return 0
	}
	ether := l.bytes()
	at := ether + ip4Bytes
	n := at + len(message)
	if n > len(out) {
		return 0
	}
	putEther(out, l, typeIP4)
	putIP4(out[ether:at], protoICMP, to, from, len(message), FillAll)
	reply := out[at:n]
	copy(reply, message)
	reply[0], reply[2], reply[3] = echoReply4, 0, 0
	binary.BigEndian.PutUint16(reply[2:], ^fold(sum(reply, 0)))
	r.echo.Add(1)
	return pad(out, n)
}

func (r *Responder) answer6(now int64, ip, message []byte, l *Link, out []byte) int {
	from, to := netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	if message[1] != 0 {
		return 0
	}
	switch message[0] {
	case echoRequest6:
		if l.Own != r.host.MAC || !r.host.has(to) || !answerable6(ip[8:24]) || r.host.has(from) {
			return 0
		}
		n := r.putICMP6(out, l, hopLimit, to, from, echoReply6, message)
		if n > 0 {
			r.echo.Add(1)
		}
		return n
	case solicitation, advertisement:
		// A hop limit of 255 shows that no router forwarded it.
		if ip[7] != 255 || len(message) < neighbourBytes {
			return 0
		}
		if message[0] == advertisement {
			return r.hearAdvertisement(now, message, l)
		}
		return r.answerSolicitation(now, from, to, message, l, out)
	}
	return 0
}

// Neighbour discovery, RFC 4861 4.3, 4.4 and 4.6.1.
const (
	neighbourBytes = 24 // type, code, checksum, flags, target
	sourceOption   = 1
	targetOption   = 2
	linkOption     = 8 // bytes of a link-layer address option for Ethernet
	flagSolicited  = 0x40
	flagOverride   = 0x20
)

var (
	allNodes    = netip.MustParseAddr("ff02::1")
	allNodesMAC = MAC{0x33, 0x33, 0, 0, 0, 1} // RFC 2464 7
)

// linkAddress searches the options of neighbour discovery for a link-layer address. ok is
// false if they are malformed.
func linkAddress(options []byte, kind byte) (addr MAC, found, ok bool) {
	for len(options) > 0 {
		if len(options) < 8 || options[1] == 0 || len(options) < int(options[1])*8 {
			return addr, false, false
		}
		if options[0] == kind && options[1] == 1 {
			if addr = MAC(options[2:8]); addr.group() || addr == (MAC{}) {
				return addr, false, false
			}
			found = true
		}
		options = options[int(options[1])*8:]
	}
	return addr, found, true
}

func (r *Responder) answerSolicitation(now int64, from, to netip.Addr, message []byte, l *Link, out []byte) int {
	target := netip.AddrFrom16([16]byte(message[8:24]))
	if !r.host.has(target) || to != target && to != solicitedNode(target) {
		return 0
	}
	peer, told, ok := linkAddress(message[neighbourBytes:], sourceOption)
	sender := Link{Peer: l.Peer, Own: r.host.MAC, Tags: l.Tags}
	var flags byte = flagOverride
	switch {
	case !ok, from.IsMulticast(), from.IsLoopback():
		return 0
	case r.host.has(from):
		r.conflicts.Add(1)
		return 0
	case from.IsUnspecified():
		// The sender checks whether the address is free (RFC 4862 5.4.2); answer all nodes.
		if told || to == target {
			return 0
		}
		from, sender.Peer = allNodes, allNodesMAC
	default:
		if told {
			sender.Peer = peer
		}
		flags |= flagSolicited
		r.table.Learn(from, &sender, now)
	}
	n := r.putAdvertisement(out, &sender, target, from, flags)
	if n > 0 {
		r.neighbour.Add(1)
	}
	return n
}

// hearAdvertisement updates the path to a client or router that reports a new one.
func (r *Responder) hearAdvertisement(now int64, message []byte, l *Link) int {
	target := netip.AddrFrom16([16]byte(message[8:24]))
	peer, told, ok := linkAddress(message[neighbourBytes:], targetOption)
	switch {
	case !ok:
	case r.host.has(target):
		if l.Peer != r.host.MAC {
			r.conflicts.Add(1)
		}
	case told && message[4]&flagOverride != 0:
		r.table.update(target, &Link{Peer: peer, Own: r.host.MAC, Tags: l.Tags}, now)
	}
	return 0
}

// solicitedNode returns the multicast group of an address (RFC 4291 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

func (r *Responder) putAdvertisement(out []byte, l *Link, target, to netip.Addr, flags byte) int {
	var m [neighbourBytes + linkOption]byte
	m[4] = flags
	t := target.As16()
	copy(m[8:24], t[:])
	m[24], m[25] = targetOption, 1
	copy(m[26:32], r.host.MAC[:])
	return r.putICMP6(out, l, 255, target, to, advertisement, m[:])
}

// putICMP6 writes a message, with its type replaced by kind.
func (r *Responder) putICMP6(out []byte, l *Link, hops uint8, from, to netip.Addr, kind byte, message []byte) int {
	ether := l.bytes()
	at := ether + ip6Bytes
	n := at + len(message)
	if n > len(out) {
		return 0
	}
	putEther(out, l, typeIP6)
	h := out[ether:at]
	putIP6(h, protoICMP6, hops, from.As16(), to.As16(), len(message))
	reply := out[at:n]
	copy(reply, message)
	reply[0], reply[2], reply[3] = kind, 0, 0
	binary.BigEndian.PutUint16(reply[2:], ^fold(sum(reply, pseudo(h[8:40], protoICMP6, len(reply)))))
	return pad(out, n)
}

// Announce writes the frame that tells a network which Ethernet address has the i-th of the
// host's addresses. It is used when a link comes up, so that switches and senders replace
// what they learned before. The frame is an ARP announcement (RFC 5227 2.3) or an unsolicited
// advertisement (RFC 4861 7.2.6), without a VLAN tag. Announce returns 0 if the frame does
// not fit out, or there is no such address.
func (r *Responder) Announce(i int, out []byte) int {
	if i < 0 || i >= len(r.host.Addresses) {
		return 0
	}
	addr := r.host.Addresses[i]
	if addr.Is4() {
		everybody := Link{Peer: MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, Own: r.host.MAC}
		return r.putARP(out, &everybody, arpRequest, addr, addr)
	}
	return r.putAdvertisement(out, &Link{Peer: allNodesMAC, Own: r.host.MAC}, addr, allNodes, flagOverride)
}
