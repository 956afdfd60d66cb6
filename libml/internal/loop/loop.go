package loop

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/libml/conductor"
	"github.com/penstock/penstock/libml/decode"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/internal/tensors"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Loop is the batch loop of a process. It owns the ring from Acquire to Release and belongs to one thread. A
// batch takes these steps:
//
//  1. Take the complete requests. When the batching rule allows a batch, pick it by priority
//     and deadline, as large as the rule allows. Answer `late` for requests that can no
//     longer meet their deadline.
//  2. Begin the batch: gather the fragments, infer, fetch the outputs (flight.go).
//  3. Look for new work while it runs, if the device can run a second batch next to it.
//     Begin that one when it is time (batching.Queue). In a worker the second
//     batch is another member's (package gate).
//  4. Finish the batch: decode each image's outputs into its result, flush. On a GPU the next one
//     begins before if it may.
//  5. Tell the rule. If the process still owns the ring, continue with 1.
//
// On a CPU a batch is done when begin returns, so step 3 is empty. The loop moves to other
// multiprocessors between two batches or next to one (move.go).
//
// The loop allocates nothing once it runs, except for new batch sizes.
type Loop struct {
	Config

	larger  atomic.Pointer[batching.Rule] // the rule with more batch sizes, for extend
	choice  batching.Choice               // the next batch
	flights flights                       // in the order of Queue.Running

	sizes    []Size       // by batching.Request.Size
	inputs   models.Sizes // of Card
	decoding *decoding
	states   *states
	governor governor
	naps     naps
	moves    moves
	figures  figures

	early     bool          // a batch may begin before the requests of the one before are answered
	pause     time.Duration // that the share requires after the last batch
	retryAt   int64         // when a batch that was not admitted next to one in flight asks again
	joins     bool          // the gate lets the next batch begin next to those in flight
	acquired  int64         // when this process got the ring
	served    bool          // a batch has begun
	announced bool

	taken    []uint32 // buffer of take
	released []uint32 // buffer of answerAll and complete
}

// Config is what a process has prepared for its loop.
type Config struct {
	Process Process
	Log     *slog.Logger
	Card    *models.Card
	SLO     time.Duration

	Ring   *shm.Consumer
	Slots  int // maximum number of requests in flight
	Device device.Device
	// Prioritized is Device, if its batches have levels; else nil.
	Prioritized device.Partitioned
	Tensors     []*tensors.Tensors // by the device's slot
	Decoders    []*decode.Decoder  // of NewDecoders
	// Smaller are the sizes of the input before Card's own.
	Smaller []Size

	// Queue has a rule, and the times of its batch sizes. Its Places are how many batches may be in flight.
	Queue *batching.Queue
	Gate  *gate.Gate
	// Residence is nil if the model stays in memory.
	Residence *conductor.Member
	// Share is the present order; nil before the first.
	Share *atomic.Pointer[Share]
	// Ending tells the loop to release its ring at the next batch boundary.
	Ending *atomic.Bool

	BusyPoll bool // poll for the end of a batch instead of napping
	CPUs     int  // for inference functions
	Threads  int  // of a batch on a CPU
}

// Size is what batches of one size of the input need.
type Size struct {
	Card     *models.Card // of this size
	Device   device.Device
	Tensors  []*tensors.Tensors // by the device's slot
	Decoders []*decode.Decoder
	Infer    func(slot, n int) error // framework.Framework.InferBatch
}

// Process is what a loop asks of its process, on the thread of the loop.
type Process interface {
	// InferBatch is framework.Framework.InferBatch.
	InferBatch(slot, n int) error
	// CompareNext runs the next batch that compares answers of a ladder with more batch sizes. It reports whether none is
	// left. It returns only errors that wrap device.ErrLost; another one ends the process.
	CompareNext(slot int, ladder []int) (compared bool, err error)
	// LoadModel and EvictModel carry out an order of the conductor. They return only errors that wrap
	// device.ErrLost.
	LoadModel() error
	EvictModel() error
	// DeviceLost returns the error of another goroutine that found the device lost, or nil.
	DeviceLost() error
	// Active is called when the loop serves.
	Active()
	// Released is called when the loop has released the ring for its next owner.
	Released()
}

