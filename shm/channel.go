package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/internal/futex"
)

// ErrNotPublished is returned by Withdraw for a slot that was never published, is
// already answered, or was withdrawn before.
var ErrNotPublished = errors.New("slot is not published")

// Channel is the manager's end of the connection to one instance of an IF.
//
// One goroutine at a time calls Publish (the caller holds a lock). One
// goroutine, locked to its thread, calls Receive. Any goroutine may call the
// other methods. After Close all methods do nothing, but slices returned
// earlier must no longer be used.
//
// Lock order: receiving before mu.
type Channel struct {
	g       Geometry
	ringMem *Region
	replies *Region
	ring    ringWords
	back    replyWords

	// mu is held for reading while the mappings are used, and for writing by
	// Close.
	mu     sync.RWMutex
	closed atomic.Bool

	// replyHead counts replies received, modulo 2^32. Only Receive uses it.
	replyHead uint32
	// harvest is the slot at which the next scan of the stages begins, or
	// harvested if no scan is due. Only Receive uses it.
	harvest  uint32
	woken    atomic.Bool
	rejected atomic.Uint64

	// epochMu guards granted: the generations that had the epoch and were not
	// disowned since.
	epochMu sync.Mutex
	granted map[uint32]struct{}
}

// harvested means that no scan of the stages is due.
const harvested = ^uint32(0)

