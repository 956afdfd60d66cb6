package frame

import (
	"encoding/binary"
	"net/netip"
)

// Sizes of headers, in bytes.
const (
	etherBytes = 14
	tagBytes   = 4
	ip4Bytes   = 20 // without options
	ip6Bytes   = 40 // without extension headers
	udpBytes   = 8
	// MaxHeaderBytes is the max size of what PutUDP writes before the payload.
	MaxHeaderBytes = etherBytes + maxTags*tagBytes + ip6Bytes + udpBytes
	// leastFrame is the min size of an Ethernet frame, without the frame check sequence.
	leastFrame = 60
)

// Ethernet types (IEEE 802 numbers).
const (
	typeIP4   = 0x0800
	typeARP   = 0x0806
	typeVLAN  = 0x8100 // 802.1Q
	typeQinQ  = 0x88a8 // 802.1ad, the service tag
	typeOldQQ = 0x9100 // used before 802.1ad
	typeIP6   = 0x86dd
)

// IP protocols (IANA protocol numbers).
const (
	protoICMP     = 1
	protoUDP      = 17
	protoFragment = 44 // an IPv6 extension header
	protoICMP6    = 58
)

// Checks says which checksums Parse verifies. If a NIC reports that it has verified a frame's
// checksum, the caller clears the bit.
type Checks uint8

const (
	// CheckIP is IPv4's header checksum.
	CheckIP Checks = 1 << iota
	// CheckUDP is UDP's.
	CheckUDP
	// AllowUnfilled accepts a datagram whose UDP checksum is only that of the pseudo header.
	// The kernel leaves it so for an offload to complete, which a virtual link never does.
	// Such a datagram has not been on a wire.
	AllowUnfilled
)

// MAC is an Ethernet address.
type MAC [6]byte

// group reports whether the address names several machines: multicast or broadcast.
func (m *MAC) group() bool { return m[0]&1 != 0 }

// machine reports whether the address can be that of one machine.
func (m *MAC) machine() bool { return !m.group() && *m != MAC{} }

// Tag is a VLAN tag: the Ethernet type that marks it, then the VLAN's number, which is never
// 0. The priority is dropped. 0 means no tag.
type Tag uint32

// VLAN is the number, 1 to 4095; 0 if there is no tag.
func (t Tag) VLAN() uint16 { return uint16(t) & 0xfff }

func makeTag(kind, control uint16) Tag {
	if control &= 0xfff; control != 0 {
		return Tag(kind)<<16 | Tag(control)
	}
	return 0 // a tag of VLAN 0 only carries a priority
}

const maxTags = 2

// Link is the path over Ethernet to a machine that is reachable without a router, or to the
// router. It holds the peer's address, ours, and the VLAN tags, outermost first.
type Link struct {
	Peer, Own MAC
	Tags      [maxTags]Tag
}

// Stripped adds the outermost 802.1Q tag, which a NIC or the kernel removed from the frame
// and reported separately. control is its 16 bits, 0 for none. Stripped returns false if that
// makes one tag too many.
func (l *Link) Stripped(control uint16) bool {
	t := makeTag(typeVLAN, control)
	if t == 0 {
		return true
	}
	if l.Tags[maxTags-1] != 0 {
		return false
	}
	l.Tags[1], l.Tags[0] = l.Tags[0], t
	return true
}

// VLAN is the number of the innermost VLAN, 0 if there is none.
func (l *Link) VLAN() uint16 {
	if l.Tags[1] != 0 {
		return l.Tags[1].VLAN()
	}
	return l.Tags[0].VLAN()
}

// bytes is the length of the Ethernet header.
func (l *Link) bytes() int {
	n := etherBytes
	for _, t := range l.Tags {
		if t != 0 {
			n += tagBytes
		}
	}
	return n
}

// Span is a payload's location in its frame, in bytes.
type Span struct{ Offset, Length uint32 }

// Datagram is a UDP datagram in a frame.
type Datagram struct {
	From, To netip.AddrPort
	Payload  Span
	// Link is the path that the datagram came by, and by which to answer.
	Link Link
}

// Parse parses a frame (without its frame check sequence) for a host's port, and fills d.
// Unless the reason is OK, the contents of d mean nothing. stripped is the 802.1Q tag's 16 bits
// if the NIC removed one from the frame, else 0. Frames for others are found before the UDP
// checksum is verified. Parse does not keep b.
func (h *Host) Parse(b []byte, stripped uint16, check Checks, d *Datagram) Reason {
	var p packet
	if reason := p.datagram(b, check, d); reason != OK {
		return reason
	}
	switch {
	case stripped != 0 && !d.Link.Stripped(stripped):
		return NotIP // as if all three tags were in the frame
	case d.Link.Own != h.MAC, !h.has(d.To.Addr()):
		return ForeignAddress
	case h.has(d.From.Addr()): // it claims to come from the host
		return BadSource
	}
	return p.verify(b, check)
}

