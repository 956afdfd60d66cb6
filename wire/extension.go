package wire

import (
	"encoding/binary"
	"math/bits"
	"time"
)

// Extension holds a client's optional data about a request. It follows the
// header of fragment 0, with FlagExtension set; receivers ignore it on other
// fragments. 64 bytes:
//
//	 0  u32 deadline, µs, 0 for none
//	 4  u8 priority · u8 use of the bytes from 24 on · u8 1 if the client follows StatusMoved, else 0 · zero
//	 8  u64 the client's send time
//	16  u64 address cookie, 0 for none
//
// The bytes from 24 on belong to the use. Bytes that are not named are zero, and ignored when read.
//
//	use 0: none
//	use 1: fragments of the answer that a question asks for
//
//	24  u16 base fragment · u16 number of bits, at most MaxMissing
//	28  32 × bitmap: bit i%8 of byte i/8 is set if fragment base+i is missing
//
//	use 2: what the client wants of the request
//
//	24  u8 picture format, 0 for the card's picture · u8 colours · u16 lowest score, in 1/65535, 0 for the card's
//	28  u16 width · u16 height · u32 stride, ignored without a format, like the colours
//	36  u32 stream id
type Extension struct {
	// Deadline is how long after the client's send an answer is still useful; 0
	// means that the client sets none. The manager, which does not share the
	// client's clock, counts from the first fragment's arrival. The wire has whole
	// microseconds, rounded up, at most 71 minutes.
	Deadline time.Duration
	// Priority orders requests that wait together: higher goes first.
	Priority uint8
	// SentAt is the time on any clock of the client; the result returns it.
	SentAt uint64
	// Cookie echoes Result.Cookie of an earlier answer. It proves that the
	// client receives at its source address (RFC 9000, section 8.1). 0 means
	// that the client has none.
	Cookie uint64
	// Follows allows the manager to answer with StatusMoved.
	Follows bool
	// Missing names the fragments of the answer that a question asks for. The zero
	// value asks for the whole answer. If it names any, the fields below are not sent.
	Missing Missing
	// Picture is the format and shape of the request's picture. The zero value is the card's.
	Picture Picture
	// LowestScore is the score, in 1/65535, below which the client wants nothing; 0
	// means the card's.
	LowestScore uint16
	// Stream identifies one of the client's streams, for functions that keep a
	// state per stream.
	Stream uint32
}

// The uses of an extension.
const (
	useMissing = 1
	useRequest = 2
)

// MaxMissing is the max number of fragments that a Missing spans.
const MaxMissing = 256

// Missing names fragments of an answer: up to MaxMissing in a row, each missing or not.
type Missing struct {
	base, span uint16
	bitmap     [MaxMissing / 8]byte
}

// NameMissing names at most most absent fragments of count, the first ones. They
// span at most MaxMissing. In present, bit i%64 of word i/64 is set if fragment i was received.
func NameMissing(present []uint64, count, most int) (m Missing) {
	first := nextAbsent(present, 0, count)
	end := min(first+MaxMissing, count)
	m.base = uint16(first)
	for i := first; i < end && most > 0; i = nextAbsent(present, i+1, end) {
		m.bitmap[(i-first)/8] |= 1 << ((i - first) % 8)
		m.span = uint16(i - first + 1)
		most--
	}
	return m
}

// Empty reports whether m names no fragment: a question is for the whole answer then.
func (m *Missing) Empty() bool { return m.span == 0 }

// Span returns the range of fragments, below count, that contains all named ones.
func (m *Missing) Span(count int) (from, to int) {
	return min(int(m.base), count), min(int(m.base)+int(m.span), count)
}

// All yields the named fragments below count in ascending order.
func (m *Missing) All(count int) func(yield func(index int) bool) {
	from, to := m.Span(count)
	return func(yield func(index int) bool) {
		for i, b := range m.bitmap {
			for ; b != 0; b &= b - 1 {
				if index := from + 8*i + bits.TrailingZeros8(b); index < to && !yield(index) {
					return
				}
			}
		}
	}
}

// Last returns the highest fragment that m names; -1 if m is empty.
func (m *Missing) Last() int {
	if m.Empty() {
		return -1
	}
	return int(m.base) + int(m.span) - 1
}

// Has reports whether m names a fragment.
func (m *Missing) Has(index int) bool {
	i := index - int(m.base)
	return i >= 0 && i < int(m.span) && m.bitmap[i/8]&(1<<(i%8)) != 0
}

// Put writes the extension to the first BlockSize bytes of b.
func (e *Extension) Put(b []byte) {
	b = b[:BlockSize:BlockSize]
	clear(b)
	binary.LittleEndian.PutUint32(b[0:], micros(e.Deadline+time.Microsecond-1))
	b[4] = e.Priority
	if e.Follows {
		b[6] = 1
	}
	binary.LittleEndian.PutUint64(b[8:], e.SentAt)
	binary.LittleEndian.PutUint64(b[16:], e.Cookie)
	if !e.Missing.Empty() {
		b[5] = useMissing
		binary.LittleEndian.PutUint16(b[24:], e.Missing.base)
		binary.LittleEndian.PutUint16(b[26:], e.Missing.span)
		copy(b[28:], e.Missing.bitmap[:])
	} else if e.LowestScore != 0 || e.Stream != 0 || e.Picture.Format != 0 {
		b[5] = useRequest
		b[24], b[25] = byte(e.Picture.Format), byte(e.Picture.Colours)
		binary.LittleEndian.PutUint16(b[26:], e.LowestScore)
		binary.LittleEndian.PutUint16(b[28:], uint16(e.Picture.Width))
		binary.LittleEndian.PutUint16(b[30:], uint16(e.Picture.Height))
		binary.LittleEndian.PutUint32(b[32:], uint32(e.Picture.Stride))
		binary.LittleEndian.PutUint32(b[36:], e.Stream)
	}
}

// DecodeExtension reads the extension at the beginning of b: the bytes after a
// header with FlagExtension. It returns ErrShort if there are too few.
func DecodeExtension(b []byte) (Extension, error) {
	if len(b) < BlockSize {
		return Extension{}, ErrShort
	}
	e := Extension{
		Deadline: time.Duration(binary.LittleEndian.Uint32(b[0:])) * time.Microsecond,
		Priority: b[4],
		SentAt:   binary.LittleEndian.Uint64(b[8:]),
		Cookie:   binary.LittleEndian.Uint64(b[16:]),
		Follows:  b[6] == 1,
	}
	switch b[5] {
	case useMissing:
		if span := min(binary.LittleEndian.Uint16(b[26:]), MaxMissing); span > 0 {
			e.Missing = Missing{base: binary.LittleEndian.Uint16(b[24:]), span: span, bitmap: [MaxMissing / 8]byte(b[28:])}
		}
	case useRequest:
		e.LowestScore, e.Stream = binary.LittleEndian.Uint16(b[26:]), binary.LittleEndian.Uint32(b[36:])
		if f := PictureFormat(b[24]); f != 0 {
			e.Picture = Picture{
				Format: f, Width: int(binary.LittleEndian.Uint16(b[28:])), Height: int(binary.LittleEndian.Uint16(b[30:])),
				Stride: int(binary.LittleEndian.Uint32(b[32:])), Colours: Colours(b[25]),
			}
		}
	}
	return e, nil
}

// micros converts d to whole microseconds, clamped to a u32.
func micros(d time.Duration) uint32 {
	return uint32(min(max(d/time.Microsecond, 0), 1<<32-1))
}
