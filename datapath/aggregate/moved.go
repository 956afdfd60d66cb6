package aggregate

import (
	"hash/fnv"
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/dchest/siphash"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

// Other nodes of the function, to which clients that follow can be moved (docs/wire.md).
//
//  1. Weighted rendezvous hashing says to which node a client belongs. The weights are planned rates. All nodes
//     compute the same, so a client that was moved is not moved back.
//  2. A node that drains moves all clients that follow.
//  3. A node above its planned rate moves a part of the clients that belong elsewhere. A second hash orders them. The
//     part grows at once by as much as is missing. It falls slowly, and only well below the rate: clients that return
//     must not exceed it again.

const (
	// movedFor is the lifetime of a move. Then the client asks here again.
	movedFor = 30 * time.Second
	// rateOver is the time over which a rate is measured. rateNoise standard deviations of a count of independent
	// requests do not exceed it.
	rateOver  = 2 * time.Second
	rateNoise = 2
	// The part of moved clients falls by 1/partFall per movedFor, if the node has spareRate of its rate left. One such
	// step does not exceed the rate if at most twice the rate was moved.
	partFall  = 8
	spareRate = 0.25
)

// Peer is a node that serves the function.
type Peer = control.Peer

// peers are the nodes that serve the function, this one first. Its weight is 0 while it drains.
type peers struct {
	all   []Peer
	seeds []uint64
	rate  float64
	drain bool
}

// SetPeers sets the other nodes of a function, for all its aggregators; none: no client is moved. self is the address of this node, as
// the other nodes call it, and rate its planned rate in requests per second; 0: unknown, so that it is never exceeded. Any
// goroutine may call it.
func (a *Aggregator) SetPeers(function string, others []Peer, self netip.AddrPort, rate float64, drain bool) {
	if len(others) == 0 {
		a.common.peers.Store(nil)
		a.common.surplus.part.Store(0)
		return
	}
	p := &peers{all: append([]Peer{{Address: self, Weight: rate}}, others...), rate: rate, drain: drain}
	if drain {
		p.all[0].Weight = 0
	}
	for _, peer := range p.all {
		h := fnv.New64a()
		h.Write([]byte(function + " " + peer.Address.String()))
		p.seeds = append(p.seeds, h.Sum64())
	}
	a.common.peers.Store(p)
}

// owner returns the index of the node to which a client belongs. All ports of an address belong to the same: a client
// has another port at each node.
func (p *peers) owner(client netip.Addr) (owner int) {
	if client = client.Unmap(); client.Is6() {
		client = netip.PrefixFrom(client, 64).Masked().Addr()
	}
	address, highest := client.As16(), 0.0
	for i, peer := range p.all {
		if score := -peer.Weight / math.Log(unit(siphash.Hash(p.seeds[i], 0, address[:]))); score > highest {
			owner, highest = i, score
		}
	}
	return owner
}

// unit maps a hash to a number between 0 and 1.
func unit(hash uint64) float64 { return (float64(hash>>11) + 0.5) / (1 << 53) }

// movedTo returns the node to which the client of a new request must go, if it must.
func (a *Aggregator) movedTo(d *ingest.Datagram, h *wire.Header, proved bool) (to netip.AddrPort, ok bool) {
	p := a.common.peers.Load()
	if p == nil {
		return to, false
	}
	owner := 0
	if e, _ := a.extension(d); h.Index == 0 && h.Flags&wire.FlagExtension != 0 && e.Follows && (proved || !a.config.Streams) {
		owner = p.owner(d.From.Addr())
	}
	switch {
	case p.drain:
		return p.all[owner].Address, owner != 0
	case p.rate == 0 || a.config.Streams: // another node has not the state of the client's streams
		return to, false
	}
	return p.all[owner].Address, a.common.surplus.moves(a.now, p.rate, owner != 0, a.common.cookies.order(d.From))
}

// surplus measures the rate of a function, and decides which part of the clients that belong elsewhere is moved. Several
// aggregators may use it concurrently.
type surplus struct {
	part  atomic.Uint64 // the bits of a float64
	since atomic.Int64
	fell  atomic.Int64 // when the part changed last
	// kept are the requests since then that were not moved, movable those of clients that belong elsewhere.
	kept, movable atomic.Int64
}

// moves reports whether a request is moved, and counts it. order is the place of its client among those that belong
// elsewhere, from 0 to 1.
func (s *surplus) moves(now int64, rate float64, elsewhere bool, order float64) bool {
	if since := s.since.Load(); now-since >= int64(rateOver) && s.since.CompareAndSwap(since, now) {
		s.adjust(now, rate*time.Duration(now-since).Seconds())
	}
	if elsewhere && order < math.Float64frombits(s.part.Load()) {
		return true
	}
	s.kept.Add(1)
	if elsewhere {
		s.movable.Add(1)
	}
	return false
}

// adjust begins a new measurement. planned is the number of requests that the last one should have had.
func (s *surplus) adjust(now int64, planned float64) {
	kept, movable := float64(s.kept.Swap(0)), float64(s.movable.Swap(0))
	part := math.Float64frombits(s.part.Load())
	switch {
	case kept > planned+rateNoise*math.Sqrt(planned) && movable > 0:
		part += (1 - part) * min(1, (kept-planned)/movable)
	case kept < (1-spareRate)*planned && now-s.fell.Load() >= int64(movedFor):
		part -= part / partFall
	default:
		return
	}
	s.part.Store(math.Float64bits(part))
	s.fell.Store(now)
}
