package batching

import (
	"math/bits"
	"slices"
	"time"
)

// Fairness orders pending requests so that a client that floods a function delays no other client:
//
//  1. Requests that have more than one objective left wait behind the others.
//  2. Addresses alternate. Each gets its second request when every other has got its first one.
//     Within the requests of an address, its clients (ports) alternate.
//  3. A client's own requests are in the order of their deadlines.
//
// Requests that would be late, and Request.Priority, come before these rules (Pick). One goroutine uses a
// Fairness.
type Fairness struct {
	stamp uint32 // of the present Rank: other counters count as 0
	// clients counts the requests of each client. rounds counts those of an address that are the
	// k-th of their clients: its k-th round. Both are hash tables with linear probing, at most half full.
	clients, rounds []counter
	began           []uint32 // rounds in use, in the order of their first requests
	places          []place  // of the pending requests
}

type counter struct {
	key   uint64
	stamp uint32
	n     uint32
	// before is the address's round before this one. first is the place of this round's first request.
	before, first uint32
}

// place is a request's position in the rounds of its address.
type place struct{ round, at uint32 }

// NewFairness makes a Fairness for up to most pending requests.
func NewFairness(most int) *Fairness {
	size := 1 << bits.Len(uint(2*most))
	return &Fairness{
		clients: make([]counter, size), rounds: make([]counter, size),
		began: make([]uint32, 0, most), places: make([]place, most),
	}
}

// patient is in the places of requests that wait behind the others.
const patient = 1 << 31

// Rank gives each pending request its place. It sorts them by deadline. objective is that of the function. Rank
// allocates nothing.
func (t *Fairness) Rank(pending []Request, now int64, objective time.Duration) {
	if oneClient(pending) { // its deadlines are the order
		for i := range pending {
			pending[i].place = 0
		}
		return
	}
	slices.SortFunc(pending, byDeadline)
	if t.stamp++; t.stamp == 0 {
		clear(t.clients)
		clear(t.rounds)
		t.stamp = 1
	}
	t.began = t.began[:0]

	for i := range pending {
		r := &pending[i]
		client := &t.clients[t.find(t.clients, uint64(r.Address)<<32|uint64(r.Client))]
		round := t.find(t.rounds, uint64(r.Address)<<32|uint64(client.n))
		c := &t.rounds[round]
		if c.n == 0 {
			if client.n > 0 { // the client has a request in the round before
				c.before = t.find(t.rounds, uint64(r.Address)<<32|uint64(client.n-1))
			}
			t.began = append(t.began, round)
		}
		t.places[i] = place{round, c.n}
		c.n++
		client.n++
	}

	for _, round := range t.began {
		c := &t.rounds[round]
		if c.first = 0; c.key&(1<<32-1) > 0 {
			before := &t.rounds[c.before]
			c.first = before.first + before.n
		}
	}
	for i := range pending {
		r, at := &pending[i], t.places[i]
		r.place = t.rounds[at.round].first + at.at
		if r.Deadline-now > int64(objective) {
			r.place |= patient
		}
	}
}

// oneClient reports whether all requests have the same client.
func oneClient(pending []Request) bool {
	for i := range pending {
		if pending[i].Client != pending[0].Client || pending[i].Address != pending[0].Address {
			return false
		}
	}
	return true
}

// find returns the place of a key's counter, which is 0 if the key is new.
func (t *Fairness) find(table []counter, key uint64) uint32 {
	mask := uint32(len(table) - 1)
	for at := uint32(key*0x9e3779b97f4a7c15>>32) & mask; ; at = (at + 1) & mask {
		switch c := &table[at]; {
		case c.stamp != t.stamp:
			*c = counter{key: key, stamp: t.stamp}
			return at
		case c.key == key:
			return at
		}
	}
}