// Share is a process's part of the device, as ordered.
type Share struct {
	Percent  float64
	Governor bool // no cgroup enforces the share
	Terms    gate.Terms
	MaxBatch int // 0: no limit
}

// maxWait bounds how long an idle loop sleeps before it checks again.
const maxWait = 100 * time.Millisecond

// firstLead is batching.Queue.Lead until a lead has been measured.
const firstLead = 100 * time.Microsecond

// New returns the loop of a process that is ready.
func New(c Config) *Loop {
	c.Queue.Lead = firstLead
	return &Loop{
		Config:   c,
		sizes:    append(slices.Clip(c.Smaller), Size{c.Card, c.Device, c.Tensors, c.Decoders, c.Process.InferBatch}),
		inputs:   c.Card.Sizes(),
		flights:  newFlights(c.Queue.Places, c.Card.MaxBatch()),
		governor: newGovernor(c.CPUs, c.Threads),
		naps:     naps{poll: c.BusyPoll},
		taken:    make([]uint32, c.Slots),
		decoding: newDecoding(c.Card, c.Decoders),
		states:   newStates(c.Card),
		// The next batch's inference writes states, and on a CPU results, that have not been read.
		early: c.Queue.Places > 1 && len(c.Card.State) == 0,
	}
}

// Run waits for the ring and serves it until the epoch changes or a drain is ordered. Then it
// releases the ring. An error that wraps device.ErrLost means that the device failed: the requests
// in flight are answered, the others are left to the next owner.
func (l *Loop) Run() error {
	if owned, err := l.acquire(); !owned {
		return err
	}
	defer func() { l.Gate.Withdraw(shm.Now()) }()
	l.decoding.start()
	defer l.decoding.stop()

	for _, slot := range l.Ring.Recover(l.taken[:0]) {
		l.addPending(slot)
	}
	for !l.mustRelease() {
		if err := l.step(); err != nil {
			return l.abandon(err)
		}
	}
	l.Gate.StopWaiting()
	l.Ring.Settle()
	if err := l.Process.DeviceLost(); err != nil {
		return l.abandon(err)
	}
	for l.flights.count > 0 {
		if err := l.finish(); IsLost(err) {
			return l.abandon(err)
		}
	}
	l.release()
	return nil
}

// acquire waits for the ring. Meanwhile it carries out the conductor's orders, and moves. It returns
// false if the process must end before, with the reason if that is a failure.
func (l *Loop) acquire() (owned bool, err error) {
	for {
		if err := l.conduct(); err != nil {
			return false, err
		}
		owned, err := l.Ring.Acquire(shm.Now() + int64(maxWait))
		if err != nil {
			return false, fmt.Errorf("wait for the ring: %w", err)
		}
		if owned {
			l.acquired = shm.Now()
			return true, nil
		}
		if l.Ending.Load() {
			return false, l.Process.DeviceLost()
		}
		if err := l.extend(); err != nil {
			return false, err
		}
		l.startMove()
		l.completeMove(-1)
	}
}

// mustRelease reports whether no batch may begin any more.
func (l *Loop) mustRelease() bool { return !l.Ring.Entitled() || l.Ending.Load() }

// step begins a batch, finishes one, or waits for one of these. The error wraps device.ErrLost.
func (l *Loop) step() error {
	if err := l.prepare(); err != nil {
		return err
	}
	await, err := l.beginNext()
	if err != nil || !await || !l.await() {
		return err
	}
	return l.finishNext()
}

// prepare does what comes before the choice of a batch: it takes requests, adds batch sizes, moves, and loads
// or evicts the model.
func (l *Loop) prepare() error {
	l.take()
	if err := l.extend(); err != nil {
		return err
	}
	l.startMove()
	return l.conduct()
}

