package aggregate

import (
	"net/netip"
	"sync/atomic"

	"github.com/penstock/penstock/shm/adaptive"
)

// common is what the aggregators of one function share: the slots that are free, and how
// many clients there are. With one aggregator it is that one's alone, and no lock is
// taken.
//
// The lock is held for a push or a pop, once a request at its beginning and once at its
// end. It also orders what an aggregator wrote in the table for a slot before what the
// next one does with that slot.
type common struct {
	several bool
	mu      adaptive.Mutex // guards free, where there are several
	free    []uint32       // a stack: the slot used last is still in the cache
	left    atomic.Int64
	clients atomic.Int64
	// wantedAt is when an aggregator turned a request away that it had no slot for, and
	// none of its own to take one from.
	wantedAt atomic.Int64
	cookies  cookies

	config    *Config
	slots     int
	open      *open
	groups    groups       // guarded by mu, but for the counters
	parties   atomic.Int64 // groups
	holders   atomic.Int64 // groups that hold slots
	class     atomic.Int64 // slots of requests without proof
	strangers atomic.Int64 // clients without proof
}

func newCommon(config *Config, aggregators int) *common {
	slots := config.Slots
	c := &common{
		several: aggregators > 1, free: make([]uint32, slots), cookies: newCookies(),
		config: config, slots: slots, open: newOpen(config), groups: newGroups(aggregators * config.clients()),
	}
	for i := range c.free {
		c.free[i] = uint32(slots - 1 - i)
	}
	c.left.Store(int64(slots))
	return c
}

// take is a free slot; ok is false where there is none.
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

// NewSeveral makes n aggregators that take their slots from one set: all of them together
// have at most Config.Slots requests in flight, and a client's credit is its fair part of
// these slots among the clients of all. All of a client's datagrams go to one of them: who
// feeds them sees to that.
//
// Each belongs to whoever holds its own lock; several may be called at the same time. What
// has ended is remembered by each for itself, as much as Config says. It panics as New
// does.
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

// makeRoom evicts an own request of a party above its share, if another aggregator
// lacked a slot for one below a moment ago, and few are free yet.
func (a *Aggregator) makeRoom(events *Events) {
	at := a.common.wantedAt.Load()
	if at == 0 || a.now-at > 2*int64(a.config.WishAfter) || a.common.plenty() {
		return
	}
	if a.evictAbove(party{group: &newcomer}, events) {
		a.common.wantedAt.CompareAndSwap(at, 0)
	}
}

// newcomer is a group that holds nothing.
var newcomer group

// Oldest is when the request that has been gathering for longest began, 0 where none is
// gathering: EvictOldest would end it.
func (a *Aggregator) Oldest() int64 {
	if a.age.head == none {
		return 0
	}
	return a.slots[a.age.head].first
}
