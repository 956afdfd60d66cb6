package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/shm/internal/futex"
)

// ErrNotOut is returned by Withdraw for a slot that is not out: never published,
// already answered, or withdrawn before.
var ErrNotOut = errors.New("slot is not out")

// Channel is the manager's end of the way to one instance of an IF.
//
// Publish is called by one goroutine at a time (the caller holds a lock),
// Receive by one goroutine, locked to its thread; everything else by any. After
// Close all of them do nothing, but slices got before must no longer be touched.
//
// Lock order: receiving before mu.
type Channel struct {
	g       Geometry
	ringMem *Region
	replies *Region
	ring    ringWords
	back    replyWords

	// mu is held for reading by whoever touches the mappings, and for writing by
	// Close.
	mu     sync.RWMutex
	closed atomic.Bool

	// replyHead counts replies received, modulo 2^32. Receive's own.
	replyHead uint32
	// harvest is where the next look at the stages begins, or harvested where
	// none is due. Receive's own.
	harvest  uint32
	woken    atomic.Bool
	rejected atomic.Uint64

	// epochMu guards granted, the generations that were given the epoch and not
	// disowned since.
	epochMu sync.Mutex
	granted map[uint32]struct{}
}

// harvested says that no look at the stages is due.
const harvested = ^uint32(0)

// NewChannel makes the two files of a channel. Name is seen in /proc/PID/maps.
func NewChannel(name string, g Geometry) (*Channel, error) {
	ringMem, err := newFile(name+"-ring", magicRing, g, g.ringBytes())
	if err != nil {
		return nil, fmt.Errorf("make request ring: %w", err)
	}
	replies, err := Create(name+"-replies", g.repliesBytes(), Options{Writable: true})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make replies: %w", err), ringMem.Close())
	}
	return &Channel{
		g:       g,
		ringMem: ringMem,
		replies: replies,
		ring:    ringOf(ringMem.Bytes(), g),
		back:    repliesOf(replies.Bytes(), g),
		harvest: harvested,
		granted: make(map[uint32]struct{}),
	}, nil
}

// Geometry is the channel's size.
func (c *Channel) Geometry() Geometry { return c.g }

// RingFile is given to the instance's processes, which can only read it. It is
// the channel's, open until Close.
func (c *Channel) RingFile() *os.File { return c.ringMem.File() }

// RepliesFile is given to the instance's processes, which write it. It is the
// channel's, open until Close.
func (c *Channel) RepliesFile() *os.File { return c.replies.File() }

// enter reports whether the mappings may be touched; the caller leaves then.
func (c *Channel) enter() bool {
	c.mu.RLock()
	if c.closed.Load() {
		c.mu.RUnlock()
		return false
	}
	return true
}

func (c *Channel) leave() { c.mu.RUnlock() }

// Publish sends a slot out, whose lines in the Table are written, and wakes the
// consumer if it sleeps. A slot that is out already stays as it is: it will be
// answered once.
func (c *Channel) Publish(slot uint32) {
	if slot >= c.g.Slots || !c.enter() {
		return
	}
	defer c.leave()
	ticket := c.ring.tickets[slot].Load()
	if isOut(ticket) {
		return
	}
	c.ring.tickets[slot].Store(ticket + 1)
	tail := c.ring.tail.Load()
	c.ring.entries[tail&(c.g.Slots-1)].Store(slot)
	c.ring.tail.Store(tail + 1)
	if c.back.sleeping.Load() != 0 && c.back.sleeping.Swap(0) != 0 {
		futex.Ring(c.back.doorbell)
	}
}

// SetEpoch names the generation that should consume, 0 for none, and wakes
// whoever sleeps: the owner, so that it gives the ring up after its batch, and
// the next, so that it takes it.
func (c *Channel) SetEpoch(generation uint32) {
	if !c.enter() {
		return
	}
	defer c.leave()
	c.epochMu.Lock()
	defer c.epochMu.Unlock()
	if generation != 0 {
		c.granted[generation] = struct{}{}
	}
	c.ring.epoch.Store(generation)
	futex.Ring(c.back.ownerBell)
	futex.Ring(c.back.doorbell)
}

// Epoch is the generation that should consume, 0 for none.
func (c *Channel) Epoch() uint32 {
	if !c.enter() {
		return 0
	}
	defer c.leave()
	return c.ring.epoch.Load()
}

