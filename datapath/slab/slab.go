// Package slab is the memory that receives datagrams: one shared region,
// managed in granules of 64 bytes. A datagram that is kept for long therefore
// holds only the granules that it fills, not a whole receive buffer.
//
//  1. Free finds room: free runs, lowest address first, so that the working set
//     stays small and in the cache. Nothing is taken yet
//  2. the kernel writes into the runs
//  3. Hold takes the bytes that were written; the next Free finds the rest of
//     the runs again
//  4. Release returns bytes, in spans of any size
//
// The kernel packs datagrams back to back, so two may share one granule. Each
// granule therefore counts the bytes held in it, and is free when that count is
// 0.
package slab

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"

	"github.com/penstock/penstock/datapath/adaptive"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/shm"
)

// GranuleBytes is the unit of allocation: a cache line, so that no two
// datagrams of different reads share one.
const GranuleBytes = 64

// minRunBytes is the smallest free run that Free returns. A datagram of an
// Ethernet frame fits in it, so it occupies two runs at most.
const minRunBytes = 2 << 10

// firstPlace is the offset in a granule at which the first run of a message
// begins. In a frame, 14 + 20 + 8 bytes of Ethernet, IPv4 and UDP header would
// precede the message. The 22 bytes of Penstock's header follow, so the payload
// begins on a granule's boundary, as in a DPDK buffer.
const firstPlace = 14 + 20 + 8

// MessageBytes is the max size of a UDP payload, or of a chain of payloads that
// GRO makes. The length field of a datagram has 16 bits.
const MessageBytes = 1<<16 - 1

// MaxRuns is the max number of runs that a message is spread over.
const MaxRuns = (MessageBytes+minRunBytes-1)/minRunBytes + 2

// MinBytes is the smallest slab: room for a read next to what is held.
const MinBytes = 4 * (MessageBytes + 1)

// maxBytes is the largest slab. Beyond it the bookkeeping alone would take
// gigabytes.
const maxBytes = 1 << 40

const (
	granulesPerWord = 64
	minRunGranules  = minRunBytes / GranuleBytes
)

// allocatedBytes are allocated when a slab is made. The other pages are allocated when a datagram first needs them. As free runs
// at the lowest addresses are used first, most functions never touch most of their slabs.
const allocatedBytes = 1 << 20

// ErrReleasedTwice is the value with which Release panics if a span is not
// held. Continuing could overwrite some other datagram.
var ErrReleasedTwice = errors.New("slab: span is not held")

// Slab is a region and its bookkeeping, or one part of a region that several
// sources share (New). It implements shm.Memory. Bytes, File and Size are
// those of the region. Spans are offsets from the region's beginning, whichever
// part they are in.
//
// Only one goroutine at a time may find room and hold it (a source's Receive).
// Any goroutine may release.
type Slab struct {
	region *shm.Region
	mem    []byte
	// Granules first to end belong to this part; it does not use the others.
	first, end int
	users      *atomic.Int32 // parts of the region that are not closed

	mu adaptive.Mutex // guards the following
	// taken has a bit for each granule that holds bytes. If the bit is set,
	// used is the number of held bytes, with 0 for all 64. The inner granules
	// of a datagram can therefore be taken and released through their bits
	// alone.
	taken []uint64
	used  []uint8
	// granules is the number of taken granules.
	granules int
	// lowest is an index of taken below which no granule is free.
	lowest int

	held atomic.Uint64 // size of the taken granules in bytes, readable without the lock
}

var _ shm.Memory = (*Slab)(nil)

// New makes one region of size bytes in n equal parts, each rounded up to 4 KiB. Each of n
// sources finds room in its own part and takes no lock of another. Other processes can only read
// the region. Every part must be closed; the last one unmaps the region.
func New(name string, size, n int, hugePages bool) ([]*Slab, error) {
	if n < 1 || size/n < MinBytes || size > maxBytes {
		return nil, fmt.Errorf("make slab: %d bytes in %d parts: want at least %d per part, at most %d", size, n, MinBytes, maxBytes)
	}
	const word = granulesPerWord * GranuleBytes
	each := (size/n + word - 1) / word * word
	size = each * n
	region, err := shm.Create(name+"-slab", size, shm.Options{HugePages: hugePages, Allocated: min(size, allocatedBytes)})
	if err != nil {
		return nil, fmt.Errorf("make slab: %w", err)
	}
	// The parts' bookkeeping is contiguous, but no word of taken belongs to two
	// parts.
	taken, used := make([]uint64, size/word), make([]uint8, size/GranuleBytes)
	users := new(atomic.Int32)
	users.Store(int32(n))
	parts := make([]*Slab, n)
	for i := range parts {
		first := i * each / GranuleBytes
		parts[i] = &Slab{
			region: region, mem: region.Bytes(), users: users,
			first: first, end: first + each/GranuleBytes,
			taken: taken, used: used, lowest: first / granulesPerWord,
		}
	}
	return parts, nil
}