// NewChannel makes the two files of a channel. /proc/PID/maps shows the name.
func NewChannel(name string, g Geometry) (*Channel, error) {
	ringMem, err := newFile(name+"-ring", magicRing, g, g.ringBytes())
	if err != nil {
		return nil, fmt.Errorf("make request ring: %w", err)
	}
	replies, err := Create(name+"-replies", g.repliesBytes(), Options{Writable: true, Allocated: g.atPool()})
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

// RingFile is for the instance's processes, which can only read it. The channel
// owns it; it is open until Close.
func (c *Channel) RingFile() *os.File { return c.ringMem.File() }

// RepliesFile is for the instance's processes, which write it. The channel owns
// it; it is open until Close.
func (c *Channel) RepliesFile() *os.File { return c.replies.File() }

// enter reports whether the mappings may be used. If so, the caller must call
// leave.
func (c *Channel) enter() bool {
	c.mu.RLock()
	if c.closed.Load() {
		c.mu.RUnlock()
		return false
	}
	return true
}

func (c *Channel) leave() { c.mu.RUnlock() }

// Publish sends out a slot whose entries in the Table are complete, and wakes
// the consumer if it sleeps. Publishing a slot that is already out has no
// effect: it will be answered once.
func (c *Channel) Publish(slot uint32) {
	if slot >= c.g.Slots || !c.enter() {
		return
	}
	defer c.leave()
	ticket := c.ring.tickets[slot].Load()
	if isPublished(ticket) {
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

// Announce tells a consumer that watches that a request has begun to arrive. Any goroutine may call
// it. It has no effect on other consumers.
func (c *Channel) Announce() {
	if !c.enter() {
		return
	}
	defer c.leave()
	if c.back.watching.Load() == 0 {
		return
	}
	c.ring.arrivals.Add(1)
	if c.back.sleeping.Load() != 0 && c.back.sleeping.Swap(0) != 0 {
		futex.Ring(c.back.doorbell)
	}
}

// SetEpoch names the generation that should consume, 0 for none. It wakes the
// owner, so that it releases the ring after its batch, and the next generation,
// so that it acquires the ring.
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

// Owner is the generation that claims to consume, 0 for none.
func (c *Channel) Owner() uint32 {
	if !c.enter() {
		return 0
	}
	defer c.leave()
	return c.back.owner.Load()
}

// Disown takes the ring from a generation whose process is dead, and wakes a
// process that waits for it. The process must be reaped: it must not run any
// more. Disown reports whether the ring had to be freed. An owner word that
// names no generation that ever had the epoch was written by a faulty process.
// Disown clears it as well.
func (c *Channel) Disown(generation uint32) bool {
	if !c.enter() {
		return false
	}
	defer c.leave()
	c.epochMu.Lock()
	defer c.epochMu.Unlock()
	delete(c.granted, generation)
	// Bounded: a peer that changes the word as fast as this loop reads it will
	// itself be disowned later.
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

// Stage returns the consumer's stage of a slot, and the generation that
// reported it. A slot that is not out, or is still in the ring, has StageNone.
// After the death of a generation, its slots at StageStarted are lost: Withdraw
// and answer them. The next owner recovers those at StagePending.
func (c *Channel) Stage(slot uint32) (Stage, uint32) {
	if slot >= c.g.Slots || !c.enter() {
		return StageNone, 0
	}
	defer c.leave()
	ticket := c.ring.tickets[slot].Load()
	stageTicket, generation, stage := unpackStage(c.back.stages[slot].Load())
	if !isPublished(ticket) || stageTicket != ticket || stage == StageNone {
		return StageNone, 0
	}
	if stage == stageDone {
		stage = StageStarted
	}
	return stage, generation
}

// Receive fills dst with answered slots and returns their number. Each of them
// was out and is no longer. A slot is therefore received once per publication.
// The caller reads Result and ResultBytes before it calls Receive again: the
// consumer then reuses their memory.
//
// If there is nothing to return, Receive spins briefly, then sleeps until a
// reply, the deadline (nanoseconds of Now; 0 for none) or Wake. For the
// deadline and Wake it returns 0 and no error. After Close it returns
// ErrClosed.
//
// Receive drops replies for a slot that is not out, or for an earlier
// publication of it, and counts them in Rejected.
func (c *Channel) Receive(dst []uint32, deadline int64) (n int, err error) {
	if !c.enter() {
		return 0, ErrClosed
	}
	defer c.leave()
	if c.harvest == harvested && c.ring.read.Load() != c.replyHead {
		c.ring.read.Store(c.replyHead)
	}
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

// spin polls for replies, at most spinPolls times.
func (c *Channel) spin() {
	for range spinPolls {
		if c.hasReplies() {
			return
		}
	}
}

// sleep waits for the reply bell. It reports whether it slept until the given
// time.
func (c *Channel) sleep(until int64) (timedOut bool) {
	seen := c.back.bell.Load()
	c.back.managerSleeps.Store(1)
	if !c.hasReplies() && !c.woken.Load() && !c.closed.Load() {
		timedOut = futex.Wait(c.back.bell, seen, until)
	}
	c.back.managerSleeps.Store(0)
	return timedOut
}

// hasReplies reports whether collect has entries or stages to read.
func (c *Channel) hasReplies() bool {
	return c.back.tail.Load() != c.replyHead || c.harvest != harvested
}

// collect moves answered slots to dst. Whatever the tail says, it reads at most
// one entry per slot.
func (c *Channel) collect(dst []uint32) (n int) {
	tail := c.back.tail.Load()
	if tail-c.replyHead > c.g.Slots {
		// There are more replies than slots that can be out: the tail is
		// nonsense, or an earlier process wrote it. The entries are lost; the
		// stages still tell which slots are done.
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
		ticket, generation, stage := unpackStage(c.back.stages[c.harvest].Load())
		// The successor of a dead process may have reused the memory of what that had completed and not flushed.
		if stage == stageDone && c.isGranted(generation) && c.accept(ticket, c.harvest) {
			dst[n] = c.harvest
			n++
		}
	}
	if c.harvest >= c.g.Slots {
		c.harvest = harvested
	}
	return n
}

// isGranted reports whether a generation has had the epoch and was not disowned.
func (c *Channel) isGranted(generation uint32) bool {
	c.epochMu.Lock()
	defer c.epochMu.Unlock()
	_, granted := c.granted[generation]
	return granted
}

// accept ends a slot's publication if ticket is the slot's current one.
func (c *Channel) accept(ticket, slot uint32) bool {
	return slot < c.g.Slots && isPublished(ticket) && c.ring.tickets[slot].CompareAndSwap(ticket, ticket+1)
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

// Result is a copy of what the consumer wrote about a slot. Length is clamped
// to ResultBytes. The other fields are not checked.
func (c *Channel) Result(slot uint32) Result {
	if slot >= c.g.Slots || !c.enter() {
		return Result{}
	}
	defer c.leave()
	h := &c.back.headers[slot]
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

// ResultBytes is a slot's payload in shared memory. Its length is read again,
// so a hostile consumer can make it differ from the length in Result. The
// consumer may also overwrite it at any time: copy what must be valid, and
// check the copy. The slice is valid until the next Receive, or until Close. It
// is empty, and counts in Rejected, if the consumer says that it is outside the
// memory of results.
func (c *Channel) ResultBytes(slot uint32) []byte {
	if slot >= c.g.Slots || !c.enter() {
		return nil
	}
	defer c.leave()
	payload, ok := c.back.payload(slot, c.g.ResultBytes)
	if !ok {
		c.rejected.Add(1)
	}
	return payload
}

// Withdraw takes back a slot that is out. A reply to this publication will be
// rejected. The slot may be published again at once, even while its old entry
// is still in the ring. If the slot is not out, Withdraw returns ErrNotPublished. If
// that is because its reply was received first, the reply counts.
func (c *Channel) Withdraw(slot uint32) error {
	if slot >= c.g.Slots {
		return fmt.Errorf("withdraw slot %d of %d: %w", slot, c.g.Slots, ErrNotPublished)
	}
	if !c.enter() {
		return ErrClosed
	}
	defer c.leave()
	ticket := c.ring.tickets[slot].Load()
	if !isPublished(ticket) || !c.ring.tickets[slot].CompareAndSwap(ticket, ticket+1) {
		return ErrNotPublished
	}
	return nil
}

// Rejected counts replies that were dropped because they were invalid.
func (c *Channel) Rejected() uint64 { return c.rejected.Load() }

// Close ends a blocked Receive, waits until all calls have returned, and unmaps
// the channel's memory. Other processes keep their mappings. Closing twice is
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