// Owner is the generation that says it consumes, 0 for none.
func (c *Channel) Owner() uint32 {
	if !c.enter() {
		return 0
	}
	defer c.leave()
	return c.back.owner.Load()
}

// Disown takes the ring from a generation whose process is dead (and reaped: it
// must not run any more), and wakes who waits for it. It reports whether the
// ring had to be freed. An owner word that names no generation that ever had
// the epoch is the dead one's nonsense and is cleared as well.
func (c *Channel) Disown(generation uint32) bool {
	if !c.enter() {
		return false
	}
	defer c.leave()
	c.epochMu.Lock()
	defer c.epochMu.Unlock()
	delete(c.granted, generation)
	// Bounded: a peer that changes the word as fast as this reads it will be
	// disowned in its turn.
	for range maxFruitless {
		owner := c.back.owner.Load()
		if _, lives := c.granted[owner]; owner == 0 || lives {
			return false
		}
		if c.back.owner.CompareAndSwap(owner, 0) {
			futex.Ring(c.back.ownerBell)
			return true
		}
	}
	return false
}

// Stage tells how far the consumer says it is with a slot, and which
// generation's word that is. A slot that is not out, or is still in the ring, is
// at StageNone. After the death of a generation, its slots at StageStarted are
// lost: Withdraw and answer them; those at StagePending are for the next owner.
func (c *Channel) Stage(slot uint32) (Stage, uint32) {
	if slot >= c.g.Slots || !c.enter() {
		return StageNone, 0
	}
	defer c.leave()
	ticket := c.ring.tickets[slot].Load()
	of, generation, stage := unpackStage(c.back.stages[slot].Load())
	if !isOut(ticket) || of != ticket || stage == StageNone {
		return StageNone, 0
	}
	if stage == stageDone {
		stage = StageStarted
	}
	return stage, generation
}

// Receive fills dst with slots that were answered and says how many: each was
// out and is no longer, so it comes from one Receive only, once a publication.
// The caller reads Result and ResultBytes before it publishes the slot again.
//
// With nothing to return it spins a little, then sleeps until a reply, the
// deadline (nanoseconds of Now; 0 for none) or Wake, and returns 0 and no error
// for the last two. It returns ErrClosed after Close.
//
// Replies for a slot that is not out, or for an earlier publication of it, are
// dropped and counted in Rejected.
func (c *Channel) Receive(dst []uint32, deadline int64) (n int, err error) {
	if !c.enter() {
		return 0, ErrClosed
	}
	defer c.leave()
	if len(dst) == 0 {
		return 0, nil
	}
	spinUntil := Now() + int64(Spin)
	var sleeps sleeps
	for {
		if n = c.collect(dst); n > 0 {
			return n, nil
		}
		if c.closed.Load() {
			return 0, ErrClosed
		}
		if c.woken.Load() && c.woken.Swap(false) {
			return 0, nil
		}
		now := Now()
		if deadline != 0 && now >= deadline {
			return 0, nil
		}
		if now < spinUntil {
			c.spin()
			continue
		}
		sleeps.sleep(now, deadline, c.sleep)
	}
}

// spin looks for replies, spinLooks times at most.
func (c *Channel) spin() {
	for range spinLooks {
		if c.hasReplies() {
			return
		}
	}
}

// sleep waits for the reply bell. It reports whether the whole time was slept.
func (c *Channel) sleep(until int64) (timedOut bool) {
	seen := c.back.bell.Load()
	c.back.managerSleeps.Store(1)
	if !c.hasReplies() && !c.woken.Load() && !c.closed.Load() {
		timedOut = futex.Wait(c.back.bell, seen, until)
	}
	c.back.managerSleeps.Store(0)
	return timedOut
}

// hasReplies reports whether collect has something to look at.
func (c *Channel) hasReplies() bool {
	return c.back.tail.Load() != c.replyHead || c.harvest != harvested
}

