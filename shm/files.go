package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// ErrClosed is returned by Receive, Wait-like calls and Withdraw after Close.
var ErrClosed = errors.New("channel is closed")

// ErrMismatch is returned when a shared file has another kind, version or
// geometry than expected.
var ErrMismatch = errors.New("shared file does not match this program")

// writeHeader writes the header of a new file.
func writeHeader(mem []byte, magic uint32, g Geometry) {
	head := view[uint32](mem, 0, lineBytes/4)
	head[atMagic/4] = magic
	head[atVersion/4] = layoutVersion
	head[atSlots/4] = g.Slots
	head[atMaxFragments/4] = g.MaxFragments
	head[atResultBytes/4] = g.ResultBytes
	head[atPoolBytes/4] = g.PoolBytes
}

// checkHeader compares a file's header with the geometry that this process
// received.
func checkHeader(mem []byte, magic uint32, g Geometry) error {
	head := view[uint32](mem, 0, lineBytes/4)
	if got := head[atMagic/4]; got != magic {
		return fmt.Errorf("%w: magic %#x, want %#x", ErrMismatch, got, magic)
	}
	if got := head[atVersion/4]; got != layoutVersion {
		return fmt.Errorf("%w: layout version %d, want %d", ErrMismatch, got, layoutVersion)
	}
	got := Geometry{Slots: head[atSlots/4], MaxFragments: head[atMaxFragments/4], ResultBytes: head[atResultBytes/4], PoolBytes: head[atPoolBytes/4]}
	if got != g {
		return fmt.Errorf("%w: geometry %+v, want %+v", ErrMismatch, got, g)
	}
	return nil
}

// newFile makes a file that only the manager writes, with its header.
func newFile(name string, magic uint32, g Geometry, size int) (*Region, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	r, err := Create(name, size, Options{})
	if err != nil {
		return nil, err
	}
	writeHeader(r.Bytes(), magic, g)
	return r, nil
}

// openFile maps such a file for reading and checks its header.
func openFile(f *os.File, magic uint32, g Geometry, size int) (*Region, error) {
	r, err := Map(f, size, false)
	if err != nil {
		return nil, err
	}
	if err := checkHeader(r.Bytes(), magic, g); err != nil {
		return nil, errors.Join(fmt.Errorf("map shared memory %q: %w", f.Name(), err), r.Close())
	}
	return r, nil
}

// ringWords are the words of the ring file. Only the manager can write them.
type ringWords struct {
	epoch, tail, arrivals, read *atomic.Uint32
	tickets                     []atomic.Uint32
	entries                     []atomic.Uint32
}

func ringOf(mem []byte, g Geometry) ringWords {
	return ringWords{
		epoch:    word32(mem, atEpoch),
		tail:     word32(mem, atTail),
		arrivals: word32(mem, atArrivals),
		read:     word32(mem, atRead),
		tickets:  view[atomic.Uint32](mem, atTickets, int(g.Slots)),
		entries:  view[atomic.Uint32](mem, g.atRingEntries(), int(g.Slots)),
	}
}

// replyWords are the words of the replies file. Both sides can write all of
// them.
type replyWords struct {
	watching                  *atomic.Uint32
	owner, ownerBell          *atomic.Uint32
	head, doorbell, sleeping  *atomic.Uint32
	tail, bell, managerSleeps *atomic.Uint32
	lastBatchEnd              *atomic.Uint64
	stages                    []atomic.Uint64
	entries                   []atomic.Uint64
	headers                   []resultHeader
	pool                      []byte
}

func repliesOf(mem []byte, g Geometry) replyWords {
	return replyWords{
		watching:      word32(mem, atWatching),
		owner:         word32(mem, atOwner),
		ownerBell:     word32(mem, atOwnerBell),
		head:          word32(mem, atHead),
		doorbell:      word32(mem, atDoorbell),
		sleeping:      word32(mem, atSleeping),
		tail:          word32(mem, atReplyTail),
		bell:          word32(mem, atReplyBell),
		managerSleeps: word32(mem, atReplySleep),
		lastBatchEnd:  word64(mem, atLastBatchEnd),
		stages:        view[atomic.Uint64](mem, atStages, int(g.Slots)),
		entries:       view[atomic.Uint64](mem, g.atReplyEntries(), int(g.Slots)),
		headers:       view[resultHeader](mem, g.atResults(), int(g.Slots)),
		pool:          mem[g.atPool():g.repliesBytes()],
	}
}

// payload returns a slot's payload, at most most bytes of it. It returns false if the header names bytes outside
// the pool.
func (w *replyWords) payload(slot, most uint32) ([]byte, bool) {
	h := &w.headers[slot]
	at, n := uint64(h.place.Load())*lineBytes, uint64(min(h.length.Load(), most))
	if at+n > uint64(len(w.pool)) {
		return nil, false
	}
	return w.pool[at : at+n : at+n], true
}
