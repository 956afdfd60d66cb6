package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/shm/internal/futex"
)

// Consumer is an IF process's end of its channel.
//
//  1. Acquire   wait for the epoch and for the old owner, own the ring
//  2. Recover   what a dead owner had taken and not started
//  3. Wait      sleep until something is published
//  4. Take      drain the ring; the requests are pending
//  5. Start     a batch goes to the device
//  6. Complete, Flush, BatchEnded
//     while Entitled: 3
//  7. Release   what is pending stays so, for the next owner
//
// All methods but Interrupt and Entitled belong to one goroutine, locked to its
// thread. Slots given to methods come from Take or Recover.
type Consumer struct {
	g          Geometry
	generation uint32
	table      *Table
	ringMem    *Region
	replies    *Region
	ring       ringWords
	back       replyWords

	// head counts requests taken and replyTail replies flushed, modulo 2^32;
	// completed counts those that the next Flush publishes.
	head, replyTail, completed uint32

	// tickets is, for each slot in this consumer's hands, the ticket that it was
	// taken under, and 0 for the others.
	tickets []uint32
	// found are slots that are pending but were not returned by Take yet, inRing
	// is Recover's note of which slots have entries. Made once.
	found  []uint32
	inRing []uint64

	// mu is held for reading by Interrupt while it touches the mappings, and for
	// writing by Close.
	mu          sync.RWMutex
	closed      bool
	interrupted atomic.Bool
	// owning is set from Acquire to Release.
	owning atomic.Bool

	eager    time.Duration // as Eager was told
	soon     int64         // until when it looks; 0 before the first Acquire
	wasNamed bool          // by the epoch, when soon was set
	pinned   bool
}

// NewConsumer maps a channel in an IF process. It takes the three files: they
// are closed by Close, or here if it fails. The table and the ring are mapped
// read-only.
func NewConsumer(generation uint32, g Geometry, table, ring, replies *os.File) (*Consumer, error) {
	c, err := newConsumer(generation, g, table, ring, replies)
	if err != nil {
		return nil, fmt.Errorf("attach to channel: %w", err)
	}
	return c, nil
}

func newConsumer(generation uint32, g Geometry, table, ring, replies *os.File) (_ *Consumer, err error) {
	var opened []*Region
	defer func() {
		if err == nil {
			return
		}
		for _, r := range opened {
			err = errors.Join(err, r.Close())
		}
		for _, f := range []*os.File{table, ring, replies}[len(opened):] {
			_ = f.Close() // the one that failed is closed already
		}
	}()
	if generation == 0 || generation > maxGeneration {
		return nil, fmt.Errorf("generation %d: want 1 to %d", generation, maxGeneration)
	}
	if err := g.Validate(); err != nil {
		return nil, err
	}
	tableMem, err := openFile(table, magicTable, g, g.tableBytes())
	if err != nil {
		return nil, err
	}
	opened = append(opened, tableMem)
	ringMem, err := openFile(ring, magicRing, g, g.ringBytes())
	if err != nil {
		return nil, err
	}
	opened = append(opened, ringMem)
	repliesMem, err := Map(replies, g.repliesBytes(), true)
	if err != nil {
		return nil, err
	}
	return &Consumer{
		g:          g,
		generation: generation,
		table:      tableIn(tableMem, g),
		ringMem:    ringMem,
		replies:    repliesMem,
		ring:       ringOf(ringMem.Bytes(), g),
		back:       repliesOf(repliesMem.Bytes(), g),
		tickets:    make([]uint32, g.Slots),
		found:      make([]uint32, 0, g.Slots),
		inRing:     make([]uint64, (g.Slots+63)/64),
	}, nil
}

// Generation is who this consumer is.
func (c *Consumer) Generation() uint32 { return c.generation }

// Eager has Acquire look without a pause before it sleeps: for the epoch, for so long
// from the first Acquire on, as it is about to name this generation; and then for the
// ring, for so long again, as the owner is ending its last batch. Being woken takes
// longer than the owner may need. For a process that has a CPU to itself. It is set
// before the first Acquire.
//
// While it looks, and from an Acquire that found the ring so until Settle, the goroutine
// is not preempted: between the two it may use this Consumer and memory, and nothing
// that blocks.
func (c *Consumer) Eager(d time.Duration) { c.eager = d }

