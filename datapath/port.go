// Package datapath is the IF Manager's way of a request: from the datagrams of a client to
// the ring of an inference function, and from there back to the client.
//
//	source ──> receive thread ──> queue ──> process ──> reply thread ──> source
//
// The steps of a request:
//
//  1. A source receives datagrams into its slab (network.go).
//  2. The source's receive thread reassembles requests and publishes each complete request to
//     a queue (receive.go).
//  3. A process takes the request from the queue's ring, and returns the result.
//  4. The queue's reply thread sends the answer (reply.go). For a process that does not
//     answer, it answers at the deadline (overdue.go).
//
// A Port has one receive thread per source and one reply thread per queue. They do not
// allocate, use no channel, and hold locks only briefly.
//
// The data plane decides nothing and knows no process, only generations. The control loop
// (package manager) controls it by the methods of Port and Queue, each of which takes the lock
// that it needs. The data plane reports by counters, an Observer and its log.
//
// Lock order: receiver.mu, then Port.mu. Take them after all other locks. No thread holds the
// locks of two receivers.
package datapath

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath/adaptive"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/cameras"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Options configures a port.
type Options struct {
	// Name is for the names of the shared memory.
	Name string
	// Queues is the number of queues at first, one per instance of the function.
	Queues int
	// RequestBytes is the size of a request, ResultBytes the max size of a result. LargestPicture is the max size
	// of a picture of another format or shape than the card's; 0: there are none.
	RequestBytes, ResultBytes, LargestPicture int
	// Takes reports whether the function takes other requests of so many bytes, less than RequestBytes; nil: none.
	Takes func(bytes int) bool
	// MinFragmentBytes is the min size of every fragment of a request except the last.
	MinFragmentBytes int
	// Camera, if set, reads the datagrams: they come from cameras. Answers then go to AnswersTo, or
	// nowhere if it is not valid.
	Camera    *cameras.Reader
	AnswersTo netip.AddrPort
	// Allowed are the networks of the cameras; none: all addresses may send.
	Allowed []netip.Prefix
	// Streams: the function keeps a state per stream of a client, so each client must prove its address first.
	Streams bool
	// Keys are those of the function; nil: requests need no token.
	Keys [][]byte
	// Slots is the max number of requests in flight. If it is 0, the size of the slab gives the
	// max, and the number follows the answers that come in time.
	Slots int
	// Objective bounds the time from a request's arrival to its answer; Gather bounds the time
	// until the request is complete.
	Objective, Gather time.Duration
	// Transit is the part of the objective that a request spends outside the node.
	Transit time.Duration
	// Trusted addresses stand for many machines each.
	Trusted []netip.Prefix
	// Version is the version of the model, for requests that are not run.
	Version uint32
	Log     zerolog.Logger
}

// Port is the data plane of one function. On the wire the UDP port identifies the function.
// Inside the node a slot identifies a request: the same index in the aggregator, the request
// table and the rings.
//
// Any goroutine may call its methods, except for SetQueues, Start, Stop and Close: their caller owns the
// port.
type Port struct {
	name      string
	log       zerolog.Logger
	geometry  shm.Geometry
	table     *shm.Table
	sources   *Sources
	receivers []*receiver // one per source
	// queues only grows; each change is a new slice. The control loop writes it.
	queues   atomic.Pointer[[]*Queue]
	observer Observer // set by Start

	threads sync.WaitGroup // receive and reply
	stopped atomic.Bool    // tells the receive threads to end
	version atomic.Uint32

	requestBytes, largestPicture int

	pictures      atomic.Pointer[pictures] // nil: none are copied
	pictureNumber atomic.Uint64

	// mu guards the next six fields and the queues' requests: receive threads publish requests,
	// reply threads end them. It is held for the requests that one burst completed. Its holder never
	// blocks: its one system call wakes a sleeping process.
	mu        adaptive.Mutex
	flights   []flight // by slot
	ended     uint64   // requests that were complete and have been answered
	open      int      // this many queues get requests, the first ones
	pace      pace     // of all queues
	objective time.Duration
	// owners has, for each slot in flight, the receiver whose aggregator holds it. Threads
	// write it under mu. The reply thread that has the slot's answer reads it without.
	owners []atomic.Uint32

	counters counters // not beside mu: other threads write them
}

