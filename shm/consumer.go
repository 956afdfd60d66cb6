package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/futex"
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
//  7. Release   pending requests stay pending, for the next owner
//
// One goroutine, locked to its thread, calls all methods except Interrupt and
// Entitled. Slots given to methods come from Take or Recover.
type Consumer struct {
	g          Geometry
	generation uint32
	table      *Table
	ringMem    *Region
	replies    *Region
	ring       ringWords
	back       replyWords

	// head counts requests taken, replyTail replies flushed, both modulo 2^32.
	// completed counts the replies that the next Flush publishes.
	head, replyTail, completed uint32

	// tickets holds, for each slot that this consumer holds, the ticket under
	// which it was taken; 0 for other slots.
	tickets []uint32
	// found are pending slots that Take has not returned yet. inRing is
	// Recover's bitmap of slots that have entries. Both are allocated once.
	found  []uint32
	inRing []uint64

	pool pool

	// watching: Wait also ends when a request begins. arrivals is the count of these that
	// Arrived has reported.
	watching bool
	arrivals uint32

	// mu is held for reading by Interrupt while it uses the mappings, and for
	// writing by Close.
	mu          sync.RWMutex
	closed      bool
	interrupted atomic.Bool
	// owning is set from Acquire to Release.
	owning atomic.Bool

	eager eager
}

// eager is the state of Consumer.Eager.
type eager struct {
	phase  time.Duration // the length of a phase
	until  int64         // end of the phase; 0 before the first Acquire
	named  bool          // whether the epoch named this generation when until was set
	pinned bool          // the goroutine is not preempted
}

// NewConsumer maps a channel in an IF process. It takes ownership of the three
// files: Close closes them, or NewConsumer itself if it fails. The table and
// the ring are mapped read-only.
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
			_ = f.Close() // the file that failed is closed already
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
	repliesMem, err := mapRegion(replies, g.repliesBytes(), g.atPool(), true)
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
		pool:       newPool(g),
	}, nil
}

// Eager makes Acquire poll without a pause before it sleeps, in two phases of
// at most d. The first phase begins with the first Acquire, as the epoch is
// about to name this generation. The second begins when the epoch names it, as
// the owner is ending its last batch. A wake-up takes longer than the owner may
// need. Eager is for a process that has a CPU to itself. Call it before the
// first Acquire.
//
// The goroutine is not preempted while it polls, nor after an Acquire that
// obtained the ring by polling, until Settle. Until then it may use this
// Consumer and memory, but must not call anything that blocks.
func (c *Consumer) Eager(d time.Duration) { c.eager.phase = d }

// Settle ends the effect of Eager: the goroutine may be preempted again. It may
// be called at any time. Methods that make system calls call it themselves.
func (c *Consumer) Settle() {
	if c.eager.pinned {
		c.eager.pinned = false
		unpin()
	}
}