// Settle ends what Eager promises; the goroutine may be preempted again. It may be
// called at any time. Methods that make system calls do so themselves.
func (c *Consumer) Settle() {
	if c.pinned {
		c.pinned = false
		unpin()
	}
}

// Acquire waits until the epoch names this generation and no other one owns the
// ring, and then owns it: true. It returns false at the deadline (nanoseconds of
// Now; 0 for none) or when Interrupt was called.
func (c *Consumer) Acquire(deadline int64) (bool, error) {
	if c.closed {
		return false, ErrClosed
	}
	var sleeps sleeps
	for {
		seen := c.back.ownerBell.Load()
		if c.named() && c.own() {
			// The epoch may have moved on in between: then give it back, or the
			// next would wait for somebody who does not know that it owns.
			if c.named() {
				c.begin()
				return true, nil
			}
			c.Settle()
			c.free()
			continue
		}
		now := Now()
		if c.interrupted.Load() && c.interrupted.Swap(false) || deadline != 0 && now >= deadline {
			c.Settle()
			return false, nil
		}
		if c.isSoon(now) {
			c.spinEagerly()
			continue
		}
		c.Settle()
		sleeps.sleep(now, deadline, func(end int64) bool { return futex.Wait(c.back.ownerBell, seen, end) })
	}
}

// spinEagerly looks for the ring, spinLooks times at most, and is not preempted.
func (c *Consumer) spinEagerly() {
	if !c.pinned {
		c.pinned = true
		pin()
	}
	for range spinLooks {
		if c.named() && c.back.owner.Load() == 0 {
			return
		}
	}
}

// isSoon reports whether Eager's time is not over yet.
func (c *Consumer) isSoon(now int64) bool {
	if named := c.named(); c.soon == 0 || named && !c.wasNamed {
		c.wasNamed, c.soon = named, now+int64(c.eager)
	}
	return now < c.soon
}

// own takes the owner word if it is free, or this generation's already.
func (c *Consumer) own() bool {
	return c.back.owner.CompareAndSwap(0, c.generation) || c.back.owner.Load() == c.generation
}

// free clears the owner word if it is this generation's, and wakes the next.
func (c *Consumer) free() {
	if c.back.owner.CompareAndSwap(c.generation, 0) {
		futex.Ring(c.back.ownerBell)
	}
}

// begin goes on where the last owner stopped.
func (c *Consumer) begin() {
	c.forget()
	c.head = c.back.head.Load()
	c.replyTail = c.back.tail.Load()
	c.owning.Store(true)
}

// forget drops what is in this consumer's hands.
func (c *Consumer) forget() {
	clear(c.tickets)
	c.found = c.found[:0]
	c.completed = 0
	c.owning.Store(false)
}

// Entitled reports whether the epoch names this generation and, for one that has
// acquired the ring, that it has not been disowned. An owner that is not
// entitled any more ends its batch, calls Release, and may Acquire again.
// Any goroutine may call it, until Close.
func (c *Consumer) Entitled() bool { return c.named() && (!c.owning.Load() || c.owns()) }

// named reports whether the epoch names this generation.
func (c *Consumer) named() bool { return c.ring.epoch.Load() == c.generation }

// owns reports whether the owner word is this generation's. The manager clears
// it when it takes this process for dead.
func (c *Consumer) owns() bool { return c.back.owner.Load() == c.generation }

// Recover appends to dst the slots that a previous owner had taken but not
// started, and those that it lost by writing nonsense over the head; they are
// now pending in this consumer's hands. It is called right after Acquire, and
// costs a look at every slot.
func (c *Consumer) Recover(dst []uint32) []uint32 {
	if !c.owns() {
		return dst
	}
	clear(c.inRing)
	tail := c.ring.tail.Load()
	if tail-c.head > c.g.Slots {
		c.head = tail // no entry can be believed: all that is out is found below
	}
	for at := c.head; at != tail; at++ {
		if slot := c.ring.entries[at&(c.g.Slots-1)].Load(); slot < c.g.Slots {
			c.inRing[slot/64] |= 1 << (slot % 64)
		}
	}
	for slot := range c.g.Slots {
		ticket := c.ring.tickets[slot].Load()
		if !isOut(ticket) {
			continue
		}
		of, _, stage := unpackStage(c.back.stages[slot].Load())
		waits := of != ticket || stage == StageNone
		if waits && c.inRing[slot/64]&(1<<(slot%64)) != 0 {
			continue // Take will come to it
		}
		if waits || stage == StagePending {
			c.hold(slot, ticket)
			dst = append(dst, slot)
		}
	}
	c.back.head.Store(c.head)
	return dst
}

