package aggregate

import (
	"github.com/penstock/penstock/wire"
)

// record is a remembered request that has ended.
type record struct {
	requestKey
	result   wire.Result
	shed     bool // busy, although there was room
	retry    bool // fragment 0 begins it again, if its client has proved its address
	void     bool // dropped before its time
	withheld bool // the client must prove its address before it gets the answer
	budget   budget
	payload  stored
	answered int64 // the last time
	expires  int64
}

// history remembers records, all for the same time. It is a ring in the order
// of expiry.
type history struct {
	records []record
	first   int // the oldest
	n       int
	base    uint32 // a record's reference is its index in records, plus base
}

func newHistory(most, base int) history {
	return history{records: make([]record, most), base: uint32(base)}
}

func (m *history) full() bool { return m.n == len(m.records) }

// expired reports whether the oldest record must be dropped.
func (m *history) expired(now int64) bool { return m.n > 0 && m.records[m.first].expires <= now }

// pop drops the oldest record.
func (m *history) pop() (hash, ref uint32, void bool) {
	r := &m.records[m.first]
	hash, ref, void = r.hash, uint32(m.first)+m.base, r.void
	if m.first++; m.first == len(m.records) {
		m.first = 0
	}
	m.n--
	return hash, ref, void
}

// push stores a record. There must be room for it.
func (m *history) push(r record) (ref uint32) {
	at := m.first + m.n
	if at >= len(m.records) {
		at -= len(m.records)
	}
	m.records[at] = r
	m.n++
	return uint32(at) + m.base
}

// arena keeps the latest payloads in a ring of bytes. Nothing is ever freed. A
// payload is gone when newer ones have overwritten it, which its handle shows.
type arena struct {
	bytes []byte
	// next is the position of the next payload, counted in bytes since the
	// start.
	next uint64
}

// stored is a handle of a payload in an arena. The zero handle is the empty one.
type stored struct {
	start  uint64
	length int
}

func newArena(size int) arena { return arena{bytes: make([]byte, size)} }

// put copies a payload into the arena, in one contiguous part.
func (a *arena) put(payload []byte) stored {
	size := uint64(len(a.bytes))
	if uint64(len(payload)) > size {
		return stored{length: -1}
	}
	if left := size - a.next%size; uint64(len(payload)) > left {
		a.next += left
	}
	s := stored{a.next, len(payload)}
	copy(a.bytes[s.start%size:], payload)
	a.next += uint64(len(payload))
	return s
}

// get returns a payload, valid until the next put; ok is false if it is gone.
func (a *arena) get(s stored) (payload []byte, ok bool) {
	size := uint64(len(a.bytes))
	switch {
	case s.length == 0:
		return nil, true
	case s.length < 0, a.next-s.start > size:
		return nil, false
	}
	return a.bytes[s.start%size:][:s.length], true
}
