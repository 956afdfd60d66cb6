package manager

import (
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/manager/aggregate"
	"github.com/penstock/penstock/manager/ingest"
	"github.com/penstock/penstock/manager/ingest/replay"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/shm/adaptive"
)

// The receive thread of a source of a function. Each turn has these steps:
//
//   1. Receive a burst of datagrams, or wake at the next deadline.
//   2. Under receiver.mu: reassemble requests, and end the expired ones.
//   3. Under function.mu: publish complete requests to an instance's ring.
//   4. Release packet memory that is no longer needed.
//   5. Send messages to clients: NACKs, rejections, repeated answers.
//
// The thread allocates nothing once its buffers have grown to the size of a burst.

// receiver reassembles requests from the datagrams of one source. A function has one
// receiver per kernel socket, or one per queue of a DPDK port. All datagrams of a client go
// to the same receiver (docs/adr/0012-several-receivers.md).
//
// Lock order: receiver.mu, then function.mu. No thread holds the locks of two receivers.
type receiver struct {
	f      *function
	index  int // in function.receivers
	source ingest.Source

	// mu guards the aggregator: the receive thread adds to it, reply threads end requests.
	// The receive thread holds it for one burst.
	mu        adaptive.Mutex
	aggregate *aggregate.Aggregator
	// oldest is aggregate.Oldest, for the other receivers.
	oldest atomic.Int64
}

// burst is the maximum number of datagrams per turn: four reads of 64 KiB in fragments of 1
// KB, so that several reads take the lock only once.
const burst = 256

// afterReceiveError is the pause before the next attempt on a socket that returns errors.
const afterReceiveError = 10 * time.Millisecond

func (r *receiver) receive() {
	defer lockDataPath()() // never unlocked: the thread ends with the goroutine
	f := r.f
	var events aggregate.Events
	var out outbox
	batch := make([]ingest.Datagram, burst)
	noRoom := uint64(0)
	next := int64(0)
	f.awaitPlay()
	for !f.closed.Load() {
		n, err := 0, error(nil)
		switch room := f.playRoom(); {
		case f.played.Load():
			time.Sleep(afterPlay)
		case room == 0:
			time.Sleep(noPlayRoom)
		default:
			n, err = r.source.Receive(batch[:min(room, burst)], next)
		}
		switch {
		case errors.Is(err, ingest.ErrClosed), f.replay.File == "" && errors.Is(err, io.EOF):
			return
		case f.replay.File != "" && err != nil:
			f.endPlay(err)
			n = 0
		case err != nil:
			// The kernel may be short of memory for a while; keep the port open.
			f.log.Error().Err(err).Msg("receive")
			time.Sleep(afterReceiveError)
			n = 0
		}
		starved := false
		if n == 0 {
			had := r.source.Stats().NoRoom
			starved, noRoom = had != noRoom, had
		}
		now := shm.Now()
		events.Reset()
		r.mu.Lock()
		r.aggregate.Add(now, batch[:n], &events)
		if next = r.aggregate.NextDeadline(); next != 0 && next <= now {
			r.aggregate.Expire(now, &events)
			next = r.aggregate.NextDeadline()
		}
		r.oldest.Store(r.aggregate.Oldest())
		r.mu.Unlock()
		if len(events.Whole) > 0 {
			ran := runclock.Now()
			f.mu.Lock()
			for _, slot := range events.Whole {
				f.publish(r, slot, ran)
			}
			f.mu.Unlock()
		}
		r.finish(&events, &out)
		if starved {
			// The slab is full of incomplete requests, and their missing fragments have no
			// room. Evict the oldest of the requests whose memory r can use.
			oldest := r
			if !f.m.ports.parted() {
				oldest = f.withOldest(r)
			}
			events.Reset()
			oldest.mu.Lock()
			oldest.aggregate.EvictOldest(now, &events)
			oldest.oldest.Store(oldest.aggregate.Oldest())
			oldest.mu.Unlock()
			oldest.finish(&events, &out)
		}
	}
}

// finish releases memory that is no longer needed, and sends the messages to clients.
func (r *receiver) finish(events *aggregate.Events, out *outbox) {
	r.source.Release(events.Release)
	r.tell(events, out)
}

