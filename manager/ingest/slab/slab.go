// Package slab is the memory that datagrams land in: one shared region, kept
// account of in granules of 64 bytes, so that a lingering datagram holds what it
// fills and not the buffer that it was received into.
//
//  1. Free finds room: free runs, lowest address first, so that the working set
//     stays small and in the cache. Nothing is taken yet
//  2. the kernel (or Put) writes into the runs
//  3. Hold takes the bytes that were really written; the rest of the runs is
//     found again by the next Free
//  4. Release gives bytes back, in whatever pieces
//
// The kernel packs datagrams back to back, so two may meet in one granule. Each
// granule therefore counts the bytes held in it, and is free when none is.
package slab

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"

	"github.com/penstock/penstock/manager/ingest"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/shm/adaptive"
)

// GranuleBytes is the unit that is free or not: a cache line, so that no two
// datagrams of different reads share one.
const GranuleBytes = 64

// minRunBytes is the smallest free run that Free gives: a datagram of an
// Ethernet frame fits in it, so it lies in two runs at most.
const minRunBytes = 2 << 10

// firstPlace is where in a granule the first run of a message begins: 14 + 20 +
// 8 bytes of Ethernet, IPv4 and UDP header would precede it in a frame, and the
// 22 bytes of Penstock's header that follow put the payload on a granule's
// boundary, as in a DPDK buffer.
const firstPlace = 14 + 20 + 8

// MessageBytes is the room that the largest UDP payload (or chain of payloads
// that GRO makes) may need: the length field of a datagram is 16 bits.
const MessageBytes = 1<<16 - 1

// MaxRuns is how many runs a message may be spread over.
const MaxRuns = (MessageBytes+minRunBytes-1)/minRunBytes + 2

// MinBytes is the smallest slab: room for a read beside what is held.
const MinBytes = 4 * (MessageBytes + 1)

// maxBytes is the largest slab. Beyond it the account alone would be gigabytes.
const maxBytes = 1 << 40

const (
	granulesPerWord = 64
	minRunGranules  = minRunBytes / GranuleBytes
)

// ErrReleasedTwice is what Release panics with: a span that is not held was given
// back, so some other datagram would be written over.
var ErrReleasedTwice = errors.New("slab: span is not held")

// Slab is the region and its account, or one of the parts of a region that several
// sources have (NewParts). It implements shm.Memory: its bytes, file and size are the
// region's, and spans count from the region's beginning, whatever part they lie in.
//
// One goroutine at a time finds room and holds it (a source's Receive); any may
// release.
type Slab struct {
	region *shm.Region
	mem    []byte
	// Granules first to end are this part's; the others are not looked at.
	first, end int
	users      *atomic.Int32 // parts of the region that are not closed

	mu adaptive.Mutex // guards the following
	// taken has a bit for each granule in which bytes are held. Where it is set,
	// used is how many, and 0 for all 64: so the granules inside of a datagram
	// are taken and given back by their bits alone.
	taken []uint64
	used  []uint8
	// granules is how many are taken.
	granules int
	// lowest is a word of taken below which nothing is free.
	lowest int

	held atomic.Uint64 // granules, in bytes, for who has no lock
}

var _ shm.Memory = (*Slab)(nil)

// New makes a slab of size bytes, rounded up to 4 KiB; other processes can only
// read it.
func New(name string, size int, hugePages bool) (*Slab, error) {
	parts, err := NewParts(name, size, 1, hugePages)
	if err != nil {
		return nil, err
	}
	return parts[0], nil
}