// datagram finds the UDP datagram in a frame; it does not verify the UDP checksum.
func (p *packet) datagram(b []byte, check Checks, d *Datagram) Reason {
	if reason := p.parse(b, check, &d.Link); reason != OK {
		return reason
	}
	if p.protocol != protoUDP {
		if p.protocol == protoICMP && !p.v6 || p.protocol == protoICMP6 && p.v6 {
			return ICMP
		}
		return NotUDP
	}
	u := b[p.start:p.end]
	if len(u) < udpBytes {
		return BadHeader
	}
	fromPort, toPort := binary.BigEndian.Uint16(u), binary.BigEndian.Uint16(u[2:])
	length := int(binary.BigEndian.Uint16(u[4:]))
	if length < udpBytes || length > len(u) {
		return BadHeader
	}
	p.end = p.start + length
	if d.Link.Peer.group() || fromPort == 0 {
		return BadSource
	}
	ip := b[p.ip:]
	if p.v6 {
		if !answerable6(ip[8:24]) {
			return BadSource
		}
		d.From = netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[8:24])), fromPort)
		d.To = netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[24:40])), toPort)
	} else {
		if !answerable4(ip[12:16]) {
			return BadSource
		}
		d.From = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:16])), fromPort)
		d.To = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:20])), toPort)
	}
	d.Payload = Span{Offset: uint32(p.start + udpBytes), Length: uint32(length - udpBytes)}
	return OK
}

// verify checks the UDP checksum of the datagram. It is optional in IPv4 and mandatory in
// IPv6 (RFC 8200 8.1).
func (p *packet) verify(b []byte, check Checks) Reason {
	if check&CheckUDP == 0 {
		return OK
	}
	u := b[p.start:p.end]
	sent := binary.BigEndian.Uint16(u[6:])
	if sent == 0 {
		if p.v6 {
			return BadChecksum
		}
		return OK
	}
	addresses := b[p.ip+12 : p.ip+20]
	if p.v6 {
		addresses = b[p.ip+8 : p.ip+40]
	}
	s := pseudo(addresses, protoUDP, len(u))
	if check&AllowUnfilled != 0 && sent == fold(s) || fold(sum(u, s)) == 0xffff {
		return OK
	}
	return BadChecksum
}

// packet is an IP packet in a frame. ip is where its header begins. Its contents have the
// number protocol and are from start up to end. For a datagram, end is the datagram's end.
type packet struct {
	ip, start, end int
	protocol       uint8
	v6             bool
}

// parse finds the IP packet in a frame and fills the link. OK means that the frame holds the
// complete packet, whatever its contents.
func (p *packet) parse(b []byte, check Checks, l *Link) Reason {
	kind, at := parseEther(b, l)
	switch kind {
	case typeIP4:
		return p.parse4(b, at, check)
	case typeIP6:
		return p.parse6(b, at)
	case typeARP:
		p.start, p.end = at, len(b)
		return ARP
	case 0:
		return Truncated
	}
	return NotIP
}

// parseEther reads the Ethernet header. It returns the type of what follows, 0 if the frame
// is too short, and where that begins.
func parseEther(b []byte, l *Link) (kind uint16, at int) {
	if len(b) < etherBytes {
		return 0, 0
	}
	l.Own, l.Peer = MAC(b[0:6]), MAC(b[6:12])
	l.Tags = [maxTags]Tag{}
	kind, at = binary.BigEndian.Uint16(b[12:]), etherBytes
	for n := 0; kind == typeVLAN || kind == typeQinQ || kind == typeOldQQ; {
		if len(b) < at+tagBytes {
			return 0, 0
		}
		if t := makeTag(kind, binary.BigEndian.Uint16(b[at:])); t != 0 {
			if n == maxTags {
				return typeVLAN, at // three tags are not supported
			}
			l.Tags[n] = t
			n++
		}
		kind = binary.BigEndian.Uint16(b[at+2:])
		at += tagBytes
	}
	if kind == 0 {
		kind = 1 // a length of 802.3, like any value below 1536; here 0 means too short
	}
	return kind, at
}

func (p *packet) parse4(b []byte, at int, check Checks) Reason {
	if len(b) < at+ip4Bytes {
		return Truncated
	}
	h := b[at:]
	header, total := int(h[0]&0xf)*4, int(binary.BigEndian.Uint16(h[2:]))
	switch {
	case h[0]>>4 != 4, header < ip4Bytes, total < header:
		return BadHeader
	case total > len(h):
		return Truncated
	case check&CheckIP != 0 && fold(sum(h[:header], 0)) != 0xffff:
		return BadChecksum
	case binary.BigEndian.Uint16(h[6:])&0x3fff != 0: // more to come, or an offset
		return Fragment
	}
	p.ip, p.start, p.end, p.protocol, p.v6 = at, at+header, at+total, h[9], false
	return OK
}

// parse6 takes a packet without extension headers: datagrams have none.
func (p *packet) parse6(b []byte, at int) Reason {
	if len(b) < at+ip6Bytes {
		return Truncated
	}
	h := b[at:]
	if h[0]>>4 != 6 {
		return BadHeader
	}
	p.ip, p.start, p.protocol, p.v6 = at, at+ip6Bytes, h[6], true
	p.end = p.start + int(binary.BigEndian.Uint16(h[4:]))
	switch {
	case p.end > len(b):
		return Truncated
	case p.protocol == protoFragment:
		return Fragment
	}
	return OK
}

// answerable4 reports whether an answer can go to an IPv4 address. It must belong to one
// machine, and not be 0/8, 127/8, multicast, reserved or broadcast (RFC 1122 3.2.1.3).
func answerable4(a []byte) bool { return a[0] != 0 && a[0] != 127 && a[0] < 224 }

// answerable6 is answerable4 for IPv6. It excludes multicast and everything below ::/80,
// which holds the unspecified, loopback and mapped addresses (RFC 4291 2.4).
func answerable6(a []byte) bool {
	return a[0] != 0xff && (binary.BigEndian.Uint64(a) != 0 || binary.BigEndian.Uint16(a[8:]) != 0)
}
