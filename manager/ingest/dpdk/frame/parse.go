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
	// MaxHeaderBytes is the most that PutUDP writes before the payload.
	MaxHeaderBytes = etherBytes + maxTags*tagBytes + ip6Bytes + udpBytes
	// leastFrame is Ethernet's, without the frame check sequence.
	leastFrame = 60
)

// Ethernet types (IEEE 802 numbers).
const (
	typeIP4   = 0x0800
	typeARP   = 0x0806
	typeVLAN  = 0x8100 // 802.1Q
	typeQinQ  = 0x88a8 // 802.1ad, the service's tag
	typeOldQQ = 0x9100 // what was used for it before
	typeIP6   = 0x86dd
)

// IP protocols and IPv6 extension headers (IANA protocol numbers).
const (
	protoHopByHop = 0
	protoICMP     = 1
	protoUDP      = 17
	protoRouting  = 43
	protoFragment = 44
	protoAH       = 51
	protoICMP6    = 58
	protoOptions  = 60 // for the destination
)

// maxExtensions bounds the walk over IPv6 extension headers: RFC 8200 4.1 knows
// eight in a packet.
const maxExtensions = 8

// Checks says which checksums Parse verifies. A NIC that has verified one itself
// says so for each frame; then its bit is left out.
type Checks uint8

const (
	// CheckIP is IPv4's header checksum.
	CheckIP Checks = 1 << iota
	// CheckUDP is UDP's.
	CheckUDP
	// AllowUnfilled takes a datagram whose UDP checksum is that of the pseudo header
	// alone: the kernel leaves it so for an offload to finish, which a virtual link
	// never does. Such a datagram has not been on a wire.
	AllowUnfilled
)

// MAC is an Ethernet address.
type MAC [6]byte

// group reports whether it names many: a multicast address, or everybody's.
func (m *MAC) group() bool { return m[0]&1 != 0 }

// Tag is a VLAN tag: the Ethernet type that marks it, then the VLAN's number, which
// is never 0. The priority is not kept. 0 is no tag.
type Tag uint32

// VLAN is the number, 1 to 4095; 0 for no tag.
func (t Tag) VLAN() uint16 { return uint16(t) & 0xfff }

func makeTag(kind, control uint16) Tag {
	if control &= 0xfff; control != 0 {
		return Tag(kind)<<16 | Tag(control)
	}
	return 0 // a tag of VLAN 0 has nothing but a priority
}

const maxTags = 2

// Link is the way over Ethernet to a machine that can be reached without a router,
// or to the router: its address, ours, and the VLAN tags, outermost first.
type Link struct {
	Peer, Own MAC
	Tags      [maxTags]Tag
}

// Stripped adds the 802.1Q tag that a NIC or the kernel took off the frame and told
// beside it; control is its 16 bits, 0 for none. It stood outermost. It is false
// where that makes one tag too many.
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

// VLAN is the number of the innermost VLAN, 0 where there is none.
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

// Span is where a payload lies within its frame, in bytes.
type Span struct{ Offset, Length uint32 }

// Datagram is a UDP datagram in a frame.
type Datagram struct {
	From, To netip.AddrPort
	Payload  Span
	// Link is the way that it came, and that an answer goes.
	Link Link
}

// Parse takes a frame (without its frame check sequence) apart and fills d. What d
// holds where the reason is not OK means nothing. It keeps nothing of b.
func Parse(b []byte, check Checks, d *Datagram) Reason {
	var p packet
	if reason := p.datagram(b, check, d); reason != OK {
		return reason
	}
	return p.verify(b, check)
}

// Parse is the same for a host's port: what is for others is told before its
// checksum is looked at. stripped is the 802.1Q tag's 16 bits where the NIC took one
// off the frame, else 0.
func (h *Host) Parse(b []byte, stripped uint16, check Checks, d *Datagram) Reason {
	var p packet
	if reason := p.datagram(b, check, d); reason != OK {
		return reason
	}
	if stripped != 0 && !d.Link.Stripped(stripped) {
		return NotIP // as where all three stand in the frame
	}
	if reason := h.Accept(d); reason != OK {
		return reason
	}
	return p.verify(b, check)
}

// datagram finds the UDP datagram in a frame; its checksum is not looked at.
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

// verify looks at the checksum of the datagram that was found. IPv4 need not have
// one; IPv6 must (RFC 8200 8.1).
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

// packet is an IP packet in a frame: where its header begins, what it carries, and
// where that lies, from start up to end; of a datagram, up to its own end.
type packet struct {
	ip, start, end int
	protocol       uint8
	v6             bool
}

// parse finds the IP packet in a frame and fills the link. OK means that all of the
// packet is there and whole, whatever it carries.
func (p *packet) parse(b []byte, check Checks, l *Link) Reason {
	kind, at := parseEther(b, l)
	switch kind {
	case typeIP4:
		return p.parse4(b, at, check)
	case typeIP6:
		return p.parse6(b, at)
	case typeARP:
		return ARP
	case 0:
		return Truncated
	}
	return NotIP
}

// parseEther reads the Ethernet header: what follows it, 0 where the frame is too
// short, and where.
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
				return typeVLAN, at // three deep: nobody's
			}
			l.Tags[n] = t
			n++
		}
		kind = binary.BigEndian.Uint16(b[at+2:])
		at += tagBytes
	}
	if kind == 0 {
		kind = 1 // a length of 802.3, as any below 1536; 0 has a meaning here
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
	if p.end > len(b) {
		return Truncated
	}
	for range maxExtensions {
		e := b[p.start:p.end]
		bytes := 0
		switch p.protocol {
		default:
			return OK
		case protoHopByHop, protoRouting, protoOptions:
			if len(e) < 8 {
				return BadHeader
			}
			if p.protocol == protoRouting && e[3] != 0 {
				return ForeignAddress // there is a way left to go
			}
			bytes = 8 + 8*int(e[1])
		case protoAH:
			if len(e) < 8 {
				return BadHeader
			}
			bytes = 8 + 4*int(e[1])
		case protoFragment:
			if len(e) < 8 {
				return BadHeader
			}
			// Offset 0 and nothing to come is a whole packet (RFC 6946).
			if binary.BigEndian.Uint16(e[2:])&0xfff9 != 0 {
				return Fragment
			}
			bytes = 8
		}
		if bytes > len(e) {
			return BadHeader
		}
		p.protocol = e[0]
		p.start += bytes
	}
	return BadHeader
}

// answerable4 reports whether an answer can go to an IPv4 address: it is one
// machine's, not 0/8, 127/8, multicast, reserved or the broadcast address
// (RFC 1122 3.2.1.3).
func answerable4(a []byte) bool { return a[0] != 0 && a[0] != 127 && a[0] < 224 }

// answerable6 is answerable4 for IPv6: not multicast, and nothing below ::/80,
// where the unspecified, the loopback and the mapped addresses are (RFC 4291 2.4).
func answerable6(a []byte) bool {
	return a[0] != 0xff && (binary.BigEndian.Uint64(a) != 0 || binary.BigEndian.Uint16(a[8:]) != 0)
}
