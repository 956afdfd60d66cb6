package datapath

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/datapath/adaptive"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/shm"
)

// The receive thread of a source. Each turn has these steps:
//
//   1. Receive a burst of datagrams, or wake at the next deadline.
//   2. Under receiver.mu: reassemble requests, and end the expired ones.
//   3. Announce new requests to processes without their model in memory. Under Port.mu:
//      publish complete requests to a queue's ring.
//   4. Release packet memory that is no longer needed.
//   5. Send messages to clients and cameras: NACKs, rejections, repeated answers.
//
// If the source had no room for a datagram, the turn also evicts the oldest incomplete request.
//
// The thread allocates nothing once its buffers have grown to the size of a burst.

// receiver reassembles requests from the datagrams of one source. A port has one receiver per
// kernel socket, or one per queue of a DPDK port. All datagrams of a client go to the same
// receiver (docs/adr/0012-several-receivers.md).
type receiver struct {
	port   *Port
	index  int // in Port.receivers
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

// receiveTurn holds the data of a receive thread.
type receiveTurn struct {
	batch  [burst]ingest.Datagram
	events aggregate.Events
	out    outbox
	next   int64  // the next deadline of an incomplete request, shm.Now; 0: none
	noRoom uint64 // ingest.Stats.NoRoom of the last turn without a datagram
}

// run is the receive thread.
func (r *receiver) run() {
	defer lockThread()() // never unlocked: the thread ends with the goroutine
	t := &receiveTurn{}
	for !r.port.stopped.Load() {
		n, err := r.source.Receive(t.batch[:], t.next)
		if errors.Is(err, ingest.ErrClosed) {
			return
		}
		if err != nil {
			// The kernel may be short of memory for a while; keep the port open.
			r.port.log.Error().Err(err).Msg("receive")
			time.Sleep(afterReceiveError)
			n = 0
		}
		starved := n == 0 && r.starved(t)
		now := shm.Now()
		r.reassemble(t, n, now)
		r.port.announce(t.events.Begun)
		r.port.publish(r, t.events.Complete)
		r.finish(t)
		if starved {
			r.port.evictOldest(r, t, now)
		}
	}
}

// reassemble adds n datagrams to their requests and ends the expired requests.
func (r *receiver) reassemble(t *receiveTurn, n int, now int64) {
	t.events.Reset()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.aggregate.Add(now, t.batch[:n], &t.events)
	if t.next = r.aggregate.NextDeadline(); t.next != 0 && t.next <= now {
		r.aggregate.Expire(now, &t.events)
		t.next = r.aggregate.NextDeadline()
	}
	r.oldest.Store(r.aggregate.Oldest())
}

// announce tells the processes that requests have begun. Any of the queues may get them.
func (p *Port) announce(begun int) {
	if begun == 0 {
		return
	}
	for _, q := range p.all() {
		q.channel.Announce()
	}
}

// publish passes complete requests of a receiver to the queues.
func (p *Port) publish(r *receiver, slots []uint32) {
	if len(slots) == 0 {
		return
	}
	now := runclock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, slot := range slots {
		q, request := p.soonest(), p.table.Request(slot)
		p.flights[slot] = flight{queue: q, since: now + extraTime(request, p.objective)}
		p.owners[slot].Store(uint32(r.index))
		q.inFlight++
		q.arrivals++
		q.window.Arrive(request)
		p.counters.accepted.Add(1)
		q.channel.Publish(slot) // under mu: the ring has one producer at a time
	}
}

// soonest returns the open queue that will answer another request first, among those that have a process. On ties it is the
// one with the fewest requests. The caller holds mu.
func (p *Port) soonest() *Queue {
	queues := p.all()[:p.open]
	best := queues[0]
	for _, q := range queues[1:] {
		switch at, first := q.answersIn(), best.answersIn(); {
		case q.serving != best.serving:
			if q.serving {
				best = q
			}
		case at < first || at == first && q.inFlight < best.inFlight:
			best = q
		}
	}
	return best
}

// finish releases memory that is no longer needed, and sends the messages to clients.
func (r *receiver) finish(t *receiveTurn) {
	r.source.Release(t.events.Release)
	r.reply(&t.events, &t.out)
}

// reply sends the messages to the clients of a turn.
func (r *receiver) reply(events *aggregate.Events, out *outbox) {
	p := r.port
	out.source = r.source
	for i := range events.Reported {
		a := &events.Reported[i]
		p.counters.results[a.Status].Add(1)
		a.ModelVersion = p.version.Load()
		out.result(a.To, a.RequestID, &a.Result, nil, false)
	}
	for i := range events.Again {
		a := &events.Again[i]
		if a.ModelVersion == 0 { // the request was not run
			a.ModelVersion = p.version.Load()
		}
		if a.Wanted.Empty() {
			out.result(a.To, a.RequestID, &a.Result, a.Payload, true)
		} else {
			out.missing(a)
		}
	}
	for i := range events.NACKs {
		w := &events.NACKs[i]
		out.nack(w.To, w.RequestID, w.Total, w.Count, w.Present)
	}
	for i := range events.Resends {
		out.bytes = events.Resends[i].Append(out.bytes)
		out.done(events.Resends[i].To)
	}
	for i := range events.Greetings {
		out.bytes = events.Greetings[i].Append(out.bytes, events.Greetings[i].Type)
		out.done(events.Greetings[i].To)
	}
	r.send(out)
}

// send sends an outbox and counts the datagrams that were lost.
func (r *receiver) send(out *outbox) {
	if lost := out.send(); lost > 0 {
		r.port.counters.unsent.Add(uint64(lost))
	}
}

// starved reports whether the source found no room in the slab since the last turn without a
// datagram.
func (r *receiver) starved(t *receiveTurn) bool {
	before := t.noRoom
	t.noRoom = r.source.Stats().NoRoom
	return t.noRoom != before
}

// evictOldest makes room for a starved receiver. The slab is full of incomplete requests, and
// their missing fragments have no room. evictOldest evicts the oldest request whose memory r
// can use.
func (p *Port) evictOldest(r *receiver, t *receiveTurn, now int64) {
	oldest := r
	if !p.sources.Parted {
		oldest = p.withOldest(r)
	}
	t.events.Reset()
	oldest.mu.Lock()
	oldest.aggregate.EvictOldest(now, &t.events)
	oldest.oldest.Store(oldest.aggregate.Oldest())
	oldest.mu.Unlock()
	oldest.finish(t)
}

// withOldest returns the receiver that has the port's oldest incomplete request; r if none has
// any.
func (p *Port) withOldest(r *receiver) *receiver {
	oldest, since := r, r.oldest.Load()
	for _, other := range p.receivers {
		if began := other.oldest.Load(); began != 0 && (since == 0 || began < since) {
			oldest, since = other, began
		}
	}
	return oldest
}