// NewParts makes one region of size bytes in n parts of the same size, rounded up to 4 KiB
// each: for as many sources, of which each finds room in its own, and takes no lock of
// another's. Each part is closed; the last one unmaps the region.
func NewParts(name string, size, n int, hugePages bool) ([]*Slab, error) {
	if n < 1 || size/n < MinBytes || size > maxBytes {
		return nil, fmt.Errorf("make slab: %d bytes in %d parts: want at least %d a part, at most %d", size, n, MinBytes, maxBytes)
	}
	const word = granulesPerWord * GranuleBytes
	each := (size/n + word - 1) / word * word
	size = each * n
	region, err := shm.Create(name+"-slab", size, shm.Options{HugePages: hugePages})
	if err != nil {
		return nil, fmt.Errorf("make slab: %w", err)
	}
	// The parts' accounts lie beside each other: no word of taken is of two.
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

// Bytes is the memory, good until Close.
func (s *Slab) Bytes() []byte { return s.mem }

// File is what other processes are given, read-only; it is the slab's.
func (s *Slab) File() *os.File { return s.region.File() }

// Size is the region's size in bytes.
func (s *Slab) Size() int { return len(s.mem) }

// Room is the part's size in bytes: the region's, where it is the only one.
func (s *Slab) Room() int { return (s.end - s.first) * GranuleBytes }

// Huge reports whether the slab lies on huge pages of its own.
func (s *Slab) Huge() bool { return s.region.Huge() }

// HeldBytes is how many bytes are not free, in whole granules.
func (s *Slab) HeldBytes() uint64 { return s.held.Load() }

// Close unmaps the slab, with the last of its parts. Nobody may touch it afterwards, nor
// Release. A part is closed once.
func (s *Slab) Close() error {
	if s.users.Add(-1) > 0 {
		return nil
	}
	return s.region.Close()
}

// View is a span's bytes.
func (s *Slab) View(span ingest.Span) []byte {
	end := span.Offset + uint64(span.Length)
	return s.mem[span.Offset:end:end]
}

// Free finds room for a message of up to size bytes at or above the address
// from: free runs, lowest first, each of at least minRunBytes (but the last one, if less
// is needed). The first begins at firstPlace in its granule. It
// says how many of dst's runs it filled, and where room for a next message
// begins. 0 runs mean that there is no such room.
//
// The room is not taken: until Hold, another Free from the same address finds it
// again.
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

// lowestFreeLocked moves lowest up to the first word with a free granule.
func (s *Slab) lowestFreeLocked() int {
	for s.lowest*granulesPerWord < s.end && s.taken[s.lowest] == ^uint64(0) {
		s.lowest++
	}
	return s.lowest
}

// nextRunLocked finds the next free run at or after granule at which is worth
// using: minRunBytes long, or all that need still wants. It looks no further than
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

// scanLocked is the first granule in [at, limit) that is free (flip 0) or taken
// (flip all ones), or limit.
func (s *Slab) scanLocked(at, limit int, flip uint64) int {
	for at < limit {
		// After the flip, the granules looked for are zeros; after the
		// complement, ones.
		word := ^(s.taken[at/granulesPerWord] ^ flip) >> (at % granulesPerWord)
		if word != 0 {
			return min(at+bits.TrailingZeros64(word), limit)
		}
		at = (at/granulesPerWord + 1) * granulesPerWord
	}
	return limit
}

// Hold takes bytes that lie in room which Free found and which were written.
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

// heldLocked is how many bytes of a granule are held.
func (s *Slab) heldLocked(g int) int {
	switch {
	case s.taken[g/granulesPerWord]>>(g%granulesPerWord)&1 == 0:
		return 0
	case s.used[g] == 0:
		return GranuleBytes
	}
	return int(s.used[g])
}

// addLocked takes some bytes of one granule.
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

// Release gives spans back; they may be cut or joined in any way, but each byte
// that was held is released once. Releasing one that is not held panics: to go on
// would let a datagram be written over while it is read.
func (s *Slab) Release(spans []ingest.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range spans {
		if span.Length == 0 {
			continue
		}
		first, last, head, tail := ends(span)
		if first < s.first || last >= s.end {
			panic(ErrReleasedTwice) // another part's
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

// takeBackLocked releases some bytes of one granule.
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

// clearLocked releases granules [at, end), which are held whole.
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

// ends gives the granules that a span begins and ends in, and how many of its
// bytes lie in each of the two: all of them in the first where they are one.
func ends(span ingest.Span) (first, last, head, tail int) {
	begin, end := int(span.Offset), int(span.Offset)+int(span.Length)
	first, last = begin/GranuleBytes, (end-1)/GranuleBytes
	if first == last {
		return first, last, end - begin, 0
	}
	return first, last, (first+1)*GranuleBytes - begin, end - last*GranuleBytes
}

// maskOf is the word of taken that granule at lies in, and the bits there of the
// n granules from it up to end.
func maskOf(at, end int) (word int, mask uint64, n int) {
	bit := at % granulesPerWord
	n = min(end-at, granulesPerWord-bit)
	return at / granulesPerWord, ^uint64(0) >> (granulesPerWord - n) << bit, n
}

// Put copies a payload in and holds it: for sources whose datagrams come from
// elsewhere than a socket. It reports false where there is no room. Where
// straddle is more than 0 (and less than the payload), the payload lies in two
// spans, straddle bytes in the first; where it is 0, it does so only if no free
// run is long enough.
func (s *Slab) Put(payload []byte, straddle int) (first, rest ingest.Span, ok bool) {
	if len(payload) > MessageBytes {
		return first, rest, false
	}
	if straddle > 0 && straddle < len(payload) {
		if first, ok = s.put(payload[:straddle], 0); !ok {
			return first, rest, false
		}
		beyond := first.Offset + uint64(first.Length) + 2*GranuleBytes
		if rest, ok = s.put(payload[straddle:], beyond); !ok {
			s.Release([]ingest.Span{first})
			return ingest.Span{}, rest, false
		}
		return first, rest, true
	}
	if first, ok = s.put(payload, 0); ok {
		return first, rest, true
	}
	var runs [2]ingest.Span
	n, _ := s.Free(runs[:], 0, len(payload))
	if n != 2 {
		return first, rest, false
	}
	first, rest = runs[0], runs[1]
	copy(s.View(first), payload)
	copy(s.View(rest), payload[first.Length:])
	s.Hold(first)
	s.Hold(rest)
	return first, rest, true
}

// put places bytes in the first run from an address on that is long enough.
func (s *Slab) put(payload []byte, from uint64) (ingest.Span, bool) {
	span, ok := s.freeRun(from, len(payload))
	if ok {
		copy(s.View(span), payload)
		s.Hold(span)
	}
	return span, ok
}

// freeRun finds one run of size bytes.
func (s *Slab) freeRun(from uint64, size int) (ingest.Span, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := (firstPlace + size + GranuleBytes - 1) / GranuleBytes
	at := max(s.first, int(from+GranuleBytes-1)/GranuleBytes)
	for {
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

// Join copies the spans of one datagram, which are held, to one run, and releases
// them. Where no run is long enough it only releases them and reports false.
func (s *Slab) Join(spans []ingest.Span) (ingest.Span, bool) {
	size := 0
	for _, span := range spans {
		size += int(span.Length)
	}
	whole, ok := s.freeRun(0, size)
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
