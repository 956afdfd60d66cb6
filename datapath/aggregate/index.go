package aggregate

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"net/netip"
)

// hasher hashes keys with its own seed, so that an attacker cannot choose
// addresses and ids that collide.
type hasher struct{ seed maphash.Seed }

func newHasher() hasher { return hasher{maphash.MakeSeed()} }

// client hashes a client's address.
func (h *hasher) client(from netip.AddrPort) uint32 {
	var key [18]byte
	address := from.Addr().As16()
	copy(key[:], address[:])
	binary.LittleEndian.PutUint16(key[16:], from.Port())
	return uint32(maphash.Bytes(h.seed, key[:]))
}

// request returns a request's hash. It returns no key, because each fragment needs one, and copies of
// keys cost 13 ns.
func (h *hasher) request(from netip.AddrPort, id uint32) uint32 { return uint32(h.stream(from, id)) }

// stream hashes a client's address and the id of one of its streams. Two streams hardly ever have the same hash.
func (h *hasher) stream(from netip.AddrPort, id uint32) uint64 {
	var b [22]byte
	address := from.Addr().As16()
	copy(b[:], address[:])
	binary.LittleEndian.PutUint16(b[16:], from.Port())
	binary.LittleEndian.PutUint32(b[18:], id)
	return maphash.Bytes(h.seed, b[:])
}

// index finds references by hash: open addressing, linear probing, at most half
// full. There are no tombstones: a removal moves displaced entries back. The
// keys are in what a reference refers to, and the caller compares them. A
// reference is in the index at most once.
type index struct {
	cells []cell
	mask  uint32
	used  int
}

type cell struct {
	hash uint32
	ref  uint32 // reference plus one; 0: free
}

func newIndex(most int) index {
	n := 1 << bits.Len(uint(2*most-1))
	return index{cells: make([]cell, n), mask: uint32(n - 1)}
}

// find returns the first reference with that hash at or after a cell, and its
// cell. from is hash for the first call, at+1 for further ones.
func (x *index) find(hash, from uint32) (ref, at uint32, ok bool) {
	for at = from & x.mask; x.cells[at].ref != 0; at = (at + 1) & x.mask {
		if c := x.cells[at]; c.hash == hash {
			return c.ref - 1, at, true
		}
	}
	return 0, at, false
}

func (x *index) insert(hash, ref uint32) {
	at := hash & x.mask
	for x.cells[at].ref != 0 {
		at = (at + 1) & x.mask
	}
	x.cells[at] = cell{hash, ref + 1}
	x.used++
}

// remove removes a reference, which must be in the index.
func (x *index) remove(hash, ref uint32) {
	at := hash & x.mask
	for x.cells[at] != (cell{hash, ref + 1}) {
		if x.cells[at].ref == 0 {
			panic("aggregate: removed from the index what is not in it")
		}
		at = (at + 1) & x.mask
	}
	// An entry that was displaced past this cell moves back into it, and so on.
	for next := (at + 1) & x.mask; x.cells[next].ref != 0; next = (next + 1) & x.mask {
		home := x.cells[next].hash & x.mask
		if (next-home)&x.mask >= (next-at)&x.mask {
			x.cells[at] = x.cells[next]
			at = next
		}
	}
	x.cells[at] = cell{}
	x.used--
}