// Bytes is the memory, valid until Close.
func (s *Slab) Bytes() []byte { return s.mem }

// File is the read-only descriptor for other processes. The slab owns it.
func (s *Slab) File() *os.File { return s.region.File() }

// Size is the region's size in bytes.
func (s *Slab) Size() int { return len(s.mem) }

// Room is the part's size in bytes. It is the region's size if there is only
// one part.
func (s *Slab) Room() int { return (s.end - s.first) * GranuleBytes }

// HeldBytes is the number of bytes that are not free, in whole granules.
func (s *Slab) HeldBytes() uint64 { return s.held.Load() }

// Close closes this part. With the last part it unmaps the slab, which must not
// be used afterwards, not even by Release. Close a part once.
func (s *Slab) Close() error {
	if s.users.Add(-1) > 0 {
		return nil
	}
	return s.region.Close()
}

// View returns the bytes of a span.
func (s *Slab) View(span ingest.Span) []byte {
	end := span.Offset + uint64(span.Length)
	return s.mem[span.Offset:end:end]
}

// Free finds room for a message of up to size bytes at or above the address
// from. The room consists of free runs, lowest address first. Each has at least
// minRunBytes, except the last one if less is needed. The first begins at
// firstPlace in its granule. Free returns how many runs of dst it filled, and
// the address from which to look for the next message's room. 0 runs mean that
// there is no such room.
//
// Free does not take the room: until Hold, another Free from the same address
// finds it again.
func (s *Slab) Free(dst []ingest.Span, from uint64, size int) (runs int, next uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := (int(from) + GranuleBytes - 1) / GranuleBytes
	if low := s.lowestFreeLocked() * granulesPerWord; at < low {
		at = low
	}
	for need := size; runs < len(dst); {
		start, end, ok := s.nextRunLocked(at, need, runs == 0)
		if !ok {
			return 0, from
		}
		at = end
		offset := start * GranuleBytes
		if runs == 0 {
			offset += firstPlace
		}
		length := min(end*GranuleBytes-offset, need)
		dst[runs] = ingest.Span{Offset: uint64(offset), Length: uint32(length)}
		runs++
		if need -= length; need == 0 {
			return runs, uint64(offset+length+GranuleBytes-1) &^ (GranuleBytes - 1)
		}
	}
	return 0, from
}

// lowestFreeLocked advances lowest to the first word with a free granule.
func (s *Slab) lowestFreeLocked() int {
	for s.lowest*granulesPerWord < s.end && s.taken[s.lowest] == ^uint64(0) {
		s.lowest++
	}
	return s.lowest
}

// nextRunLocked finds the next usable free run at or after granule at. A run is
// usable if it has minRunBytes, or all of need. The search for its end stops at
// need.
func (s *Slab) nextRunLocked(at, need int, first bool) (start, end int, ok bool) {
	if first {
		need += firstPlace
	}
	want := (need + GranuleBytes - 1) / GranuleBytes
	enough := min(want, minRunGranules)
	for {
		start = s.scanLocked(at, s.end, 0)
		if start >= s.end {
			return 0, 0, false
		}
		limit := min(start+want, s.end)
		end = s.scanLocked(start, limit, ^uint64(0))
		if end-start >= enough {
			return start, end, true
		}
		at = end
	}
}

// scanLocked returns the first granule in [at, limit) that is free (flip 0) or
// taken (flip all ones), or limit if there is none.
func (s *Slab) scanLocked(at, limit int, flip uint64) int {
	for at < limit {
		// The flip turns the granules that are searched for into zeros, the
		// complement turns them into ones.
		word := ^(s.taken[at/granulesPerWord] ^ flip) >> (at % granulesPerWord)
		if word != 0 {
			return min(at+bits.TrailingZeros64(word), limit)
		}
		at = (at/granulesPerWord + 1) * granulesPerWord
	}
	return limit
}

// Hold takes the bytes of a span. They must have been written into room from
// Free.
func (s *Slab) Hold(span ingest.Span) {
	if span.Length == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first, last, head, tail := ends(span)
	s.addLocked(first, head)
	if last > first {
		s.setLocked(first+1, last)
		s.addLocked(last, tail)
	}
	s.held.Store(uint64(s.granules) * GranuleBytes)
}

