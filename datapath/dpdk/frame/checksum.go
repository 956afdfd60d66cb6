package frame

import (
	"encoding/binary"
	"math/bits"
)

// Sums are kept in the order of little-endian words on any machine. The ones'
// complement sum of swapped bytes is the swapped sum (RFC 1071, 2.B). One swap
// at the end is therefore enough, and the loop loads eight bytes at a time.

// sum adds b to a ones' complement sum, as if a zero byte followed an odd end.
func sum(b []byte, s uint64) uint64 {
	// Two sums: each is a chain of additions with carry, and the CPU executes
	// the two in parallel.
	var t, carry uint64
	for len(b) >= 64 {
		var c uint64
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b), 0)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[8:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[16:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[24:]), c)
		s += c // cannot overflow: a sum that carried is below 1<<64 - 1
		t, c = bits.Add64(t, binary.LittleEndian.Uint64(b[32:]), 0)
		t, c = bits.Add64(t, binary.LittleEndian.Uint64(b[40:]), c)
		t, c = bits.Add64(t, binary.LittleEndian.Uint64(b[48:]), c)
		t, c = bits.Add64(t, binary.LittleEndian.Uint64(b[56:]), c)
		t += c
		b = b[64:]
	}
	s, carry = bits.Add64(s, t, 0)
	s += carry
	for len(b) >= 8 {
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(b), 0)
		s += carry
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(last[:]), 0)
		s += carry
	}
	return s
}

// sum16 adds a number in its network byte order.
func sum16(v uint16, s uint64) uint64 {
	s, carry := bits.Add64(s, uint64(bits.ReverseBytes16(v)), 0)
	return s + carry
}

// fold reduces a sum to 16 bits, as they are on the wire.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return bits.ReverseBytes16(uint16(s))
}

// pseudo returns the sum of the pseudo header of a UDP or ICMPv6 message of
// l4Bytes bytes. addresses are the source and destination from the IP header
// (RFC 768; RFC 8200 8.1).
func pseudo(addresses []byte, protocol uint8, l4Bytes int) uint64 {
	return sum16(uint16(l4Bytes), sum16(uint16(protocol), sum(addresses, 0)))
}