// beginNext begins a batch if one may begin, and otherwise waits if none is in flight. It reports whether to
// await a batch: one is in flight, and no other one can begin.
func (l *Loop) beginNext() (await bool, err error) {
	if !l.mayBegin() {
		if l.flights.count == 0 {
			l.sleep()
			return false, nil
		}
		return true, nil
	}
	switch ok, retryAt := l.admit(); {
	case !ok && l.flights.count > 0:
		l.retryAt, l.joins = min(retryAt, shm.Now()+int64(retryNap)), false
		return true, nil
	case !ok:
		l.wait(retryAt)
		return false, nil
	}
	if err := l.begin(); IsLost(err) {
		return false, err
	}
	return l.flights.full(), nil
}

// finishNext finishes a batch that has ended.
func (l *Loop) finishNext() error {
	if err := l.finish(); IsLost(err) {
		return err
	}
	l.announce()
	l.rest(shm.Now() + int64(l.pause))
	return nil
}

// admit picks the next batch and reports whether it may begin. If not, the loop waits until retryAt or until it
// is woken; retryAt is 0 if there is nothing to wait for.
func (l *Loop) admit() (ok bool, retryAt int64) {
	l.pick()
	now := shm.Now()
	if l.choice.Batch > 0 && !l.Residence.Resident() {
		if l.Residence.Failure(now) != nil {
			failed := l.Queue.Pending
			l.Queue.Pending, l.choice = failed[:0], batching.Choice{}
			l.answerAll(failed, wire.StatusFailed)
		}
	}
	if l.choice.Batch == 0 {
		l.Gate.Withdraw(now)
		return false, 0
	}
	batch := l.batch()
	return l.Gate.Admit(now, l.flights.free(), l.choice.Padded, lane.Job{
		Complete: firstComplete(batch).Whole, Deadline: earliestDeadline(batch), Batch: l.Queue.Expected(len(batch)),
		Requests: len(batch), Demoted: l.choice.Demoted,
	})
}

// wait waits, with a picked batch that may not begin, until a time or until the loop is woken.
func (l *Loop) wait(until int64) {
	if until == 0 {
		return
	}
	l.Ring.Settle()
	l.announce()
	if !l.Gate.Wait(until) {
		l.Ring.Wait(until)
	}
}

// sleep waits for work, with nothing in flight.
func (l *Loop) sleep() {
	l.Gate.Withdraw(shm.Now())
	l.Ring.Settle()
	l.announce()
	l.completeMove(-1)
	l.Ring.Wait(l.waitUntil())
}

// release gives the ring to its next owner.
func (l *Loop) release() {
	l.Gate.Withdraw(shm.Now())
	l.Ring.Release()
	// The next owner has been woken, perhaps on this CPU, and has work to do. The rest here can
	// wait. Sleep in the kernel: Go's own sleep would first look for other goroutines to run.
	nap(releaseNap)
	l.Process.Released()
}

// take moves complete requests from the ring to pending.
func (l *Loop) take() {
	for _, slot := range l.taken[:l.Ring.Take(l.taken)] {
		l.addPending(slot)
	}
}

// batch returns the requests of the picked batch.
func (l *Loop) batch() []batching.Request {
	return l.Queue.Pending[:l.choice.Batch]
}

func earliestDeadline(batch []batching.Request) int64 {
	earliest := int64(math.MaxInt64)
	for i := range batch {
		earliest = min(earliest, batch[i].Deadline)
	}
	return earliest
}

// mayBegin reports whether a batch may begin now.
func (l *Loop) mayBegin() bool {
	now := shm.Now()
	switch {
	case l.flights.count == 0:
		return len(l.Queue.Pending) > 0 && l.queueMayBegin(now)
	case len(l.Queue.Pending) > 0 && now < l.retryAt:
		return false
	}
	next, waits := l.next(now)
	if l.joins = waits && l.Gate.Joins(now, next); l.joins && l.queueMayBegin(now) {
		return true
	}
	l.Gate.StopWaiting()
	return false
}

// next returns the rank of the next batch, and false if no request is pending.
func (l *Loop) next(now int64) (rank shm.Rank, waits bool) {
	if len(l.Queue.Pending) == 0 {
		return rank, false
	}
	padded := l.Queue.Rule.Pad(min(len(l.Queue.Pending), l.Queue.Size()))
	return l.Gate.Rank(l.flights.free(), padded, !l.guaranteed(now), earliestDeadline(l.Queue.Pending)), true
}