// flight is a complete request on its way through a queue.
type flight struct {
	queue    *Queue        // nil: the slot is not in flight
	since    time.Duration // when it was published, plus extraTime; by runclock.Now
	answered bool          // the client got `late` at the deadline; the slot is still out
}

// extraTime returns by how much the deadline of a request is later than the objective. Its client lets it wait for that
// time.
func extraTime(r shm.Request, objective time.Duration) time.Duration {
	return max(0, time.Duration(r.Deadline-r.FirstFragment)-objective)
}

// answersKept is how many of the largest answers a receiver can repeat: as many as a client may have in flight
// before its first answer (docs/wire.md). minAnsweredBytes is enough for thousands of small ones. Memory that no
// answer reaches is never touched.
const (
	answersKept      = 8
	minAnsweredBytes = 4 << 20
)

// minResultBytes is the min room for a result. It leaves room for a later model with larger
// results than the first one's.
const minResultBytes = 4096

// poolBytes returns the size of a queue's memory for results that the reply thread has not read. It holds those of all
// slots, up to maxPoolBytes. Two results always fit: a process writes one while the other is read. If the memory is
// full, the process waits. Pages that no result reaches are never touched.
func poolBytes(slots, resultBytes int) uint32 {
	each := (resultBytes + 63) &^ 63
	return uint32(min(slots*each, max(maxPoolBytes, 2*each)))
}

// maxPoolBytes bounds the memory for results of functions without very large ones.
const maxPoolBytes = 32 << 20

// descriptorsPerFragment is how many descriptors a fragment may need: two if it crosses two free
// runs of the slab.
const descriptorsPerFragment = 2

// NewPort allocates the memory of a port over its sources. It starts no thread. The port owns
// the sources from now on; if NewPort fails, it closes them.
func NewPort(sources *Sources, o Options) (_ *Port, err error) {
	largest := max(o.RequestBytes, o.LargestPicture)
	fragments := min((largest+o.MinFragmentBytes-1)/o.MinFragmentBytes, wire.MaxFragments)
	slab := sources.All[0].Slab().Bytes()
	slots := cmp.Or(o.Slots, aggregate.AutoSlots(len(slab), largest))
	p := &Port{
		name: o.Name,
		log:  o.Log,
		geometry: shm.Geometry{
			Slots:        uint32(slots),
			MaxFragments: uint32(descriptorsPerFragment * fragments),
			ResultBytes:  uint32(max(minResultBytes, o.ResultBytes)),
			PoolBytes:    poolBytes(slots, max(minResultBytes, o.ResultBytes)),
		},
		sources:      sources,
		requestBytes: o.RequestBytes, largestPicture: o.LargestPicture,
		flights:   make([]flight, slots),
		objective: o.Objective,
		owners:    make([]atomic.Uint32, slots),
	}
	p.version.Store(o.Version)
	p.queues.Store(new([]*Queue))
	defer func() {
		if err != nil {
			p.Stop()
			p.Close()
		}
	}()

	if p.table, err = shm.NewTable("penstock-"+o.Name+"-requests", p.geometry); err != nil {
		return nil, fmt.Errorf("make request table of %s: %w", o.Name, err)
	}
	aggregators := aggregate.NewSeveral(len(sources.All), aggregate.Config{
		Slots:            slots,
		Follow:           o.Slots == 0,
		RequestBytes:     o.RequestBytes,
		Takes:            o.Takes,
		LargestPicture:   o.LargestPicture,
		MaxFragments:     int(p.geometry.MaxFragments),
		MinFragmentBytes: o.MinFragmentBytes,
		Camera:           o.Camera,
		AnswersTo:        o.AnswersTo,
		Allowed:          o.Allowed,
		Streams:          o.Streams,
		SLO:              o.Objective,
		Transit:          o.Transit,
		Deadline:         o.Gather,
		AnsweredBytes:    max(minAnsweredBytes, answersKept*int(p.geometry.ResultBytes)),
		Trusted:          o.Trusted,
	}, slab, p.table)
	aggregators[0].SetKeys(o.Keys)
	for i, src := range sources.All {
		p.receivers = append(p.receivers, &receiver{port: p, index: i, source: src, aggregate: aggregators[i]})
	}
	if err = p.SetQueues(o.Queues); err != nil {
		return nil, err
	}
	return p, nil
}