// hold makes a slot pending in this consumer's hands.
func (c *Consumer) hold(slot, ticket uint32) {
	c.tickets[slot] = ticket
	c.back.stages[slot].Store(packStage(ticket, c.generation, StagePending))
}

// claim holds a slot if it is out and nobody has taken this publication of it.
// A slot that is still in this consumer's hands from an earlier publication
// (withdrawn since) is left alone until its Complete.
func (c *Consumer) claim(slot uint32) bool {
	ticket := c.ring.tickets[slot].Load()
	if !isOut(ticket) || c.tickets[slot] != 0 {
		return false
	}
	if of, _, stage := unpackStage(c.back.stages[slot].Load()); of == ticket && stage != StageNone {
		return false
	}
	c.hold(slot, ticket)
	return true
}

// Take fills dst with published slots, oldest first, and says how many; they are
// pending from now on. It does not block. Entries that name no slot, and slots
// that were withdrawn, are passed over.
func (c *Consumer) Take(dst []uint32) (n int) {
	if !c.owns() {
		return 0
	}
	n = c.takeFound(dst)
	first := c.head
	tail := c.ring.tail.Load()
	for n < len(dst) && c.head != tail && tail-c.head <= c.g.Slots {
		slot := c.ring.entries[c.head&(c.g.Slots-1)].Load()
		c.head++
		if slot < c.g.Slots && c.claim(slot) {
			dst[n] = slot
			n++
		}
	}
	if tail = c.ring.tail.Load(); tail-first > c.g.Slots {
		// Overtaken: slots were withdrawn and published anew until the ring went
		// round, or the head is not what it was. Some entries are gone; what is
		// out and not taken is found without them.
		c.head = tail
		c.findAll()
		n += c.takeFound(dst[n:])
	}
	// Only now: should this process die here, the slots are pending and also in
	// the ring, which the next owner sees through; the other order loses them.
	c.back.head.Store(c.head)
	return n
}

// findAll claims every slot that is out and not taken.
func (c *Consumer) findAll() {
	for slot := range c.g.Slots {
		if c.claim(slot) {
			c.found = append(c.found, slot)
		}
	}
}

// takeFound moves found slots to dst, but those that were withdrawn since.
func (c *Consumer) takeFound(dst []uint32) (n int) {
	looked := 0
	for ; n < len(dst) && looked < len(c.found); looked++ {
		slot := c.found[looked]
		if c.ring.tickets[slot].Load() != c.tickets[slot] {
			c.tickets[slot] = 0
			if !c.claim(slot) {
				continue
			}
		}
		dst[n] = slot
		n++
	}
	c.found = c.found[:copy(c.found, c.found[looked:])]
	return n
}

// Wait returns when there is something to Take, when this generation is no
// longer entitled or has been disowned, when Interrupt was called, or at the
// deadline (nanoseconds of Now; 0 for none). It spins for Spin, then sleeps.
func (c *Consumer) Wait(deadline int64) {
	c.Settle()
	spinUntil := Now() + int64(Spin)
	var sleeps sleeps
	for {
		if c.hasWork() || c.interrupted.Load() && c.interrupted.Swap(false) {
			return
		}
		now := Now()
		if deadline != 0 && now >= deadline {
			return
		}
		if now < spinUntil {
			for range spinLooks {
				if c.hasWork() {
					return
				}
			}
			continue
		}
		sleeps.sleep(now, deadline, c.sleep)
	}
}

// sleep waits for the doorbell. It reports whether the whole time was slept.
func (c *Consumer) sleep(until int64) (timedOut bool) {
	seen := c.back.doorbell.Load()
	c.back.sleeping.Store(1)
	if !c.hasWork() && !c.interrupted.Load() {
		timedOut = futex.Wait(c.back.doorbell, seen, until)
	}
	c.back.sleeping.Store(0)
	return timedOut
}

