package aggregate

import (
	"net/netip"
	"sync/atomic"
)

// senders are the clients of an aggregator: clients that have proved their address, and strangers,
// which have not. The table of strangers only gives credit, as all strangers share one class of
// slots (fair.go).
type senders struct{ clients, strangers clients }

// clientRef refers to a client in the table of those that have proved that they receive at their
// address, or in the other one.
type clientRef struct {
	at     uint32
	proved bool
}

func newSenders(most int, shared *common) senders {
	return senders{newClients(most, &shared.clients, shared), newClients(most, &shared.strangers, nil)}
}

func (s *senders) table(proved bool) *clients {
	if proved {
		return &s.clients
	}
	return &s.strangers
}

func (s *senders) client(ref clientRef) *client { return &s.table(ref.proved).all[ref.at] }

func (s *senders) touch(proved bool, hash uint32, from netip.AddrPort, now int64) clientRef {
	return clientRef{s.table(proved).touch(hash, from, now), proved}
}

func (s *senders) began(ref clientRef) { s.table(ref.proved).began(ref.at) }

func (s *senders) ended(ref clientRef, now int64) { s.table(ref.proved).ended(ref.at, now) }

// find returns a client that was seen lately.
func (s *senders) find(hash uint32, from netip.AddrPort, now int64) (ref clientRef, ok bool) {
	for _, proved := range [...]bool{true, false} {
		c := s.table(proved)
		c.expire(now)
		if at, ok := c.find(hash, from); ok {
			return clientRef{at, proved}, true
		}
	}
	return clientRef{}, false
}

func (s *senders) expire(now int64) {
	s.clients.expire(now)
	s.strangers.expire(now)
}

// nextExpiry returns when expire must run next, 0 for never.
func (s *senders) nextExpiry() int64 {
	next, other := s.clients.nextExpiry(), s.strangers.nextExpiry()
	if next == 0 || other != 0 && other < next {
		return other
	}
	return next
}

func (s *senders) active() int { return s.clients.active() + s.strangers.active() }

// clients records which clients have sent requests lately, and how many each
// has in flight. total counts them together with those of the function's other
// aggregators.
type clients struct {
	all    []client
	free   []uint32
	byKey  index
	recent list // the client not seen for longest first
	total  *atomic.Int64
	// joins makes a client join the group of its address; nil without groups.
	joins *common
}

type client struct {
	from     netip.AddrPort
	hash     uint32
	inFlight int32
	group    uint32
	seen     int64
}

func newClients(most int, total *atomic.Int64, joins *common) clients {
	c := clients{total: total, joins: joins, all: make([]client, most), free: make([]uint32, most), byKey: newIndex(most), recent: newList(most)}
	for i := range c.free {
		c.free[i] = uint32(most - 1 - i)
	}
	return c
}

// active returns the number of clients.
func (c *clients) active() int { return len(c.all) - len(c.free) }

func (c *clients) find(hash uint32, from netip.AddrPort) (uint32, bool) {
	for ref, at, ok := c.byKey.find(hash, hash); ok; ref, at, ok = c.byKey.find(hash, at+1) {
		if c.all[ref].from == from {
			return ref, true
		}
	}
	return none, false
}

// touch returns the client of that address and marks it as seen now. If there
// is no room, it replaces the client not seen for longest that has nothing in
// flight. There is one, because the table has room for more clients than there
// are slots.
func (c *clients) touch(hash uint32, from netip.AddrPort, now int64) uint32 {
	c.expire(now)
	at, ok := c.find(hash, from)
	if ok {
		c.again(at, now)
		return at
	}
	for len(c.free) == 0 {
		if oldest := c.recent.head; c.all[oldest].inFlight > 0 {
			c.again(oldest, now)
		} else {
			c.forget(oldest)
		}
	}
	at = c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.all[at] = client{from: from, hash: hash, seen: now}
	if c.joins != nil {
		c.all[at].group = c.joins.join(from)
	}
	c.byKey.insert(hash, at)
	c.recent.push(at)
	c.total.Add(1)
	return at
}

func (c *clients) began(at uint32) { c.all[at].inFlight++ }

func (c *clients) ended(at uint32, now int64) {
	c.all[at].inFlight--
	c.again(at, now)
}

// again makes a client the one seen last.
func (c *clients) again(at uint32, now int64) {
	c.all[at].seen = now
	if c.recent.tail != at {
		c.recent.remove(at)
		c.recent.push(at)
	}
}

// expire drops clients that were not seen for activeFor and have nothing in
// flight.
func (c *clients) expire(now int64) {
	for at := c.recent.head; at != none && now-c.all[at].seen > int64(activeFor); at = c.recent.head {
		if c.all[at].inFlight > 0 {
			c.again(at, now)
		} else {
			c.forget(at)
		}
	}
}

// nextExpiry returns when expire must run next, 0 for never.
func (c *clients) nextExpiry() int64 {
	if c.recent.head == none {
		return 0
	}
	return c.all[c.recent.head].seen + int64(activeFor) + 1
}

func (c *clients) forget(at uint32) {
	c.recent.remove(at)
	c.byKey.remove(c.all[at].hash, at)
	c.free = append(c.free, at)
	c.total.Add(-1)
	if c.joins != nil {
		c.joins.leave(c.all[at].group)
	}
}