// heldLocked returns the number of held bytes of a granule.
func (s *Slab) heldLocked(g int) int {
	switch {
	case s.taken[g/granulesPerWord]>>(g%granulesPerWord)&1 == 0:
		return 0
	case s.used[g] == 0:
		return GranuleBytes
	}
	return int(s.used[g])
}

// addLocked takes n bytes of one granule.
func (s *Slab) addLocked(g, n int) {
	held := s.heldLocked(g)
	if held == 0 {
		s.taken[g/granulesPerWord] |= 1 << (g % granulesPerWord)
		s.granules++
	}
	s.used[g] = uint8((held + n) % GranuleBytes)
}

// setLocked takes whole free granules [at, end).
func (s *Slab) setLocked(at, end int) {
	s.granules += end - at
	for at < end {
		word, mask, n := maskOf(at, end)
		s.taken[word] |= mask
		at += n
	}
}

// Release returns spans to the slab. Spans may be split or joined in any way,
// but each held byte must be released once. Releasing a byte that is not held
// panics: otherwise a datagram could be overwritten while it is read.
func (s *Slab) Release(spans []ingest.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range spans {
		if span.Length == 0 {
			continue
		}
		first, last, head, tail := ends(span)
		if first < s.first || last >= s.end {
			panic(ErrReleasedTwice) // belongs to another part
		}
		s.takeBackLocked(first, head)
		if last > first {
			s.clearLocked(first+1, last)
			s.takeBackLocked(last, tail)
		}
		s.lowest = min(s.lowest, first/granulesPerWord)
	}
	s.held.Store(uint64(s.granules) * GranuleBytes)
}

// takeBackLocked releases n bytes of one granule.
func (s *Slab) takeBackLocked(g, n int) {
	held := s.heldLocked(g) - n
	if held < 0 {
		panic(ErrReleasedTwice)
	}
	s.used[g] = uint8(held)
	if held == 0 {
		s.taken[g/granulesPerWord] &^= 1 << (g % granulesPerWord)
		s.granules--
	}
}

// clearLocked releases granules [at, end), all of whose bytes are held.
func (s *Slab) clearLocked(at, end int) {
	for _, part := range s.used[at:end] {
		if part != 0 {
			panic(ErrReleasedTwice)
		}
	}
	s.granules -= end - at
	for at < end {
		word, mask, n := maskOf(at, end)
		if s.taken[word]&mask != mask {
			panic(ErrReleasedTwice)
		}
		s.taken[word] &^= mask
		at += n
	}
}

// ends returns the first and last granule of a span, and how many of its bytes
// lie in each. If the two are one, head counts all bytes.
func ends(span ingest.Span) (first, last, head, tail int) {
	begin, end := int(span.Offset), int(span.Offset)+int(span.Length)
	first, last = begin/GranuleBytes, (end-1)/GranuleBytes
	if first == last {
		return first, last, end - begin, 0
	}
	return first, last, (first+1)*GranuleBytes - begin, end - last*GranuleBytes
}

// maskOf returns the word of taken that holds granule at, and a mask of its n
// bits from at up to end.
func maskOf(at, end int) (word int, mask uint64, n int) {
	bit := at % granulesPerWord
	n = min(end-at, granulesPerWord-bit)
	return at / granulesPerWord, ^uint64(0) >> (granulesPerWord - n) << bit, n
}

// freeRun finds one run of size bytes.
func (s *Slab) freeRun(size int) (ingest.Span, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := (firstPlace + size + GranuleBytes - 1) / GranuleBytes
	for at := s.first; ; {
		start := s.scanLocked(at, s.end, 0)
		if start+want > s.end {
			return ingest.Span{}, false
		}
		at = s.scanLocked(start, start+want, ^uint64(0))
		if at-start == want {
			return ingest.Span{Offset: uint64(start*GranuleBytes + firstPlace), Length: uint32(size)}, true
		}
	}
}

// Join copies the held spans of one datagram to one run, and releases them. If
// no run is long enough, it only releases them and returns false.
func (s *Slab) Join(spans []ingest.Span) (ingest.Span, bool) {
	size := 0
	for _, span := range spans {
		size += int(span.Length)
	}
	whole, ok := s.freeRun(size)
	if ok {
		to := s.View(whole)
		for _, span := range spans {
			to = to[copy(to, s.View(span)):]
		}
		s.Hold(whole)
	}
	s.Release(spans)
	return whole, ok
}
