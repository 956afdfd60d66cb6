package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/penstock/penstock/wire"
)

// layoutVersion is the version of the layout. Both sides refuse any other.
const layoutVersion = 5

// The manager alone writes two of the files. The first word of each says which
// of the two it is.
const (
	magicTable = 0x54_4b_4e_50 // "PNKT" in memory
	magicRing  = 0x52_4b_4e_50 // "PNKR"
)

// lineBytes is a cache line. Each word that two sides use has its own line.
const lineBytes = 64

// The table and the ring begin with a header line of six 32-bit words. The
// replies have no header: a faulty process could overwrite it, and its
// successor must still be able to attach.
const (
	atMagic        = 0
	atVersion      = 4
	atSlots        = 8
	atMaxFragments = 12
	atResultBytes  = 16
	atPoolBytes    = 20
)

// The table: header, one Request per slot, MaxFragments Fragments per slot.
const (
	requestBytes  = 64
	fragmentBytes = 16
	atRequests    = lineBytes
)

// The ring: the words that only the manager writes, one ticket per slot, the
// entries.
const (
	atEpoch    = 1 * lineBytes // u32, the generation that should consume
	atTail     = 2 * lineBytes // u32, requests published, modulo 2^32
	atArrivals = 3 * lineBytes // u32, requests that began while a consumer watched, modulo 2^32
	atRead     = 4 * lineBytes // u32, replies whose results the manager has read, modulo 2^32
	atTickets  = 5 * lineBytes // one u32 per slot, odd while the slot is out
)

// The replies: the words that both sides write, one stage per slot, the entries,
// one result header per slot, the pool with the payloads.
const (
	atWatching     = 0 * lineBytes // u32, the consumer wants to know when requests begin
	atOwner        = 1 * lineBytes // u32, the generation that consumes, 0 for none
	atOwnerBell    = 2 * lineBytes // u32, futex: epoch or owner changed
	atHead         = 3 * lineBytes // u32, requests taken, modulo 2^32
	atDoorbell     = 4 * lineBytes // u32, futex: requests for a sleeping consumer
	atSleeping     = 5 * lineBytes // u32, the consumer sleeps
	atReplyTail    = 6 * lineBytes // u32, replies flushed, modulo 2^32
	atReplyBell    = 7 * lineBytes // u32, futex: replies for a sleeping manager
	atReplySleep   = 8 * lineBytes // u32, the manager sleeps
	atLastBatchEnd = 9 * lineBytes // u64, CLOCK_MONOTONIC ns
	atStages       = 10 * lineBytes
)

// resultHeaderBytes is the size of a slot's result header.
const resultHeaderBytes = lineBytes

// poolAlignment is the alignment of the pool: a page, because its pages are allocated when they are first used, and
// those before it at the start.
const poolAlignment = 4096

// Limits of a Geometry. The smallest field that holds a slot's index has 16
// bits. A fragment on the wire has up to two descriptors. A result is at most what
// wire.MaxFragments fragments of an answer hold.
const (
	maxSlots       = 1 << 16
	maxFragments   = 2 * wire.MaxFragments
	maxResultBytes = wire.MaxFragments * wire.DefaultFragmentBytes
	maxPoolBytes   = 1 << 30
)

// Geometry is the size of a channel; manager and IF must agree on it.
type Geometry struct {
	// Slots is the number of requests that may be in flight, a power of two ≤
	// 65536.
	Slots uint32 `json:"slots"`
	// MaxFragments is the number of descriptors that one request may have.
	MaxFragments uint32 `json:"max_pieces"`
	// ResultBytes is the max size of the payload of one result.
	ResultBytes uint32 `json:"result_bytes"`
	// PoolBytes is the room for the payloads of all results that the manager has not read yet. At least one of the max
	// size must fit.
	PoolBytes uint32 `json:"pool_bytes"`
}

// Validate reports the first fault of g.
func (g Geometry) Validate() error {
	switch {
	case g.Slots == 0 || g.Slots > maxSlots || g.Slots&(g.Slots-1) != 0:
		return fmt.Errorf("geometry: slots %d: want a power of two, 1 to %d", g.Slots, maxSlots)
	case g.MaxFragments == 0 || g.MaxFragments > maxFragments:
		return fmt.Errorf("geometry: max fragments %d: want 1 to %d", g.MaxFragments, maxFragments)
	case g.ResultBytes > maxResultBytes:
		return fmt.Errorf("geometry: result bytes %d: want at most %d", g.ResultBytes, maxResultBytes)
	case g.PoolBytes > maxPoolBytes || g.PoolBytes%lineBytes != 0 || int(g.PoolBytes) < max(lineBytes, lineUp(int(g.ResultBytes))):
		return fmt.Errorf("geometry: pool bytes %d: want a multiple of %d, one result to %d", g.PoolBytes, lineBytes, maxPoolBytes)
	}
	return nil
}

func lineUp(n int) int { return (n + lineBytes - 1) &^ (lineBytes - 1) }

func (g Geometry) tableBytes() int {
	return atRequests + int(g.Slots)*(requestBytes+int(g.MaxFragments)*fragmentBytes)
}

func (g Geometry) atFragments() int { return atRequests + int(g.Slots)*requestBytes }

func (g Geometry) atRingEntries() int { return atTickets + lineUp(int(g.Slots)*4) }

