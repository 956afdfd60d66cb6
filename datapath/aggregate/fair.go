package aggregate

import (
	"net/netip"
	"sort"
	"sync/atomic"
)

// Fairness between clients: which of them may take the next slot.
//
// The parties are groups of clients: all ports of one IPv4 address, all of one
// IPv6 /64, or one port of an address in Config.Trusted, which stands for many
// machines. Requests whose client has not proved its address (proof.go) belong to
// no group. They share one class, because an address that can be forged cannot be
// charged.
//
//  1. Every group has the same limit, and so has every port of a group. A party
//     may take a slot while it holds fewer than its limit. The limit falls as
//     slots run short (dynamic thresholds, Choudhury and Hahne 1998). So groups
//     that want more than their share hold equally many, and those that want less
//     get all they want. This is max-min fairness of all slots except a reserve.
//  2. An eighth of the slots is reserved for groups below an equal share. When
//     the reserve runs out too, the last slots go to those that hold the fewest.
//     A newcomer therefore finds a slot even if complete requests, which cannot be
//     evicted, hold all others.
//  3. A party below the average that gets no slot evicts an incomplete request: the
//     oldest of a party that is above its limit and holds at least two slots more.
//     An eviction therefore never makes the loser the poorer one.
//
// The common case reads two counters. Nothing is divided or searched while half of
// the slots are free.

const (
	// reservePart: 1/reservePart of the slots is kept for parties below an equal share. What
	// a client sends before its first answer (docs/wire.md) fits in an eighth of 64.
	reservePart = 8
	// newcomerPart is the same while there is one party. A newcomer makes it two.
	newcomerPart = 16
	// classPart is for the class of clients without proof. An eighth of the slots may be lost
	// to forged requests, and a first request finds a slot.
	classPart = 8
	// thresholdGain is how many slots all parties together may hold for each one that
	// is free beyond the reserve. A higher gain leaves fewer slots unused: of those
	// outside the reserve, 1/(gain+1).
	thresholdGain = 16
	// maxScan bounds the search for a request to evict. The search begins with the oldest,
	// and a party that holds many slots has old ones.
	maxScan = 256
)

// supply is what several parties share: slots, or what a group may hold.
type supply struct {
	total, free int
	// equal is what each party may hold, however few are free. The sum over all parties
	// leaves one such share for a newcomer.
	equal int
	// parties counts those that have sent lately; holders counts those that hold something
	// now.
	parties, holders int
}

// slotsOf is the supply of a function's slots.
func slotsOf(total, free, groups, holders int) supply {
	return supply{total, free, max((total-total/classPart)/(groups+1), 1), groups, holders}
}

// portsOf is the supply of a group that may hold some slots and holds others. When
// the group has reached its limit, the limit of its ports does not exceed what each
// holds, so the ports' limit stands for both.
func portsOf(limit, held, ports, holders int) supply {
	return supply{limit, max(limit-held, 0), max(limit/(ports+1), 1), ports, holders}
}

// classOf is the supply of the class without proof, next to the groups that hold slots.
func classOf(total, free, holders int) supply {
	return supply{total, free, total / classPart, 2, holders + 1}
}

// limit is how many slots each party may hold.
func (s supply) limit() int {
	switch {
	case s.parties <= 1:
		return s.total - s.total/newcomerPart
	case 2*s.free >= s.total:
		return s.total
	}
	reserve := max(s.total/reservePart, 1)
	if s.free < reserve {
		// The last slots are for the parties that hold the fewest.
		return (s.equal*s.free + reserve - 1) / reserve
	}
	return max(min(thresholdGain*(s.free-reserve)/max(s.holders, 1), s.total), s.equal)
}

// share is what each party can hold if all of them want as much.
func (s supply) share() int {
	if s.parties <= 1 {
		return s.limit()
	}
	most := thresholdGain * (s.total - max(s.total/reservePart, 1) + 1) / ((thresholdGain + 1) * s.parties)
	return max(most, s.equal)
}

// room returns how many of want slots a party can take one after the other before it reaches
// its limit, which falls with each.
func (s supply) room(held, want int) int {
	want = min(want, s.free)
	fits := func(n int) bool {
		after := s
		after.free -= n - 1
		return held+n-1 < after.limit()
	}
	if want <= 0 || fits(want) {
		return max(want, 0)
	}
	return sort.Search(want, func(n int) bool { return !fits(n + 1) })
}

// group is a party. Its counters may be read while another aggregator of the
// function changes them: a decision may then be off by the requests that begin or
// end at the same moment.
type group struct {
	key     netip.AddrPort // port 0: all ports
	hash    uint32
	held    atomic.Int32 // slots
	ports   atomic.Int32 // clients
	holders atomic.Int32 // clients that hold slots
}

func (g *group) supply(limit int) supply {
	return portsOf(limit, int(g.held.Load()), int(g.ports.Load()), int(g.holders.Load()))
}

// groups are the parties that have sent lately.
type groups struct {
	all   []group
	free  []uint32
	byKey index
	hash  hasher
}