func (l *Loop) queueMayBegin(now int64) bool {
	l.Queue.Elsewhere = l.moves.incomplete() // the first batch after the move runs next to the last one before it
	return l.Queue.MayBegin(now, !l.guaranteed(now))
}

// guaranteed reports whether a batch that begins now is within the guarantee.
func (l *Loop) guaranteed(now int64) bool {
	var terms gate.Terms
	if share := l.Share.Load(); share != nil {
		terms, l.Queue.MaxBatch = share.Terms, share.MaxBatch
	}
	guaranteed, changed := l.Gate.Account.Guaranteed(now, terms, l.Queue.Size())
	if changed {
		l.Queue.Retry()
	}
	return guaranteed
}

// extend switches to a rule with more batch sizes, if there is one. Before, it compares the answers of these
// sizes, one batch per call: requests wait meanwhile.
func (l *Loop) extend() error {
	larger := l.larger.Load()
	if larger == nil || l.flights.full() {
		return nil
	}
	l.Gate.StopWaiting() // this takes time
	compared, err := l.Process.CompareNext(l.flights.free(), larger.Ladder())
	if err != nil {
		return err
	}
	if compared && l.larger.CompareAndSwap(larger, nil) { // unless there is a larger one by now
		l.Queue.Extend(larger)
		l.figures.publish(l.Queue)
	}
	return nil
}

// Extend gives the loop a rule with more batch sizes. It may be called on any goroutine.
func (l *Loop) Extend(larger *batching.Rule) { l.larger.Store(larger) }

// waitUntil is when a loop with nothing in flight checks again if no work arrives. It is at the
// latest when the pending requests may be a batch.
func (l *Loop) waitUntil() int64 {
	until := shm.Now() + int64(maxWait)
	if l.larger.Load() != nil {
		until = shm.Now() // compare its sizes while no request waits
	}
	if len(l.Queue.Pending) > 0 {
		until = min(until, l.Queue.ReadyAt())
	}
	return until
}

// await returns true when it is time to finish a batch in flight. It returns false when another
// batch may begin next to it, or when a move should be made. If none may begin, await returns at
// once and finish waits, unless either of two batches may end first. Otherwise await checks the
// device and the ring, and naps between two checks. The naps get shorter as the expected end comes
// nearer; at last it polls.
func (l *Loop) await() bool {
	if l.flights.full() && !l.Queue.Mixed() {
		l.offerLane()
		return true
	}
	for {
		for range doneChecks {
			if l.done() != nil {
				return true
			}
		}
		if l.mustRelease() {
			l.Gate.StopWaiting()
			return true
		}
		if l.take(); !l.flights.full() && l.moves.ordered() || l.mayBegin() {
			return false
		}
		l.nap()
	}
}

// offerLane naps until the batch in flight is near its end, and then lets the lane queue another
// member's batch behind it.
func (l *Loop) offerLane() {
	for l.done() == nil {
		left := l.Gate.Place.Offer(shm.Now())
		if left <= 0 {
			return
		}
		l.naps.nap(left)
	}
}

// nap naps for a part of the time that is left. If the next batch waits for its process's turn, that wakes the loop.
func (l *Loop) nap() {
	now := shm.Now()
	left := l.left(now)
	if d := l.naps.next(left); d > 0 && l.Gate.Wait(now+int64(d)) {
		l.retryAt = 0
		return
	}
	l.naps.nap(left)
}

// left is the time until a batch in flight is expected to end, or until another one may begin next to it.
func (l *Loop) left(now int64) time.Duration {
	left := l.Queue.Left(0, now)
	if l.Queue.Mixed() {
		left = min(left, l.Queue.Left(1, now))
	}
	if at, ok := l.Queue.OverlapAt(now); ok && l.joins {
		left = min(left, time.Duration(max(at, l.Queue.ReadyAt())-now))
	}
	return left
}

// retryNap bounds how late a batch begins that waits for its turn next to one in flight.
const retryNap = 50 * time.Microsecond