// SetQueues sets how many queues get requests, at least one. It makes those that are missing. Queues that are too many
// pass their requests on, and get no more.
func (p *Port) SetQueues(n int) error {
	for i := len(p.all()); i < n; i++ {
		q, err := newQueue(p, fmt.Sprintf("penstock-%s-%d", p.name, i), i)
		if err != nil {
			return fmt.Errorf("make rings of %s: %w", p.name, err)
		}
		queues := append(slices.Clone(p.all()), q)
		p.queues.Store(&queues)
		if p.observer != nil {
			p.threads.Go(q.run)
		}
	}
	p.mu.Lock()
	p.open = n
	p.mu.Unlock()
	for _, q := range p.all()[n:] {
		q.PassOn()
	}
	return nil
}

// all returns all queues, those that get no requests any more too.
func (p *Port) all() []*Queue { return *p.queues.Load() }

// Start starts the threads. They report the times of answered requests to observer.
func (p *Port) Start(observer Observer) {
	p.observer = observer
	for _, r := range p.receivers {
		p.threads.Go(r.run)
	}
	for _, q := range p.all() {
		p.threads.Go(q.run)
	}
}

// Stop closes the sources and ends the threads. The memory remains.
func (p *Port) Stop() {
	p.stopped.Store(true)
	for _, src := range p.sources.All {
		src.Close()
	}
	for _, q := range p.all() {
		q.stop()
	}
	p.threads.Wait()
}

// Close frees the memory of a port that was stopped. No process may use it any more.
func (p *Port) Close() error {
	for _, q := range p.all() {
		q.channel.Close()
	}
	if p.table != nil {
		p.table.Close()
	}
	if err := p.sources.Close(); err != nil {
		return fmt.Errorf("unmap slab: %w", err)
	}
	return nil
}

// Queue returns the queue with that index.
func (p *Port) Queue(index int) *Queue { return p.all()[index] }

// Geometry describes the shared memory of the port's queues.
func (p *Port) Geometry() shm.Geometry { return p.geometry }

// Slab is the memory that holds the port's datagrams.
func (p *Port) Slab() shm.Memory { return p.sources.All[0].Slab() }

// LocalAddr is the address that the port listens on.
func (p *Port) LocalAddr() netip.AddrPort { return p.sources.All[0].LocalAddr() }

// SetVersion sets the model's version for requests that are not run.
func (p *Port) SetVersion(version uint32) { p.version.Store(version) }

// SetKeys replaces the keys of the function. They are not nil if Options.Keys was not.
func (p *Port) SetKeys(keys [][]byte) { p.receivers[0].aggregate.SetKeys(keys) }

// SetPeers sets the other nodes of the function; none: no client is moved. Clients that follow are moved to peers while
// the function drains, or gets more than this node's planned rate in requests per second; 0: it has none. self is the
// address by which peers know this node.
func (p *Port) SetPeers(peers []control.Peer, self netip.AddrPort, rate float64, drain bool) {
	p.receivers[0].aggregate.SetPeers(p.name, peers, self, rate, drain)
}

// SetObjective sets the objective of new requests and the time in which they must be complete.
func (p *Port) SetObjective(objective, gather time.Duration) {
	p.mu.Lock()
	p.objective = objective
	p.mu.Unlock()
	p.each(func(a *aggregate.Aggregator) { a.SetObjective(objective, gather) })
}

// each calls do for each aggregator, under its lock.
func (p *Port) each(do func(a *aggregate.Aggregator)) {
	for _, r := range p.receivers {
		r.mu.Lock()
		do(r.aggregate)
		r.mu.Unlock()
	}
}

// Drain rejects new requests. Requests that have begun continue.
func (p *Port) Drain() { p.each((*aggregate.Aggregator).Drain) }

// Resume accepts requests again after Drain.
func (p *Port) Resume() { p.each((*aggregate.Aggregator).Resume) }

// GiveUp answers all complete requests with `failed`, because no process will answer them.
func (p *Port) GiveUp() {
	for _, q := range p.all() {
		q.ExpireBefore(forever)
	}
}

// Pending returns how many requests have begun and not ended.
func (p *Port) Pending() int {
	s := p.Requests()
	return s.Gathering + s.InFlight
}

// Unanswered reports whether a request's answer has yet to be sent. For a moment a request has
// ended while its answer is still on its way.
func (p *Port) Unanswered() bool {
	return p.Pending() > 0 || p.counters.replied.Load() != p.counters.accepted.Load()
}
