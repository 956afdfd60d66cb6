package loop

import (
	"cmp"
	"errors"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// flight is a batch from its dispatch to its answers. Each step has a time stamp:
//
//	start     1. mark the slots as started; from here on this process answers them    dispatched
//	          2. Gather, Pad: the batch tensor                                        gathered
//	          3. InferBatch; in a lane behind the batch before
//	fetch     4. Fetch: the results
//	end       5. Wait: everything is done; the place is free                          inferred
//	complete  6. decode, complete, flush
//
// On a CPU each step is done when its call returns. On a GPU steps 2 to 4 are queued, and gathered
// is computed back from inferred with the device's measurements. There the next batch starts between steps 5 and 6
// if it may, so that the device has work meanwhile. Its outputs are fetched after step 6, because the results of
// both have the same memory.
type flight struct {
	slot   int // the device's
	size   *Size
	batch  []batching.Request
	padded int
	// The arguments of Start and Gather, with room for the largest batch.
	slots    []uint32
	requests []device.Request
	refused  []bool

	aggregated time.Duration // of the batch's oldest request
	waited     time.Duration // by batching.WaitForRunning
	late       int
	full       bool // it has as many requests as it may have
	gate.Begun
	followed bool // it was queued behind another member's batch

	dispatched, gathered, inferred int64
	began                          int64 // dispatched, or the end of the batch that it was queued behind
	bad                            error // why single requests were rejected
	err                            error // why the whole batch failed
}

func newFlight(most int) flight {
	return flight{
		batch:    make([]batching.Request, 0, most),
		slots:    make([]uint32, 0, most),
		requests: make([]device.Request, 0, most),
		refused:  make([]bool, most),
	}
}

// IsLost reports whether an error means that the device failed for good. A framework may return
// CUDA's error for it.
func IsLost(err error) bool { return errors.Is(err, device.ErrLost) || errors.Is(err, cuda.ErrLost) }

// MergeErrors returns the more important of two errors, either of which may be nil: the first,
// unless the second is a lost device.
func MergeErrors(first, second error) error {
	if first == nil || IsLost(second) {
		return second
	}
	return first
}

// begin dispatches l.choice. finish answers the requests of any error; begin returns the errors that
// affect the whole batch.
func (l *Loop) begin() error { return l.fetch(l.start()) }

// start is begin without the results.
func (l *Loop) start() *flight {
	f := l.flights.add()
	c := l.choice
	f.batch = append(f.batch[:0], l.batch()...)
	f.size, f.padded, f.waited, f.late, f.full = &l.sizes[c.Size], c.Padded, c.Waited, c.Late, c.Full
	f.slots, f.requests = f.slots[:0], f.requests[:0]
	for _, r := range f.batch {
		f.slots = append(f.slots, r.Slot)
		entry := l.Ring.Request(r.Slot)
		f.requests = append(f.requests, device.Request{Fragments: l.Ring.Fragments(r.Slot), Bytes: entry.Bytes, Picture: entry.Picture()})
	}
	idle := int64(-1)
	switch {
	case !l.served:
		l.served = true
		l.figures.addHandover(l.idle(l.acquired))
		l.Ring.Settle()
	case l.moves.made():
		if idle = l.idle(l.moves.begun); l.flights.count > 1 {
			idle = min(idle, 0) // the device was busy
		}
	}

	l.Ring.Start(f.slots)
	oldest := l.Ring.Request(firstComplete(f.batch).Slot)
	f.aggregated = time.Duration(oldest.Complete - oldest.FirstFragment)
	f.dispatched = shm.Now()
	f.began = f.dispatched
	f.Begun = l.Gate.Begin(f.dispatched, f.slot, c)
	l.Queue.Begin(f.dispatched, c, f.Demoted)
	l.choice = batching.Choice{}
	if l.Prioritized != nil {
		if err := l.Prioritized.Choose(f.slot, l.Gate.Account.BatchLevel(f.slot, f.padded, f.Demoted)); err != nil {
			l.Log.Warn("cannot change the priority; the batch runs at that of the one before", "error", err)
		}
	}
	f.bad, f.err = l.gather(f)
	l.states.load(f.size.Tensors[f.slot], l.Ring, f)
	f.gathered = shm.Now()
	if f.followed = false; f.err == nil {
		f.followed, f.err = l.Gate.Place.Follow(f.slot)
	}
	if f.err == nil {
		f.err = f.size.Infer(f.slot, f.padded)
	}
	if f.err != nil {
		f.failImages()
	}
	l.completeMove(idle)
	return f
}

// fetch queues the copy of a batch's results.
func (l *Loop) fetch(f *flight) error {
	images := len(f.batch)
	if f.err != nil {
		images = 0 // still wait for the queued work, which also reveals a lost device
	}
	f.err = MergeErrors(f.err, l.Device.Fetch(f.slot, images))
	if f.err == nil && !f.Demoted {
		l.Gate.Place.Launch(f.slot, f.dispatched, l.Queue.Typical(f.padded), l.Queue.Lead)
	}
	return f.err
}

// gather fills the batch tensor and blanks its padding. bad is about single requests, err about the
// whole batch.
func (l *Loop) gather(f *flight) (bad, err error) {
	n := len(f.batch)
	d, input := f.size.Device, f.size.Tensors[f.slot].InputOf(f.padded)
	err = d.Gather(f.slot, input, f.requests, f.refused[:n])
	if err != nil && !spoilsBatch(err) {
		bad, err = err, nil
	}
	if err == nil {
		err = d.Pad(f.slot, input, n, f.padded)
	}
	return bad, err
}

// failImages fails single requests if the error is about these.
func (f *flight) failImages() {
	var some *framework.ImagesError
	if errors.As(f.err, &some) {
		for _, image := range some.Images {
			f.refused[image] = true
		}
		f.bad, f.err = cmp.Or(f.bad, f.err), nil
	}
}

// spoilsBatch reports whether an error of Gather affects the whole batch, not just single requests.
func spoilsBatch(err error) bool {
	var request *device.RequestError
	return !errors.As(err, &request)
}

// decode decodes images of a batch from the i-th on, at least one, and returns what became of them.
func (l *Loop) decode(f *flight, i int) []room {
	d := l.decoding
	d.rooms = d.rooms[:0]
	for k, r := range f.batch[i:min(len(f.batch), i+cap(d.rooms))] {
		var buffer []byte
		var place wire.Place
		err := f.err
		if err == nil && f.refused[i+k] {
			err = f.bad
		}
		if err == nil {
			if buffer = l.Ring.ResultBuffer(r.Slot); buffer == nil {
				if k > 0 {
					break // until those before have been completed
				}
				err = errNoRoom
			}
		}
		if err == nil {
			place = placeOf(&f.size.Card.Input, f.requests[i+k].Picture)
		}
		d.rooms = append(d.rooms, room{buffer: buffer[:0], lowest: l.Ring.Request(r.Slot).LowestScore, place: place, err: err})
	}
	d.run(f.size, f.slot, i)
	return d.rooms
}

// firstComplete returns the request of a batch that was completed first.
func firstComplete(batch []batching.Request) *batching.Request {
	oldest := &batch[0]
	for i := range batch {
		if batch[i].Whole < oldest.Whole {
			oldest = &batch[i]
		}
	}
	return oldest
}

// done returns a batch in flight that has ended, or nil.
func (l *Loop) done() *flight {
	f := l.flights.oldest()
	if done, _ := l.Device.Done(f.slot); done {
		return f
	}
	if l.Queue.Mixed() {
		f = l.flights.newest()
		if done, _ := l.Device.Done(f.slot); done {
			return f
		}
	}
	return nil
}

// finish ends a batch and answers its requests. Before that, the next one starts if it may. If requests could not
// get their results, finish logs and returns the first error. Only a lost device affects more than these requests.
func (l *Loop) finish() error {
	ended := l.end()
	next := l.startNext(ended)
	err := l.complete(ended)
	if err != nil {
		l.Log.Error("batch failed", "error", err, "batch", len(ended.batch))
	}
	if next == nil {
		return err
	}
	return MergeErrors(err, l.fetch(next))
}

// end waits for the oldest batch in flight, unless another one has ended that need not wait for it. It removes
// the batch.
func (l *Loop) end() *flight {
	f := cmp.Or(l.done(), l.flights.oldest())
	took, err := l.Device.Wait(f.slot)
	inferred := shm.Now()
	if took > 0 {
		f.gathered = max(f.dispatched, inferred-int64(took))
		if !f.Demoted && !f.followed {
			l.Queue.LearnLead(time.Duration(f.gathered - f.dispatched))
		}
	}
	var next *shm.Rank
	if rank, waits := l.next(inferred); waits {
		next = &rank
	}
	if began := l.Gate.End(inferred, &f.Begun, next); f.followed {
		// The thread of the batch before may have noticed its end late: trust the device more.
		f.began = min(max(f.dispatched, began), inferred-int64(took))
	}
	l.Residence.Ran(inferred, l.SmallestBatch())
	f.err = MergeErrors(f.err, err)
	if f.err == nil {
		l.Gate.Account.End(f.padded, f.Demoted, f.dispatched, inferred)
	}
	return l.remove(f, inferred)
}

// remove frees the place of a batch that has ended. The batch is valid until the next call.
func (l *Loop) remove(f *flight, inferred int64) *flight {
	f, i := l.flights.remove(f)
	f.inferred = inferred
	l.Queue.Remove(i, inferred)
	return f
}

// startNext starts the next batch before the requests of one that has ended are answered. It returns nil if none may
// begin at once.
func (l *Loop) startNext(ended *flight) *flight {
	switch {
	case !l.early || IsLost(ended.err) || l.mustRelease():
		return nil
	case l.moves.ordered() || l.moves.made() || l.larger.Load() != nil:
		return nil // the next step needs the place
	}
	if l.take(); !l.mayBegin() {
		return nil
	}
	if ok, _ := l.admit(); !ok {
		return nil
	}
	return l.start()
}

// complete answers the requests of a removed batch, and returns the first error.
func (l *Loop) complete(f *flight) error {
	n := len(f.batch)
	var firstErr error
	for i := 0; i < n; {
		for _, r := range l.decode(f, i) {
			result := shm.Result{
				Status: uint8(wire.StatusFailed), Batch: uint16(n), ModelVersion: l.Card.Version,
				Dispatched: f.dispatched, Gathered: f.gathered, Inferred: f.inferred,
			}
			if r.err == nil {
				result.Status, result.Kind, result.Length = uint8(wire.StatusOK), r.kind, uint32(len(r.payload))
			} else if firstErr == nil {
				firstErr = r.err
			}
			slot := f.batch[i].Slot
			l.states.save(f.size.Tensors[f.slot], l.Ring, slot, i, r.err != nil)
			l.completeSlot(slot, result)
			i++
		}
	}
	ended := shm.Now()
	l.Ring.BatchEnded(ended)
	l.Ring.Flush()
	l.pendReleased()
	l.settleMove()
	l.Queue.LearnAnswering(time.Duration(ended - f.inferred))

	l.pause = l.governor.spend(l.Share.Load(), f.dispatched, ended)
	l.Queue.End(batching.Observation{
		Batch: n, Padded: f.padded, Demoted: f.Demoted,
		Elapsed:    time.Duration(ended-f.began) + l.pause,
		Ended:      ended,
		Aggregated: f.aggregated,
		Waited:     f.waited,
		Late:       f.late,
		Full:       f.full,
	}, l.pause, f.err != nil)
	l.figures.ran.Add(int64(n))
	l.figures.publish(l.Queue)
	return firstErr
}