func (g Geometry) ringBytes() int { return g.atRingEntries() + lineUp(int(g.Slots)*4) }

func (g Geometry) atReplyEntries() int { return atStages + lineUp(int(g.Slots)*8) }

func (g Geometry) atResults() int { return g.atReplyEntries() + lineUp(int(g.Slots)*8) }

func (g Geometry) atPool() int {
	return (g.atResults() + int(g.Slots)*resultHeaderBytes + poolAlignment - 1) &^ (poolAlignment - 1)
}

func (g Geometry) repliesBytes() int { return g.atPool() + int(g.PoolBytes) }

// Fragment locates one contiguous part of a request's bytes in a slab. It has 16
// bytes in memory.
type Fragment struct {
	// Offset is where the part begins in the slab, in bytes.
	Offset uint64
	// Place is the part's offset in the request, in bytes.
	Place uint32
	// Length is its size in bytes.
	Length uint16
	// Slab is the slab's number.
	Slab uint16
}

// Request is the table's entry for a slot. It has 64 bytes in memory.
type Request struct {
	// ID is the request's id on the wire, for logs.
	ID uint32
	// Fragments is the number of the slot's descriptors that are in use.
	Fragments uint32
	// Bytes is the request's size.
	Bytes uint32
	// Priority is what the client asked for: higher goes first.
	Priority uint8
	// Format, Width, Height and Stride are of Picture.
	Format wire.PictureFormat
	// LowestScore is the score, in 1/65535, below which the client wants nothing; 0 means the card's.
	LowestScore uint16
	// FirstFragment and Complete are when the first and the last fragment arrived. After
	// Deadline the answer is worthless. All are nanoseconds of Now.
	FirstFragment, Complete, Deadline int64
	// Client stands for the client's address and port, Address for the address, in
	// which clients take turns. They are hashes; 0 is the address of all clients that
	// have not proved theirs.
	Address, Client uint32
	// Stream stands for one stream of the client. It is a hash with a secret key.
	Stream        uint64
	Width, Height uint16
	// Stride has the colours in its highest byte.
	Stride uint32
}

// Picture is the format and shape of the request's picture, which has exactly Bytes. The zero value is the card's.
func (r *Request) Picture() wire.Picture {
	return wire.Picture{Format: r.Format, Width: int(r.Width), Height: int(r.Height), Stride: int(r.Stride & wire.MaxStride), Colours: wire.Colours(r.Stride >> 24)}
}

// SetPicture sets the fields of Picture.
func (r *Request) SetPicture(p wire.Picture) {
	r.Format, r.Width, r.Height, r.Stride = p.Format, uint16(p.Width), uint16(p.Height), uint32(p.Stride)|uint32(p.Colours)<<24
}

// Result is what an IF reports about a request, next to the payload.
type Result struct {
	// Status, Kind and ModelVersion are those of the wire. Batch is the size of
	// the request's batch.
	Status       uint8
	Kind         uint8
	Batch        uint16
	ModelVersion uint32
	// Length is the payload's size in bytes.
	Length uint32
	// Dispatched, Gathered and Inferred are when the stages of its batch ended,
	// in nanoseconds of Now.
	Dispatched, Gathered, Inferred int64
}

// resultHeader is the layout of Result in memory: 64 bytes.
type resultHeader struct {
	length       atomic.Uint32 // read more than once, so each read is atomic
	modelVersion uint32
	status       uint8
	kind         uint8
	batch        uint16
	_            [4]uint8
	dispatched   int64
	gathered     int64
	inferred     int64
	place        atomic.Uint32 // of the payload in the pool, in lines
	_            [20]uint8
}

// Stage is how far a consumer has processed a slot that is out.
type Stage uint8

// The stages. A slot that waits in the ring, or is not out, has StageNone.
const (
	StageNone    Stage = iota
	StagePending       // taken, not started: the next owner may recover it
	StageStarted       // given to the device: lost if its process dies
	stageDone          // completed; seen by the manager as started until it received the reply
)

func (s Stage) String() string {
	switch s {
	case StageNone:
		return "none"
	case StagePending:
		return "pending"
	case StageStarted, stageDone:
		return "started"
	}
	return fmt.Sprintf("Stage(%d)", uint8(s))
}

// maxGeneration is the highest generation: a stage word has 30 bits for it.
const maxGeneration = 1<<30 - 1

// A stage word holds the ticket of the publication, the generation that wrote
// the word, and the stage: 32, 30 and 2 bits. It is a single word, so a reader
// never sees it half written.
func packStage(ticket, generation uint32, s Stage) uint64 {
	return uint64(ticket)<<32 | uint64(generation)<<2 | uint64(s)
}

func unpackStage(w uint64) (ticket, generation uint32, s Stage) {
	return uint32(w >> 32), uint32(w) >> 2, Stage(w & 3)
}

// A reply entry is a slot and the ticket under which it was taken.
func packReply(ticket, slot uint32) uint64 { return uint64(ticket)<<32 | uint64(slot) }

func unpackReply(w uint64) (ticket, slot uint32) { return uint32(w >> 32), uint32(w) }

// isPublished reports whether ticket belongs to a slot that is out.
func isPublished(ticket uint32) bool { return ticket&1 == 1 }