// withOldest returns the receiver that has the function's oldest incomplete request; r if
// none has any.
func (f *function) withOldest(r *receiver) *receiver {
	oldest, since := r, r.oldest.Load()
	for _, other := range f.receivers {
		if began := other.oldest.Load(); began != 0 && (since == 0 || began < since) {
			oldest, since = other, began
		}
	}
	return oldest
}

// A capture is replayed once a process serves. When it has ended, the thread wakes now and
// then to check the deadlines of requests that have begun.
const (
	beforePlay = 10 * time.Millisecond
	afterPlay  = 10 * time.Millisecond
	noPlayRoom = time.Millisecond
)

// playRoom returns how many datagrams may be received now. A capture that is replayed at
// full speed keeps half of the slots for requests with interleaved fragments. So no request
// is rejected that would have found room a moment later.
func (f *function) playRoom() int {
	if f.replay.File == "" || f.replay.Speed != 0 {
		return burst
	}
	half := max(1, int(f.geometry.Slots)/2)
	return max(0, half-f.inFlight())
}

// awaitPlay returns when datagrams may be received: at once for a network port.
func (f *function) awaitPlay() {
	if f.replay.File == "" {
		return
	}
	for !f.closed.Load() {
		f.mu.Lock()
		serving := slices.ContainsFunc(f.instances, func(in *instance) bool { return in.serving })
		f.mu.Unlock()
		if serving {
			f.log.Info().Str("file", f.replay.File).Float64("speed", f.replay.Speed).Msg("plays capture")
			return
		}
		time.Sleep(beforePlay)
	}
}

// endPlay records the end of a capture: io.EOF, or the error that stopped the replay.
func (f *function) endPlay(why error) {
	f.played.Store(true)
	e := f.log.Info()
	if !errors.Is(why, io.EOF) {
		e = f.log.Error().Err(why)
	}
	e = e.Str("file", f.replay.File).Uint64("datagrams", f.sourceStats().Datagrams)
	if r, ok := f.receivers[0].source.(*replay.Source); ok {
		s := r.Skipped()
		e = e.Dict("skipped_frames", zerolog.Dict().Uint64("foreign", s.Foreign).Uint64("fragments", s.Fragments).
			Uint64("cut", s.Cut).Uint64("malformed", s.Malformed))
	}
	e.Msg("capture has been played")
}

// publish passes a complete request to the instance with the least work for its share,
// among those that have a process. The caller holds mu: the ring has one producer at a
// time.
func (f *function) publish(r *receiver, slot uint32, now time.Duration) {
	in := f.instances[0]
	for _, other := range f.instances[1:] {
		if other.serving && !in.serving ||
			other.serving == in.serving && float64(other.inFlight+1)*in.weight < float64(in.inFlight+1)*other.weight {
			in = other
		}
	}
	f.flights[slot] = flight{instance: in, published: now}
	f.owners[slot].Store(uint32(r.index))
	in.inFlight++
	in.arrivals++
	in.tally.arrive(f.table.Request(slot))
	f.accepted.Add(1)
	in.channel.Publish(slot)
}

// tell sends the messages to the clients of a turn.
func (r *receiver) tell(events *aggregate.Events, out *outbox) {
	f := r.f
	for i := range events.Told {
		a := &events.Told[i]
		f.results[a.Status].Add(1)
		a.ModelVersion = f.version.Load()
		out.result(a.To, a.RequestID, &a.Result, nil, false)
	}
	for i := range events.Again {
		a := &events.Again[i]
		if a.ModelVersion == 0 { // the request was not run
			a.ModelVersion = f.version.Load()
		}
		out.result(a.To, a.RequestID, &a.Result, a.Payload, true)
	}
	for i := range events.Wishes {
		w := &events.Wishes[i]
		out.wish(w.To, w.RequestID, w.Total, w.Count, w.Present)
	}
	r.send(out)
}

// send sends an outbox through the receiver's source and counts the datagrams that were
// lost.
func (r *receiver) send(out *outbox) {
	if lost := out.send(r.source); lost > 0 {
		r.f.unsent.Add(uint64(lost))
	}
}