// hasWork reports whether Wait has to return whatever the time is.
func (c *Consumer) hasWork() bool {
	return c.ring.tail.Load() != c.head || len(c.found) > 0 || !c.named() || !c.owns()
}

// Interrupt makes a blocked Wait or Acquire, or the next one, return early. Any
// goroutine may call it, also after Close.
func (c *Consumer) Interrupt() {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return
	}
	c.interrupted.Store(true)
	futex.Ring(c.back.doorbell)
	futex.Ring(c.back.ownerBell)
}

// Start says that slots go to the device now: should this process die from here
// on, they are answered as failed and not run again.
func (c *Consumer) Start(slots []uint32) {
	for _, slot := range slots {
		if ticket := c.tickets[slot]; ticket != 0 {
			c.back.stages[slot].Store(packStage(ticket, c.generation, StageStarted))
		}
	}
}

// Request is the table's line for a slot. Pieces is clamped to MaxPieces; the
// sizes are the caller's to check against its own tensors.
func (c *Consumer) Request(slot uint32) Request {
	r := c.table.Request(slot)
	r.Pieces = min(r.Pieces, c.g.MaxPieces)
	return r
}

// Pieces is the descriptors in use of a slot, read-only memory, good until the
// slot's Complete. Their bounds are the gather's to check.
func (c *Consumer) Pieces(slot uint32) []Piece {
	return c.table.Pieces(slot)[:c.Request(slot).Pieces]
}

// ResultBuffer is room for a slot's payload, ResultBytes long, the caller's to
// write from Take until Complete.
func (c *Consumer) ResultBuffer(slot uint32) []byte { return c.back.payload(c.g, slot) }

// Complete ends a slot: r and what is in its ResultBuffer are the answer, which
// the manager sees after Flush. Each slot taken is completed once; a second time
// does nothing.
func (c *Consumer) Complete(slot uint32, r Result) {
	ticket := c.tickets[slot]
	if ticket == 0 {
		return
	}
	h := c.back.header(c.g, slot)
	h.length.Store(min(r.Length, c.g.ResultBytes))
	h.modelVersion = r.ModelVersion
	h.status = r.Status
	h.kind = r.Kind
	h.batch = r.Batch
	h.dispatched = r.Dispatched
	h.gathered = r.Gathered
	h.inferred = r.Inferred
	c.back.stages[slot].Store(packStage(ticket, c.generation, stageDone))
	c.back.entries[(c.replyTail+c.completed)&(c.g.Slots-1)].Store(packReply(ticket, slot))
	c.completed++
	c.tickets[slot] = 0
	// Withdrawn and published anew while it was in hand: its new entry may have
	// been passed over.
	if c.ring.tickets[slot].Load() != ticket && c.claim(slot) {
		c.found = append(c.found, slot)
	}
}

// Flush publishes the replies completed since the last one, with one wake if the
// manager sleeps.
func (c *Consumer) Flush() {
	c.Settle()
	if c.completed == 0 {
		return
	}
	c.replyTail += c.completed
	c.completed = 0
	c.back.tail.Store(c.replyTail)
	if c.back.managerSleeps.Load() != 0 && c.back.managerSleeps.Swap(0) != 0 {
		futex.Ring(c.back.bell)
	}
}

// BatchEnded notes when a batch ended, in nanoseconds of Now.
func (c *Consumer) BatchEnded(at int64) { c.back.lastBatchEnd.Store(uint64(at)) }

// LastBatchEnd is when the last batch ended, whoever ran it; 0 before the first.
func (c *Consumer) LastBatchEnd() int64 { return int64(c.back.lastBatchEnd.Load()) }

// Release gives the ring up after a Flush, and wakes the next owner, which
// recovers what is pending in this consumer's hands; none of it may be completed
// here any more.
func (c *Consumer) Release() {
	c.Settle()
	c.Flush()
	c.forget()
	c.free()
}

// Close unmaps the channel and closes its files. An owner releases first. No
// other method but Interrupt may be called afterwards.
func (c *Consumer) Close() error {
	c.Settle()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	return errors.Join(c.table.Close(), c.ringMem.Close(), c.replies.Close())
}
