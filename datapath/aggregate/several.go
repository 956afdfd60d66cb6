package aggregate

import (
	"net/netip"
	"sync/atomic"

	"github.com/penstock/penstock/datapath/adaptive"
)

// common is what the aggregators of one function share: the free slots, and the number of
// clients. A single aggregator has it alone and takes no lock.
//
// The lock is held for a push or a pop, once at a request's beginning and once at its end. It
// also orders one aggregator's writes in the table for a slot before the next aggregator's
// use of that slot.
type common struct {
	several bool
	mu      adaptive.Mutex // guards free, if there are several
	free    []uint32       // a stack: the most recently used slot is still in the cache
	left    atomic.Int64
	clients atomic.Int64
	// wantedAt is when an aggregator last turned a request away: no slot was free, and
	// it had no request of its own to evict.
	wantedAt atomic.Int64
	cookies  cookies
	// keys are those of the function, nil if it has none. challenges are for them.
	keys       atomic.Pointer[[]clientKey]
	challenges cookies
	// peers are the function's other nodes, nil if there are none.
	peers   atomic.Pointer[peers]
	surplus surplus

	config    *Config
	slots     int
	open      *open
	groups    groups       // guarded by mu, except for the counters
	parties   atomic.Int64 // groups
	holders   atomic.Int64 // groups that hold slots
	class     atomic.Int64 // slots of requests without proof
	strangers atomic.Int64 // clients without proof
}

func newCommon(config *Config, aggregators int) *common {
	slots := config.Slots
	c := &common{
		several: aggregators > 1, free: make([]uint32, slots), cookies: newCookies(), challenges: newCookies(),
		config: config, slots: slots, open: newOpen(config), groups: newGroups(aggregators * config.clients()),
	}
	for i := range c.free {
		c.free[i] = uint32(slots - 1 - i)
	}
	c.left.Store(int64(slots))
	return c
}

// take takes a free slot; ok is false if there is none.
func (c *common) take() (slot uint32, ok bool) {
	if c.several {
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	n := len(c.free)
	if n == 0 {
		return 0, false
	}
	slot, c.free = c.free[n-1], c.free[:n-1]
	c.left.Store(int64(n - 1))
	return slot, true
}

func (c *common) give(slot uint32) {
	if c.several {
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	c.free = append(c.free, slot)
	c.left.Store(int64(len(c.free)))
}

func (c *common) join(from netip.AddrPort) uint32 {
	if c.several {
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	at := c.groups.join(c.config.groupKey(from))
	c.parties.Store(int64(c.groups.byKey.used))
	return at
}

func (c *common) leave(at uint32) {
	if c.several {
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	c.groups.leave(at)
	c.parties.Store(int64(c.groups.byKey.used))
}

// NewSeveral makes n aggregators that take their slots from one set. Together they have at
// most Config.Slots requests in flight. A client's credit is its fair share of these slots
// among the clients of all aggregators. The caller must pass all datagrams of a client to the
// same aggregator.
//
// Each aggregator belongs to the holder of its own lock; several may be called at the same
// time. Each remembers its own ended requests, as many as Config allows. NewSeveral panics
// if the configuration is invalid (see Config.Validate), or the table does not match it.
func NewSeveral(n int, config Config, memory []byte, table Table) []*Aggregator {
	config = config.withDefaults()
	if err := config.Validate(); err != nil {
		panic(err)
	}
	shared := newCommon(&config, n)
	all := make([]*Aggregator, n)
	for i := range all {
		all[i] = newAggregator(config, memory, table, shared)
	}
	return all
}

// makeRoom evicts one of its own requests, of a party above its share. It does so if another
// aggregator lately lacked a slot for a party below its share, and few slots are free yet.
func (a *Aggregator) makeRoom(events *Events) {
	at := a.common.wantedAt.Load()
	if at == 0 || a.now-at > 2*int64(a.config.NACKAfter) || a.common.plenty() {
		return
	}
	if a.evictAbove(party{group: &newcomer}, events) {
		a.common.wantedAt.CompareAndSwap(at, 0)
	}
}

// newcomer is a group that holds nothing.
var newcomer group

// Oldest returns when the longest gathering request began, or 0 if none is gathering.
func (a *Aggregator) Oldest() int64 {
	slot := a.gathering.oldest()
	if slot == none {
		return 0
	}
	return a.slots[slot].first
}
