package frame

import (
	"encoding/binary"
	"net/netip"
)

const (
	hopLimit     = 64     // RFC 1700's default TTL
	dontFragment = 0x4000 // so no identification is needed (RFC 6864)
)

// Filled says which checksums PutUDP computes. The others are left for the NIC as DPDK
// requires: 0 as IPv4's header checksum, that of the pseudo header as UDP's.
type Filled uint8

const (
	fillIP Filled = 1 << iota
	fillUDP
	FillAll = fillIP | fillUDP
)

// HeaderBytes returns the lengths of the Ethernet and the IP header that PutUDP writes, which
// an offload needs.
func HeaderBytes(l *Link, to netip.Addr) (ether, ip int) {
	if to.Is4() {
		return l.bytes(), ip4Bytes
	}
	return l.bytes(), ip6Bytes
}

// PutUDP writes a datagram's frame of at least 60 bytes into b, and returns its length. It
// returns 0 if the frame does not fit, or the addresses are of different families. The
// payload may already be in its place in b.
func PutUDP(b []byte, l *Link, from, to netip.AddrPort, payload []byte, fill Filled) int {
	ether, ip := HeaderBytes(l, to.Addr())
	at := ether + ip
	n := at + udpBytes + len(payload)
	if from.Addr().Is4() != to.Addr().Is4() || !from.IsValid() || n > len(b) || n-ether > 0xffff {
		return 0
	}
	copy(b[at+udpBytes:], payload)
	udp := b[at:n]
	binary.BigEndian.PutUint16(udp, from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], 0)
	var s uint64
	if ip == ip4Bytes {
		putEther(b, l, typeIP4)
		h := b[ether:at]
		putIP4(h, protoUDP, from.Addr().As4(), to.Addr().As4(), len(udp), fill)
		s = pseudo(h[12:20], protoUDP, len(udp))
	} else {
		putEther(b, l, typeIP6)
		h := b[ether:at]
		putIP6(h, protoUDP, hopLimit, from.Addr().As16(), to.Addr().As16(), len(udp))
		s = pseudo(h[8:40], protoUDP, len(udp))
	}
	check := fold(s)
	if fill&fillUDP != 0 {
		if check = ^fold(sum(udp, s)); check == 0 {
			check = 0xffff // 0 means that there is no checksum
		}
	}
	binary.BigEndian.PutUint16(udp[6:], check)
	return pad(b, n)
}

// pad fills a frame with zeros up to Ethernet's min size, if b has room for it.
func pad(b []byte, n int) int {
	if n >= leastFrame || len(b) < leastFrame {
		return n
	}
	clear(b[n:leastFrame])
	return leastFrame
}

// putEther writes the Ethernet header of a frame to the link's peer.
func putEther(b []byte, l *Link, kind uint16) {
	copy(b[0:6], l.Peer[:])
	copy(b[6:12], l.Own[:])
	at := 12
	for _, t := range l.Tags {
		if t != 0 {
			binary.BigEndian.PutUint32(b[at:], uint32(t))
			at += tagBytes
		}
	}
	binary.BigEndian.PutUint16(b[at:], kind)
}

func putIP4(h []byte, protocol uint8, from, to [4]byte, payload int, fill Filled) {
	h[0], h[1] = 4<<4|ip4Bytes/4, 0
	binary.BigEndian.PutUint16(h[2:], uint16(ip4Bytes+payload))
	binary.BigEndian.PutUint16(h[4:], 0)
	binary.BigEndian.PutUint16(h[6:], dontFragment)
	h[8], h[9], h[10], h[11] = hopLimit, protocol, 0, 0
	copy(h[12:16], from[:])
	copy(h[16:20], to[:])
	if fill&fillIP != 0 {
		binary.BigEndian.PutUint16(h[10:], ^fold(sum(h[:ip4Bytes], 0)))
	}
}

func putIP6(h []byte, protocol, hops uint8, from, to [16]byte, payload int) {
	binary.BigEndian.PutUint32(h, 6<<28)
	binary.BigEndian.PutUint16(h[4:], uint16(payload))
	h[6], h[7] = protocol, hops
	copy(h[8:24], from[:])
	copy(h[24:40], to[:])
}
