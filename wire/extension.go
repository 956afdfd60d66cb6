package wire

import (
	"encoding/binary"
	"time"
)

// Extension holds a client's optional data about a request. It follows the
// header of fragment 0, with FlagExtension set; receivers ignore it on other
// fragments. 64 bytes:
//
//	 0  u32 deadline, µs, 0 for none
//	 4  u8 priority · 3 × zero
//	 8  u64 the client's send time
//	16  u64 address cookie, 0 for none
//	24  40 × zero, ignored when read
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
}

// Put writes the extension to the first BlockSize bytes of b.
func (e *Extension) Put(b []byte) {
	b = b[:BlockSize:BlockSize]
	clear(b)
	binary.LittleEndian.PutUint32(b[0:], micros(e.Deadline+time.Microsecond-1))
	b[4] = e.Priority
	binary.LittleEndian.PutUint64(b[8:], e.SentAt)
	binary.LittleEndian.PutUint64(b[16:], e.Cookie)
}

// DecodeExtension reads the extension at the beginning of b: the bytes after a
// header with FlagExtension. It returns ErrShort if there are too few.
func DecodeExtension(b []byte) (Extension, error) {
	if len(b) < BlockSize {
		return Extension{}, ErrShort
	}
	return Extension{
		Deadline: time.Duration(binary.LittleEndian.Uint32(b[0:])) * time.Microsecond,
		Priority: b[4],
		SentAt:   binary.LittleEndian.Uint64(b[8:]),
		Cookie:   binary.LittleEndian.Uint64(b[16:]),
	}, nil
}

// micros converts d to whole microseconds, clamped to a u32.
func micros(d time.Duration) uint32 {
	return uint32(min(max(d/time.Microsecond, 0), 1<<32-1))
}