// collect moves answered slots to dst. It looks at no more entries than there
// are slots, whatever the tail says.
func (c *Channel) collect(dst []uint32) (n int) {
	tail := c.back.tail.Load()
	if tail-c.replyHead > c.g.Slots {
		// More replies than can be out: nonsense, or that of a process before
		// this one. The entries are lost; the stages still tell what is done.
		c.rejected.Add(1)
		c.replyHead = tail
		c.harvest = 0
	}
	for n < len(dst) && c.replyHead != tail {
		ticket, slot := unpackReply(c.back.entries[c.replyHead&(c.g.Slots-1)].Load())
		c.replyHead++
		if !c.accept(ticket, slot) {
			c.rejected.Add(1)
			continue
		}
		dst[n] = slot
		n++
	}
	for ; n < len(dst) && c.harvest < c.g.Slots; c.harvest++ {
		ticket, _, stage := unpackStage(c.back.stages[c.harvest].Load())
		if stage == stageDone && c.accept(ticket, c.harvest) {
			dst[n] = c.harvest
			n++
		}
	}
	if c.harvest >= c.g.Slots {
		c.harvest = harvested
	}
	return n
}

// accept ends a slot's publication if ticket is the one that it is out under.
func (c *Channel) accept(ticket, slot uint32) bool {
	return slot < c.g.Slots && isOut(ticket) && c.ring.tickets[slot].CompareAndSwap(ticket, ticket+1)
}

// Wake makes a blocked Receive, or the next one, return early.
func (c *Channel) Wake() {
	if !c.enter() {
		return
	}
	defer c.leave()
	c.woken.Store(true)
	futex.Ring(c.back.bell)
}

// Result is a copy of what the consumer wrote about a slot. Length is clamped to
// ResultBytes; nothing else is to be trusted.
func (c *Channel) Result(slot uint32) Result {
	if slot >= c.g.Slots || !c.enter() {
		return Result{}
	}
	defer c.leave()
	h := c.back.header(c.g, slot)
	return Result{
		Status:       h.status,
		Kind:         h.kind,
		Batch:        h.batch,
		ModelVersion: h.modelVersion,
		Length:       min(h.length.Load(), c.g.ResultBytes),
		Dispatched:   h.dispatched,
		Gathered:     h.gathered,
		Inferred:     h.inferred,
	}
}

// ResultBytes is a slot's payload where it lies. Its length is read anew, so it
// may differ from that in Result where the consumer is hostile, and the consumer
// may write over it at any time: what must be valid is checked in a copy. It is
// good until the slot is published again, or Close.
func (c *Channel) ResultBytes(slot uint32) []byte {
	if slot >= c.g.Slots || !c.enter() {
		return nil
	}
	defer c.leave()
	n := min(c.back.header(c.g, slot).length.Load(), c.g.ResultBytes)
	return c.back.payload(c.g, slot)[:n:n]
}

// Withdraw gives up on a slot that is out: a reply to this publication will be
// rejected, and the slot may be published again at once, even while its old
// entry is still in the ring. It returns ErrNotOut if the slot is not out (its
// reply was received first: then the reply is what counts).
func (c *Channel) Withdraw(slot uint32) error {
	if slot >= c.g.Slots {
		return fmt.Errorf("withdraw slot %d of %d: %w", slot, c.g.Slots, ErrNotOut)
	}
	if !c.enter() {
		return ErrClosed
	}
	defer c.leave()
	ticket := c.ring.tickets[slot].Load()
	if !isOut(ticket) || !c.ring.tickets[slot].CompareAndSwap(ticket, ticket+1) {
		return ErrNotOut
	}
	return nil
}

// Queued is how many requests wait in the ring, 0 to Slots: those published and
// not taken, and those withdrawn there that nobody has passed over yet.
func (c *Channel) Queued() int {
	if !c.enter() {
		return 0
	}
	defer c.leave()
	return int(min(c.ring.tail.Load()-c.back.head.Load(), c.g.Slots))
}

// Rejected counts replies that were dropped because they made no sense.
func (c *Channel) Rejected() uint64 { return c.rejected.Load() }

// LastBatchEnd is when the last batch ended, as the consumer says, in
// nanoseconds of Now; 0 before the first.
func (c *Channel) LastBatchEnd() int64 {
	if !c.enter() {
		return 0
	}
	defer c.leave()
	return int64(c.back.lastBatchEnd.Load())
}

// Close ends a blocked Receive, waits until nobody is inside a call, and unmaps
// the channel's memory. Processes that map it keep it. Closing twice is
// harmless.
func (c *Channel) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	// A Receive holds mu for reading until it sees closed.
	futex.Ring(c.back.bell)
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.ringMem.Close(), c.replies.Close())
}
