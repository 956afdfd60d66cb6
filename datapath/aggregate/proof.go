package aggregate

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/dchest/siphash"

	"github.com/penstock/penstock/wire"
)

// Address validation, after RFC 9000, section 8.1. The source address of a
// datagram may be forged, and answers are larger than the datagrams that ask
// for them. Therefore, until a client has proved that it receives at its
// address:
//
//  1. A request's budget grows by three times each datagram that is received for
//     it, IP and UDP headers included, and shrinks by each that is sent for it.
//  2. A NACK beyond the budget is not sent. Each leaves room for one block.
//  3. Instead of an answer beyond the budget, the client gets a busy block with
//     credit 0 and its cookie. The answer is kept.
//  4. The client repeats fragment 0 with the cookie in its extension, and gets the
//     answer.
//
// Each request pays for itself, so the bound holds for every address without a
// table of addresses. A client on this machine needs no proof: its address
// cannot be forged from outside.

// ReplyFragmentBytes is the size of the fragments into which the manager splits the
// payload of a result. With its headers and block, a fragment fits every common
// MTU.
const ReplyFragmentBytes = wire.DefaultFragmentBytes

// amplification is how many times the bytes received may be sent to an address
// without proof (RFC 9000, section 8.1).
const amplification = 3

// The headers in front of a datagram: 20 bytes of IPv4 or 40 of IPv6, and 8 of UDP.
const (
	headers4Bytes = 20 + 8
	headers6Bytes = 40 + 8
)

func headerBytes(from netip.AddrPort) uint32 {
	if addr := from.Addr(); addr.Is4() || addr.Is4In6() {
		return headers4Bytes
	}
	return headers6Bytes
}

// answerBytes returns the size of an answer, with all headers.
func answerBytes(headers uint32, payloadBytes int) int64 {
	fragments := int64(wire.Fragments(payloadBytes, ReplyFragmentBytes))
	return fragments*int64(headers+wire.HeaderSize+wire.BlockSize) + int64(payloadBytes)
}

// nackBytes returns the max size of the NACKs for a request, with all headers.
func nackBytes(headers uint32, count uint16) int64 {
	bytes, datagrams := wire.MaxNACKsBytes(count)
	return int64(bytes) + int64(datagrams)*int64(headers)
}

// budget is the number of bytes that may be sent for a request without proof.
type budget int64

// receive adds a received datagram of the request to the budget.
func (b *budget) receive(headers uint32, datagramBytes int) {
	*b += amplification * budget(int(headers)+datagramBytes)
}

// spend subtracts bytes if at least rest remains then. Otherwise it returns
// false and changes nothing.
func (b *budget) spend(bytes, rest int64) bool {
	if int64(*b) < bytes+rest {
		return false
	}
	*b -= budget(bytes)
	return true
}

// cookieEpoch is how long a cookie stays the same. It is accepted for one more
// epoch, so it lives one to two minutes: long enough for a client that sends
// rarely, and too short for the address to move to another host.
const cookieEpoch = time.Minute

// cookies makes the proofs of addresses: a keyed hash (SipHash-2-4) of address,
// port and epoch. Nothing is stored per client. The key is made at random for
// each function when a manager starts.
type cookies struct{ key0, key1 uint64 }

func newCookies() cookies {
	var key [16]byte
	rand.Read(key[:]) // never fails (crypto/rand)
	return cookies{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])}
}

// at returns the cookie of an address, 0 for an address that needs no proof.
func (c *cookies) at(now int64, from netip.AddrPort) uint64 {
	if local(from) {
		return 0
	}
	return c.hash(now/int64(cookieEpoch), from)
}

// proves reports whether a cookie is that of an address, in this epoch or the
// one before it.
func (c *cookies) proves(now int64, from netip.AddrPort, cookie uint64) bool {
	if cookie == 0 {
		return false
	}
	epoch := now / int64(cookieEpoch)
	return equal(cookie, c.hash(epoch, from)) || equal(cookie, c.hash(epoch-1, from))
}

// hash never returns 0, which means no cookie. It uses at most wire.NonceBytes of more.
func (c *cookies) hash(epoch int64, from netip.AddrPort, more ...byte) uint64 {
	var key [26 + wire.NonceBytes]byte
	address := from.Addr().As16()
	copy(key[:], address[:])
	binary.LittleEndian.PutUint16(key[16:], from.Port())
	binary.LittleEndian.PutUint64(key[18:], uint64(epoch))
	n := 26 + copy(key[26:], more)
	return max(siphash.Hash(c.key0, c.key1, key[:n]), 1)
}

// order returns the place of a client among others, from 0 to 1.
func (c *cookies) order(from netip.AddrPort) float64 { return unit(c.hash(0, from)) }

// equal compares in constant time, so that a cookie cannot be guessed byte by byte.
func equal(a, b uint64) bool {
	var x, y [8]byte
	binary.LittleEndian.PutUint64(x[:], a)
	binary.LittleEndian.PutUint64(y[:], b)
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// local reports whether an address is this machine's own, which needs no proof.
func local(from netip.AddrPort) bool { return from.Addr().IsLoopback() }
