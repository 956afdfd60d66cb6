package frame

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"sync"
)

// Neighbours stores the path to each client's address, and which of our
// addresses the client uses. They are those of the client's last datagram. The
// client may also report another path by ARP or neighbour discovery. A client behind a router is reached through that router,
// so there is no table of routes. Any goroutine may use it.
//
// It holds a fixed number of addresses, in sets. If a set is full, the address
// that was seen longest ago is dropped. The client's next datagram adds it
// again.
type Neighbours struct {
	seed [2]uint64

	mu   sync.RWMutex // guards sets
	sets [][ways]neighbour
}

const ways = 8

type neighbour struct {
	addr  netip.Addr
	link  Link
	own   netip.Addr // ours that the client uses; not valid if it sent no datagram
	heard int64      // nanoseconds of the caller's clock
}

// NewNeighbours makes a table for at least n addresses.
func NewNeighbours(n int) *Neighbours {
	sets := 1
	for sets*ways < n {
		sets *= 2
	}
	return &Neighbours{
		seed: [2]uint64{rand.Uint64(), rand.Uint64()}, // so that an attacker cannot fill one set
		sets: make([][ways]neighbour, sets),
	}
}

// hash mixes an address with the seed.
func (t *Neighbours) hash(addr netip.Addr) uint64 {
	a := addr.As16()
	high, low := bits.Mul64(binary.LittleEndian.Uint64(a[:])^t.seed[0], binary.LittleEndian.Uint64(a[8:])^t.seed[1])
	high, low = bits.Mul64(high^low^t.seed[1], t.seed[0]|1)
	return high ^ low
}

func (t *Neighbours) set(addr netip.Addr) *[ways]neighbour {
	return &t.sets[t.hash(addr)&uint64(len(t.sets)-1)]
}

// Find returns the path to an address, and ours that its client uses, if the client has sent a
// datagram. ok is false if the address is not in the table.
func (t *Neighbours) Find(addr netip.Addr) (link Link, own netip.Addr, ok bool) {
	set := t.set(addr)
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := range set {
		if set[i].addr == addr {
			return set[i].link, set[i].own, true
		}
	}
	return Link{}, netip.Addr{}, false
}

// Learn records the path to an address that was seen at now, in nanoseconds of
// any monotonic clock. own is ours that its client uses; if it is not valid, the
// one that is known stays.
func (t *Neighbours) Learn(addr netip.Addr, link *Link, own netip.Addr, now int64) {
	t.put(neighbour{addr, *link, own, now}, true)
}

// update is Learn for an address that is already in the table.
func (t *Neighbours) update(addr netip.Addr, link *Link, now int64) {
	t.put(neighbour{addr, *link, netip.Addr{}, now}, false)
}

func (t *Neighbours) put(next neighbour, add bool) {
	set := t.set(next.addr)
	t.mu.Lock()
	defer t.mu.Unlock()
	to := &set[0]
	for i := range set {
		n := &set[i]
		if n.addr == next.addr {
			if !next.own.IsValid() {
				next.own = n.own
			}
			*n = next
			return
		}
		if to.addr.IsValid() && (!n.addr.IsValid() || n.heard < to.heard) {
			to = n
		}
	}
	if add {
		*to = next
	}
}

// relearn is the interval at which a Learner updates the table for an address
// whose path does not change. It is in nanoseconds.
const relearn = int64(1e9)

// Learner updates a table for one thread. It avoids the table's lock for paths
// that it has just recorded. Its zero value with a Table is ready. One
// goroutine uses it.
type Learner struct {
	Table  *Neighbours
	recent [64]neighbour
}

// Learn records the path of a datagram.
func (l *Learner) Learn(d *Datagram, now int64) {
	addr := d.From.Addr()
	r := &l.recent[l.Table.hash(addr)>>32%uint64(len(l.recent))]
	if r.addr == addr && r.link == d.Link && r.own == d.To.Addr() && now-r.heard < relearn {
		return
	}
	*r = neighbour{addr, d.Link, d.To.Addr(), now}
	l.Table.put(*r, true)
}
