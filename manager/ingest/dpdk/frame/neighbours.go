package frame

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"sync"
)

// Neighbours is which way each client's address is reached: the way that its last
// datagram came, or what it says by ARP or neighbour discovery. A client behind a
// router is reached through that router, so there is no table of routes. Any
// goroutine may use it.
//
// It holds a fixed number of addresses; where the ones of a set are more than its
// room, the one heard of the longest ago is forgotten, and is learned again from
// the client's next datagram.
type Neighbours struct {
	seed [2]uint64

	mu   sync.RWMutex // guards sets
	sets [][ways]neighbour
}

const ways = 8

type neighbour struct {
	addr  netip.Addr
	link  Link
	heard int64 // nanoseconds of the caller's clock
}

// NewNeighbours makes a table for at least n addresses.
func NewNeighbours(n int) *Neighbours {
	sets := 1
	for sets*ways < n {
		sets *= 2
	}
	return &Neighbours{
		seed: [2]uint64{rand.Uint64(), rand.Uint64()}, // nobody outside can fill one set on purpose
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

// Find is the way to an address, false where it has not been heard of.
func (t *Neighbours) Find(addr netip.Addr) (Link, bool) {
	set := t.set(addr)
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := range set {
		if set[i].addr == addr {
			return set[i].link, true
		}
	}
	return Link{}, false
}

// Learn notes the way to an address, heard of at now, in nanoseconds of any clock
// that runs forward.
func (t *Neighbours) Learn(addr netip.Addr, link *Link, now int64) {
	set := t.set(addr)
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := &set[0]
	for i := range set {
		n := &set[i]
		if n.addr == addr || !n.addr.IsValid() {
			*n = neighbour{addr: addr, link: *link, heard: now}
			return
		}
		if n.heard < oldest.heard {
			oldest = n
		}
	}
	*oldest = neighbour{addr: addr, link: *link, heard: now}
}

// update is Learn of an address that is in the table already.
func (t *Neighbours) update(addr netip.Addr, link *Link, now int64) {
	set := t.set(addr)
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range set {
		if n := &set[i]; n.addr == addr {
			n.link, n.heard = *link, now
			return
		}
	}
}

// relearn is how long a Learner says nothing new of an address that goes on coming
// the same way.
const relearn = int64(1e9)

// Learner teaches a table what one thread hears, and spares it the lock for what it
// has just heard. Its zero value, with a Table, is ready. One goroutine uses it.
type Learner struct {
	Table  *Neighbours
	recent [64]neighbour
}

// Learn notes the way that a datagram came.
func (l *Learner) Learn(d *Datagram, now int64) {
	addr := d.From.Addr()
	r := &l.recent[l.Table.hash(addr)>>32%uint64(len(l.recent))]
	if r.addr == addr && r.link == d.Link && now-r.heard < relearn {
		return
	}
	*r = neighbour{addr: addr, link: d.Link, heard: now}
	l.Table.Learn(addr, &d.Link, now)
}