// Acquire waits until the epoch names this generation and no other generation
// owns the ring. Then it takes ownership and returns true. It returns false at
// the deadline (nanoseconds of Now; 0 for none) or if Interrupt was called.
func (c *Consumer) Acquire(deadline int64) (bool, error) {
	if c.closed {
		return false, ErrClosed
	}
	var sleeps sleeps
	for {
		seen := c.back.ownerBell.Load()
		if c.isNamed() && c.own() {
			// The epoch may have moved on in between. In that case free the
			// ring again, or the next generation would wait for an owner that
			// does not know that it owns the ring.
			if c.isNamed() {
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
		if c.isEager(now) {
			c.spinEagerly()
			continue
		}
		c.Settle()
		sleeps.sleep(now, deadline, func(end int64) bool { return futex.Wait(c.back.ownerBell, seen, end) })
	}
}

// spinEagerly polls for the ring, at most spinPolls times, without preemption.
func (c *Consumer) spinEagerly() {
	if !c.eager.pinned {
		c.eager.pinned = true
		pin()
	}
	for range spinPolls {
		if c.isNamed() && c.back.owner.Load() == 0 {
			return
		}
	}
}

// isEager reports whether an eager phase still lasts.
func (c *Consumer) isEager(now int64) bool {
	e := &c.eager
	if named := c.isNamed(); e.until == 0 || named && !e.named {
		e.named, e.until = named, now+int64(e.phase)
	}
	return now < e.until
}

// own takes the owner word if it is free or already names this generation.
func (c *Consumer) own() bool {
	return c.back.owner.CompareAndSwap(0, c.generation) || c.back.owner.Load() == c.generation
}

// free clears the owner word if it names this generation, and wakes the next
// owner.
func (c *Consumer) free() {
	if c.back.owner.CompareAndSwap(c.generation, 0) {
		futex.Ring(c.back.ownerBell)
	}
}

// begin continues at the point that the last owner reached.
func (c *Consumer) begin() {
	c.forget()
	c.head = c.back.head.Load()
	c.replyTail = c.back.tail.Load()
	c.pool.begin(c.replyTail)
	c.back.watching.Store(0) // of the last owner
	c.owning.Store(true)
}

// forget drops all slots that this consumer holds.
func (c *Consumer) forget() {
	clear(c.tickets)
	c.found = c.found[:0]
	c.completed = 0
	c.watching = false
	c.owning.Store(false)
}

// Entitled reports whether the epoch names this generation. A consumer that has
// acquired the ring must also not have been disowned. An owner that is no
// longer entitled ends its batch, calls Release, and may Acquire again. Any
// goroutine may call it, until Close.
func (c *Consumer) Entitled() bool { return c.isNamed() && (!c.owning.Load() || c.owns()) }

// isNamed reports whether the epoch names this generation.
func (c *Consumer) isNamed() bool { return c.ring.epoch.Load() == c.generation }

// owns reports whether the owner word names this generation. The manager clears
// it when it considers this process dead.
func (c *Consumer) owns() bool { return c.back.owner.Load() == c.generation }

// Recover appends to dst the slots that a previous owner had taken but not
// started. It adds the slots that this owner lost by writing nonsense over the
// head. This consumer now holds all of them, and they are pending. Call it
// right after Acquire; it reads the state of every slot.
func (c *Consumer) Recover(dst []uint32) []uint32 {
	if !c.owns() {
		return dst
	}
	clear(c.inRing)
	tail := c.ring.tail.Load()
	if tail-c.head > c.g.Slots {
		c.head = tail // no entry can be trusted: the scan below finds all that is out
	}
	for at := c.head; at != tail; at++ {
		if slot := c.ring.entries[at&(c.g.Slots-1)].Load(); slot < c.g.Slots {
			c.inRing[slot/64] |= 1 << (slot % 64)
		}
	}
	for slot := range c.g.Slots {
		ticket := c.ring.tickets[slot].Load()
		if !isPublished(ticket) {
			continue
		}
		stageTicket, _, stage := unpackStage(c.back.stages[slot].Load())
		waits := stageTicket != ticket || stage == StageNone
		if waits && c.inRing[slot/64]&(1<<(slot%64)) != 0 {
			continue // Take will reach it
		}
		if waits || stage == StagePending {
			c.hold(slot, ticket)
			dst = append(dst, slot)
		}
	}
	c.back.head.Store(c.head)
	return dst
}

// hold makes a slot pending and records that this consumer holds it.
func (c *Consumer) hold(slot, ticket uint32) {
	c.tickets[slot] = ticket
	c.back.stages[slot].Store(packStage(ticket, c.generation, StagePending))
}

// claim holds a slot if it is out and no consumer has taken this publication. A
// slot that this consumer still holds from an earlier publication (withdrawn
// since) is left alone until its Complete.
func (c *Consumer) claim(slot uint32) bool {
	ticket := c.ring.tickets[slot].Load()
	if !isPublished(ticket) || c.tickets[slot] != 0 {
		return false
	}
	if stageTicket, _, stage := unpackStage(c.back.stages[slot].Load()); stageTicket == ticket && stage != StageNone {
		return false
	}
	c.hold(slot, ticket)
	return true
}

// Take fills dst with published slots, oldest first, and returns their number;
// they are now pending. It does not block. It skips entries that name no valid
// slot, and slots that were withdrawn.
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
		// Overtaken: slots were withdrawn and published again until the ring
		// wrapped around, or the head was overwritten. Some entries are gone.
		// The scan finds what is out and not taken without them.
		c.head = tail
		c.findAll()
		n += c.takeFound(dst[n:])
	}
	// Store the head last. If this process dies just before, the slots are
	// pending and also in the ring, which the next owner recognizes. The other
	// order would lose them.
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

// takeFound moves found slots to dst, except those that were withdrawn since.
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

// Wait returns if there is something to Take, or if a request begins while it
// watches. It also returns if this generation is no longer entitled or has been
// disowned, if Interrupt was called, and at the deadline (nanoseconds of Now; 0
// for none). It spins for Spin, then sleeps.
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
			for range spinPolls {
				if c.hasWork() {
					return
				}
			}
			continue
		}
		sleeps.sleep(now, deadline, c.sleep)
	}
}

// sleep waits for the doorbell. It reports whether it slept until the given
// time.
func (c *Consumer) sleep(until int64) (timedOut bool) {
	seen := c.back.doorbell.Load()
	c.back.sleeping.Store(1)
	if !c.hasWork() && !c.interrupted.Load() {
		timedOut = futex.Wait(c.back.doorbell, seen, until)
	}
	c.back.sleeping.Store(0)
	return timedOut
}

