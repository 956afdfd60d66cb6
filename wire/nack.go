package wire

import (
	"encoding/binary"
	"math/bits"
)

// maxNACKBytes is the max size of a NACK's bitmap: 8,192 fragments. If a
// request's missing fragments are further apart, it takes several NACKs.
const maxNACKBytes = 1024

// nackHead precedes the bitmap: u16 base fragment index · u16 number of bits.
const nackHead = 4

// NACK is a NACK, which asks for fragments to be sent again. After the header (index
// and offset 0, count and total of the request, no flags) come
//
//	22  u16 base fragment index · u16 number of bits
//	26  bitmap, (bits+7)/8 bytes: bit i%8 of byte i/8 is set when fragment base+i
//	    is missing; the bits past the last are zero
type NACK struct {
	RequestID uint32
	Total     uint32 // bytes of the request
	Count     uint16 // fragments of the request
	Base      uint16 // first fragment of the bitmap
	Bits      uint16 // number of fragments in the bitmap
	bitmap    []byte // aliases the datagram
}

// AppendNACK appends one NACK for the absent fragments from index from on. In
// present, bit i%64 of word i/64 is set if fragment i was received; words beyond
// its end count as zero. next is where the next NACK must begin: count if this
// one named the rest. If nothing is missing, AppendNACK appends nothing.
func AppendNACK(dst []byte, requestID, total uint32, count uint16, present []uint64, from int) (datagram []byte, next int) {
	first := nextAbsent(present, from, int(count))
	if first == int(count) {
		return dst, first
	}
	// With a base that is a multiple of 8, the bitmap is a copy of whole bytes.
	base := first &^ 7
	end := min(base+8*maxNACKBytes, int(count))
	last := first
	for i := first; i < end; i = nextAbsent(present, i+1, end) {
		last = i
	}
	n := last + 1 - base
	size := (n + 7) / 8

	h := Header{Type: TypeNACK, RequestID: requestID, Total: total, Count: count, Length: uint16(nackHead + size)}
	var head [HeaderSize + nackHead]byte
	h.Put(head[:])
	binary.LittleEndian.PutUint16(head[HeaderSize:], uint16(base))
	binary.LittleEndian.PutUint16(head[HeaderSize+2:], uint16(n))
	dst = append(dst, head[:]...)
	for i := range size {
		at := base + 8*i
		b := ^presentByte(present, at)
		if at < first {
			b &= 0xff << (first - at) // before from: not requested
		}
		if at+8 > last+1 {
			b &= 0xff >> (at + 8 - (last + 1))
		}
		dst = append(dst, b)
	}
	return dst, nextAbsent(present, last+1, int(count))
}

// MaxNACKsBytes is the max size in bytes of all NACKs for one request of count
// fragments, and the max number of datagrams that carry them.
func MaxNACKsBytes(count uint16) (bytes, datagrams int) {
	datagrams = (int(count) + 8*maxNACKBytes - 1) / (8 * maxNACKBytes)
	return datagrams*(HeaderSize+nackHead) + (int(count)+7)/8, datagrams
}

// presentByte returns bits i to i+7 of present; i must be a multiple of 8.
func presentByte(present []uint64, i int) byte {
	if i/64 >= len(present) {
		return 0
	}
	return byte(present[i/64] >> (i % 64))
}

// nextAbsent returns the first absent fragment at or after i, or count.
func nextAbsent(present []uint64, i, count int) int {
	for i < count && i/64 < len(present) {
		if absent := ^present[i/64] >> (i % 64); absent != 0 {
			return min(i+bits.TrailingZeros64(absent), count)
		}
		i = (i/64 + 1) * 64
	}
	return min(i, count)
}

// checkNACK makes the checks that need no bytes after the header.
func (h *Header) checkNACK() error {
	switch {
	case h.Index != 0:
		return ErrIndex
	case h.Offset != 0:
		return ErrOffset
	case h.Total == 0:
		return ErrTotal
	case h.Length <= nackHead || h.Length > nackHead+maxNACKBytes:
		return ErrLength
	}
	return nil
}

// DecodeNACK reads a datagram of TypeNACK. The result aliases b.
func DecodeNACK(b []byte) (NACK, error) {
	h, err := DecodeHeader(b)
	if err != nil {
		return NACK{}, err
	}
	if h.Type != TypeNACK {
		return NACK{}, ErrType
	}
	w := NACK{
		RequestID: h.RequestID,
		Total:     h.Total,
		Count:     h.Count,
		Base:      binary.LittleEndian.Uint16(b[HeaderSize:]),
		Bits:      binary.LittleEndian.Uint16(b[HeaderSize+2:]),
		bitmap:    b[HeaderSize+nackHead:],
	}
	if w.Bits == 0 || len(w.bitmap) != (int(w.Bits)+7)/8 || int(w.Base)+int(w.Bits) > int(w.Count) {
		return NACK{}, ErrNACK
	}
	if spare := len(w.bitmap)*8 - int(w.Bits); w.bitmap[len(w.bitmap)-1]>>(8-spare) != 0 {
		return NACK{}, ErrNACK
	}
	for _, b := range w.bitmap {
		if b != 0 {
			return w, nil
		}
	}
	return NACK{}, ErrNACK
}

// Missing yields the indices of the requested fragments in ascending order, each
// below Count: for i := range w.Missing.
func (w *NACK) Missing(yield func(index int) bool) {
	for i, b := range w.bitmap {
		for ; b != 0; b &= b - 1 {
			if !yield(int(w.Base) + 8*i + bits.TrailingZeros8(b)) {
				return
			}
		}
	}
}