func newGroups(size int) groups {
	g := groups{all: make([]group, size), free: make([]uint32, size), byKey: newIndex(size), hash: newHasher()}
	for i := range g.free {
		g.free[i] = uint32(size - 1 - i)
	}
	return g
}

// join adds a client to its group. There is room, because each client is in one group.
func (g *groups) join(key netip.AddrPort) uint32 {
	hash := g.hash.client(key)
	for ref, at, ok := g.byKey.find(hash, hash); ok; ref, at, ok = g.byKey.find(hash, at+1) {
		if g.all[ref].key == key {
			g.all[ref].ports.Add(1)
			return ref
		}
	}
	at := g.free[len(g.free)-1]
	g.free = g.free[:len(g.free)-1]
	n := &g.all[at]
	n.key, n.hash = key, hash
	n.ports.Store(1)
	g.byKey.insert(hash, at)
	return at
}

// leave removes a client, and drops a group without clients.
func (g *groups) leave(at uint32) {
	if g.all[at].ports.Add(-1) == 0 {
		g.byKey.remove(g.all[at].hash, at)
		g.free = append(g.free, at)
	}
}

// groupKey returns what the clients of a group have in common.
func (c *Config) groupKey(from netip.AddrPort) netip.AddrPort {
	addr := from.Addr().WithZone("")
	for _, prefix := range c.Trusted {
		if prefix.Contains(addr) {
			return from
		}
	}
	if addr.Is6() && !addr.Is4In6() {
		prefix, _ := addr.Prefix(64) // an IPv6 address has 128 bits
		addr = prefix.Addr()
	}
	return netip.AddrPortFrom(addr, 0)
}

// party is a client that wants a slot, or has one.
type party struct {
	group *group // nil for the class without proof
	held  int    // slots that the client itself holds
}

func (a *Aggregator) party(ref clientRef) party {
	c := a.senders.client(ref)
	if !ref.proved {
		return party{held: int(c.inFlight)}
	}
	return party{group: &a.common.groups.all[c.group], held: int(c.inFlight)}
}

// mayTake reports whether a party is below its limits.
func (c *common) mayTake(p party) bool {
	if total, free := c.room(); 2*free >= total {
		return true
	}
	if p.group == nil {
		return int(c.class.Load()) < c.classSupply().limit()
	}
	return p.held < p.group.supply(c.supply().limit()).limit()
}

// taken returns the number of taken slots.
func (c *common) taken() int { return c.slots - int(c.left.Load()) }

// room returns how many slots are open, and how many of them are free. More slots may be
// taken than are open.
func (c *common) room() (total, free int) {
	total = int(c.open.slots.Load())
	return total, max(total-c.taken(), 0)
}

// plenty reports whether at least the reserve is free.
func (c *common) plenty() bool {
	total, free := c.room()
	return free >= total/reservePart
}

func (c *common) supply() supply {
	total, free := c.room()
	return slotsOf(total, free, int(c.parties.Load()), int(c.holders.Load()))
}

func (c *common) classSupply() supply {
	total, free := c.room()
	return classOf(total, free, int(c.holders.Load()))
}

// evictAbove evicts the oldest incomplete request of a party above its share, for a party
// below its share. It returns false if the oldest requests include none.
func (a *Aggregator) evictAbove(p party, events *Events) bool {
	c := a.common
	taken, parties := c.taken(), int(c.parties.Load())
	class := int(c.class.Load())
	supply := c.supply()
	limit := max(supply.limit(), supply.equal)

	// held is what the party has. A party is the class as a whole, a group or, within its own
	// group, a port.
	held, across, within := class, class < supply.total/classPart, false
	if p.group != nil {
		held = int(p.group.held.Load())
		ports := int(p.group.ports.Load())
		across = held*parties <= taken-class && p.held*ports <= held
		within = p.held*ports < held
	}
	if !across && !within {
		return false
	}
	for slot, n := a.gathering.oldest(), 0; slot != none && n < maxScan; slot, n = a.gathering.after(slot), n+1 {
		r := &a.slots[slot]
		v := a.party(r.client)
		above := false
		switch {
		case v.group == nil:
			above = across && class > supply.total/classPart
		case v.group == p.group:
			above = within && v.held >= p.held+2
		case across:
			g := int(v.group.held.Load())
			above = g > limit && g >= held+2 && v.held*int(v.group.ports.Load()) >= g
		}
		if above {
			a.evict(slot, false, events)
			return true
		}
	}
	return false
}

// richest returns the oldest incomplete request of the party that holds the most slots, or
// none.
func (a *Aggregator) richest() uint32 {
	found, most := none, -1
	for slot, n := a.gathering.oldest(), 0; slot != none && n < maxScan; slot, n = a.gathering.after(slot), n+1 {
		r := &a.slots[slot]
		held := int(a.common.class.Load())
		if v := a.party(r.client); v.group != nil {
			held = int(v.group.held.Load())
		}
		if held > most {
			found, most = slot, held
		}
	}
	return found
}