// hasWork reports whether Wait has to return before its deadline.
func (c *Consumer) hasWork() bool {
	return c.ring.tail.Load() != c.head || len(c.found) > 0 || !c.isNamed() || !c.owns() ||
		c.watching && c.ring.arrivals.Load() != c.arrivals
}

// Watch starts or stops to watch for requests that begin to arrive, of clients that have proved
// their address. Wait then ends for each, and Arrived reports it. A consumer can watch while it owns
// the ring.
func (c *Consumer) Watch(on bool) {
	if on == c.watching || !c.owning.Load() {
		return
	}
	c.watching = on
	if !on {
		c.back.watching.Store(0)
		return
	}
	c.arrivals = c.ring.arrivals.Load()
	c.back.watching.Store(1)
}

// Arrived reports whether a request has begun to arrive since the last call, or since Watch.
func (c *Consumer) Arrived() bool {
	if !c.watching {
		return false
	}
	arrivals := c.ring.arrivals.Load()
	arrived := arrivals != c.arrivals
	c.arrivals = arrivals
	return arrived
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

// Start marks slots as given to the device. If this process dies from here on,
// the manager answers them as failed, and they do not run again.
func (c *Consumer) Start(slots []uint32) {
	for _, slot := range slots {
		if ticket := c.tickets[slot]; ticket != 0 {
			c.back.stages[slot].Store(packStage(ticket, c.generation, StageStarted))
		}
	}
}

// Request is the table's entry for a slot. Fragments is clamped to MaxFragments. The
// caller checks the sizes against its own tensors.
func (c *Consumer) Request(slot uint32) Request {
	r := c.table.Request(slot)
	r.Fragments = min(r.Fragments, c.g.MaxFragments)
	return r
}

// Fragments are a slot's descriptors in use: read-only memory, valid until the
// slot's Complete. The gather checks their bounds.
func (c *Consumer) Fragments(slot uint32) []Fragment {
	return c.table.Fragments(slot)[:c.Request(slot).Fragments]
}

// ResultBuffer returns room for a slot's payload, ResultBytes long. The caller may
// write it until the slot's Complete, which keeps only what the payload needs.
// Slots with a buffer are completed in the order of their ResultBuffer.
//
// If the pool is full, ResultBuffer flushes, and waits until the manager has read
// enough results. It returns nil if that takes longer than two seconds, if this
// consumer was disowned, or if the caller has other buffers: it must complete
// those first.
func (c *Consumer) ResultBuffer(slot uint32) []byte {
	for deadline := int64(0); ; {
		if at, ok := c.pool.reserve(slot, c.ring.read.Load(), c.replyTail+c.completed); ok {
			return c.back.pool[at : at+int(c.g.ResultBytes) : at+int(c.g.ResultBytes)]
		}
		c.Flush()
		now := Now()
		if deadline == 0 {
			deadline = now + int64(c.pool.patience)
		}
		if now >= deadline || c.pool.isReserved() || !c.owns() {
			return nil
		}
		time.Sleep(poolNap)
	}
}

// Complete ends a slot: r and the contents of its ResultBuffer are the answer,
// which the manager sees after Flush. Without a ResultBuffer the answer has no
// payload. Each taken slot is completed once;
// further calls do nothing.
func (c *Consumer) Complete(slot uint32, r Result) {
	ticket := c.tickets[slot]
	if ticket == 0 {
		return
	}
	h := &c.back.headers[slot]
	place, length := c.pool.complete(slot, r.Length, c.replyTail+c.completed)
	h.place.Store(place)
	h.length.Store(length)
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
	// If the slot was withdrawn and published again while this consumer held
	// it, Take may have skipped the new entry.
	if c.ring.tickets[slot].Load() != ticket && c.claim(slot) {
		c.found = append(c.found, slot)
	}
}

// Flush publishes the replies completed since the last Flush. If the manager
// sleeps, Flush wakes it once.
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

// BatchEnded records when a batch ended, in nanoseconds of Now.
func (c *Consumer) BatchEnded(at int64) { c.back.lastBatchEnd.Store(uint64(at)) }

// LastBatchEnd is when the last batch of any process ended; 0 before the first.
func (c *Consumer) LastBatchEnd() int64 { return int64(c.back.lastBatchEnd.Load()) }

// Release gives up the ring after a Flush, and wakes the next owner. That owner
// recovers the pending slots that this consumer held; this consumer must not
// complete them any more.
func (c *Consumer) Release() {
	c.Settle()
	c.Flush()
	c.forget()
	c.free()
}

// Close unmaps the channel and closes its files. An owner calls Release first.
// Afterwards only Interrupt may be called.
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