// doneChecks is how often await checks the device between two checks of the ring.
const doneChecks = 64

// abandon ends the loop on a lost device. It answers the requests in flight as failed and releases
// the ring; the next owner finds the pending requests there. It returns why.
func (l *Loop) abandon(why error) error {
	for l.flights.count > 0 {
		f := l.flights.oldest()
		f.err = why
		now := shm.Now()
		l.Gate.End(now, &f.Begun, nil)
		l.complete(l.remove(f, now))
	}
	l.Ring.Release()
	return why
}

// rest waits for the share's pause. It ends early when the ring must be released.
func (l *Loop) rest(until int64) {
	for l.pause > 0 && !l.mustRelease() {
		now := shm.Now()
		if now >= until {
			return
		}
		nap(min(time.Duration(until-now), restStep))
	}
}

// restStep bounds how late a resting loop notices that it must release its ring.
const restStep = 200 * time.Microsecond

// releaseNap is how long a loop sleeps after it has released the ring: the time of a few batches.
const releaseNap = 5 * time.Millisecond

// announce tells the process that it serves. If work was waiting, the loop calls it after the first batch, so
// that the ring is not idle for longer.
func (l *Loop) announce() {
	if l.announced {
		return
	}
	l.announced = true
	l.Process.Active()
}

// addPending adds a taken request to the pending ones, unless it must wait for another one of its stream.
func (l *Loop) addPending(slot uint32) {
	if !l.states.hold(l.Ring, slot) {
		l.pend(slot)
	}
}

func (l *Loop) pend(slot uint32) {
	r := l.Ring.Request(slot)
	l.Residence.Request(r.FirstFragment)
	l.Queue.Add(batching.Request{
		Slot: slot, Whole: r.Complete, Deadline: r.Deadline, Priority: r.Priority, Address: r.Address, Client: r.Client, Size: l.sizeOf(r),
	})
}

// sizeOf returns the size for a request. The gather refuses a request that fits none.
func (l *Loop) sizeOf(r shm.Request) uint16 {
	size, _ := l.inputs.OfBytes(int(r.Bytes))
	if r.Format != 0 {
		size = l.inputs.OfPicture(int(r.Width), int(r.Height))
	}
	return uint16(size)
}

// pick chooses the next batch and answers requests that are late. The batch stays pending until it
// begins.
func (l *Loop) pick() {
	now := shm.Now()
	demoted := !l.guaranteed(now)
	var refilled int64
	if demoted {
		refilled = l.Gate.Account.Refilled(now)
	}
	var late []batching.Request
	l.choice, late = l.Queue.Pick(now, demoted, refilled)
	if len(late) == 0 {
		return
	}
	l.answerAll(late, wire.StatusLate)
	if l.choice.Batch == 0 {
		l.figures.publish(l.Queue)
	}
}

// answerAll answers requests without a batch.
func (l *Loop) answerAll(requests []batching.Request, status wire.Status) {
	for _, r := range requests {
		l.completeSlot(r.Slot, shm.Result{Status: uint8(status), ModelVersion: l.Card.Version})
	}
	l.Ring.Flush()
	l.pendReleased()
}

// completeSlot answers a request. The next one of its stream, if it waits, is pending after pendReleased.
func (l *Loop) completeSlot(slot uint32, result shm.Result) {
	if next, ok := l.states.next(l.Ring, slot); ok {
		l.released = append(l.released, next)
	}
	l.Ring.Complete(slot, result)
}

func (l *Loop) pendReleased() {
	for _, slot := range l.released {
		l.pend(slot)
	}
	l.released = l.released[:0]
}

// idle returns how long the ring has been idle: since the last batch's end, or since the next batch
// could have begun if that was later. It returns -1, not idle, if no work had arrived by the time
// at which it could have been taken.
func (l *Loop) idle(ready int64) int64 {
	last, since := l.Ring.LastBatchEnd(), l.Queue.Rule.Since(l.Queue.State, l.batch())
	if last == 0 || since > ready {
		return -1
	}
	return shm.Now() - max(last, since)
}
