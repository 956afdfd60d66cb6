package aggregate

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/shm"
)

// Check searches for a broken invariant, in time proportional to all that is
// held. Tests call it after every operation.
func (a *Aggregator) Check() error {
	checks := []func() error{a.checkSlots, a.checkLists, a.checkIndex, a.checkClients, a.checkSums}
	for _, check := range checks {
		if err := check(); err != nil {
			return fmt.Errorf("check aggregator: %w", err)
		}
	}
	return nil
}

func (a *Aggregator) checkSlots() error {
	a.common.mu.Lock()
	stack := slices.Clone(a.common.free)
	a.common.mu.Unlock()
	free := make(map[uint32]bool)
	for _, slot := range stack {
		if free[slot] {
			return fmt.Errorf("slot %d is free twice", slot)
		}
		free[slot] = true
	}
	taken := 0
	for i := range a.slots {
		r := &a.slots[i]
		if r.state != stateFree {
			taken++
		}
		if err := a.checkSlot(r, free[uint32(i)]); err != nil {
			return fmt.Errorf("slot %d: %w", i, err)
		}
	}
	if taken != a.taken {
		return fmt.Errorf("%d slots are taken, %d counted", taken, a.taken)
	}
	return nil
}

// checkSlot checks a slot that is, or is not, on the stack of free slots.
func (a *Aggregator) checkSlot(r *request, free bool) error {
	switch {
	case r.state != stateFree && free:
		return fmt.Errorf("state %d, but free", r.state)
	case r.state != stateFree:
		return a.checkRequest(r)
	case !free && !a.common.several: // a slot that is free here may belong to another of several aggregators
		return fmt.Errorf("state %d, but not free", r.state)
	case len(r.spans) > 0:
		return fmt.Errorf("free, but holds %d spans", len(r.spans))
	}
	return nil
}

func (a *Aggregator) checkRequest(r *request) error {
	if a.config.Camera != nil {
		return a.checkPicture(r)
	}
	got := 0
	for _, word := range r.present[:(int(r.count)+63)/64] {
		got += bits.OnesCount64(word)
	}
	if got != int(r.got) || got == 0 || got > int(r.count) {
		return fmt.Errorf("%d fragments are marked, %d counted, of %d", got, r.got, r.count)
	}
	if (got == int(r.count)) != (r.state == stateComplete || r.state == stateAnswered) {
		return fmt.Errorf("%d of %d fragments in state %d", got, r.count, r.state)
	}
	// Each descriptor lies in a span that the slot holds, and covers bytes of a
	// marked fragment. Their sum is the size of the marked fragments.
	described, want := uint64(0), uint64(0)
	for _, p := range r.fragments[:r.used] {
		if !r.holds(p) {
			return fmt.Errorf("descriptor %+v lies in no span of the slot", p)
		}
		if i := p.Place / r.size; r.present[i/64]&(1<<(i%64)) == 0 {
			return fmt.Errorf("descriptor %+v is of fragment %d, which is not here", p, i)
		}
		described += uint64(p.Length)
	}
	for i := range uint64(r.count) {
		if r.present[i/64]&(1<<(i%64)) != 0 {
			want += min(uint64(r.size), uint64(r.total)-i*uint64(r.size))
		}
	}
	if described != want {
		return fmt.Errorf("descriptors have %d bytes, fragments %d", described, want)
	}
	return nil
}

// holds reports whether a descriptor lies in one of the request's spans.
func (r *request) holds(p shm.Fragment) bool {
	return slices.ContainsFunc(r.spans, func(s ingest.Span) bool {
		return p.Offset >= s.Offset && p.Offset+uint64(p.Length) <= s.Offset+uint64(s.Length)
	})
}

// checkPicture is checkRequest for a camera's picture. Its descriptors are in the order of place,
// do not overlap, and cover the received bytes.
func (a *Aggregator) checkPicture(r *request) error {
	next, got := uint32(0), uint32(0)
	for _, p := range r.fragments[:r.used] {
		switch {
		case !r.holds(p):
			return fmt.Errorf("descriptor %+v lies in no span of the slot", p)
		case p.Place < next || p.Length == 0:
			return fmt.Errorf("descriptor %+v begins before byte %d, or is empty", p, next)
		}
		next = p.Place + uint32(p.Length)
		got += uint32(p.Length)
	}
	switch whole := r.led && got == r.total; {
	case got != r.got || next > r.total:
		return fmt.Errorf("descriptors have %d bytes up to byte %d, %d are counted", got, next, r.got)
	case whole != (r.state == stateComplete || r.state == stateAnswered):
		return fmt.Errorf("%d bytes, leader %v, in state %d", got, r.led, r.state)
	}
	return nil
}

func (a *Aggregator) checkLists() error {
	gathering := 0
	for i := range a.slots {
		if a.slots[i].state == stateGathering {
			gathering++
		}
	}
	n, err := a.checkList("age", &a.gathering.age, func(r *request) int64 { return r.first }, func(*request) bool { return true })
	if err == nil && n != gathering {
		err = fmt.Errorf("age has %d slots, %d are gathering", n, gathering)
	}
	if err != nil {
		return err
	}
	sum := 0
	for k := range a.gathering.quiet {
		n, err := a.checkList(fmt.Sprintf("quiet[%d]", k), &a.gathering.quiet[k],
			func(r *request) int64 { return r.nacks.mark }, func(r *request) bool { return int(r.nacks.sent) == k })
		if err != nil {
			return err
		}
		sum += n
	}
	if sum != gathering {
		return fmt.Errorf("quiet lists have %d slots, %d are gathering", sum, gathering)
	}
	return nil
}

// checkList checks a list of gathering slots in the order of key, and counts them.
func (a *Aggregator) checkList(name string, l *list, key func(r *request) int64, belongs func(r *request) bool) (n int, err error) {
	last, prev := int64(-1<<63), none
	for slot := l.head; slot != none; slot = l.links[slot].next {
		r := &a.slots[slot]
		switch {
		case l.links[slot].prev != prev:
			return n, fmt.Errorf("%s: slot %d has a wrong link back", name, slot)
		case r.state != stateGathering || !belongs(r):
			return n, fmt.Errorf("%s: slot %d does not belong here", name, slot)
		case key(r) < last:
			return n, fmt.Errorf("%s: slot %d is out of order", name, slot)
		}
		if n++; n > len(a.slots) {
			return n, fmt.Errorf("%s: endless", name)
		}
		last, prev = key(r), slot
	}
	if l.tail != prev {
		return n, fmt.Errorf("%s: wrong tail", name)
	}
	return n, nil
}

func (a *Aggregator) checkIndex() error {
	found := 0
	for i := range a.slots {
		if r := &a.slots[i]; r.live() {
			found++
			if err := a.checkFound(uint32(i), r.requestKey); err != nil {
				return fmt.Errorf("slot: %w", err)
			}
		}
	}
	for _, m := range []*history{&a.ended, &a.turned} {
		n, err := a.checkHistory(m)
		if err != nil {
			return err
		}
		found += n
	}
	if found != a.requests.used {
		return fmt.Errorf("index has %d entries, want %d", a.requests.used, found)
	}
	return nil
}

// checkFound checks that the index finds a request at want.
func (a *Aggregator) checkFound(want uint32, k requestKey) error {
	switch ref, ok := a.find(k.hash, k.from, k.id); {
	case !ok:
		return fmt.Errorf("%v %d is not found", k.from, k.id)
	case ref != want:
		return fmt.Errorf("%v %d is found at %d, is at %d", k.from, k.id, ref, want)
	}
	return nil
}

// checkHistory checks remembered requests, and counts them.
func (a *Aggregator) checkHistory(m *history) (n int, err error) {
	last := int64(-1 << 63)
	for i := range m.n {
		at := (m.first + i) % len(m.records)
		r := &m.records[at]
		if r.void {
			continue
		}
		n++
		if err := a.checkFound(uint32(at)+m.base, r.requestKey); err != nil {
			return n, fmt.Errorf("record: %w", err)
		}
		if r.expires < last {
			return n, fmt.Errorf("record %d expires before the one before it", at)
		}
		last = r.expires
	}
	return n, nil
}

func (a *Aggregator) checkClients() error {
	for _, proved := range []bool{true, false} {
		if err := a.checkSide(proved); err != nil {
			return err
		}
	}
	if a.common.several {
		return nil // other aggregators hold slots of the same groups
	}
	return a.checkGroups()
}

// checkGroups checks the counts of groups, and that of the class without proof.
func (a *Aggregator) checkGroups() error {
	held, class := make(map[*group]int), 0
	for i := range a.slots {
		if r := &a.slots[i]; r.state != stateFree && r.client.proved {
			held[a.party(r.client).group]++
		} else if r.state != stateFree {
			class++
		}
	}
	if n := int(a.common.class.Load()); n != class {
		return fmt.Errorf("the class without proof holds %d slots, counts %d", class, n)
	}
	ports := make(map[*group]int)
	clients := &a.senders.clients
	for at := clients.recent.head; at != none; at = clients.recent.links[at].next {
		g := a.party(clientRef{at, true}).group
		if key := a.config.groupKey(clients.all[at].from); g.key != key {
			return fmt.Errorf("client %v is in group %v, want %v", clients.all[at].from, g.key, key)
		}
		ports[g]++
	}
	if n := int(a.common.holders.Load()); n != len(held) {
		return fmt.Errorf("%d groups hold slots, counts %d", len(held), n)
	}
	if err := a.checkCounts(ports, held); err != nil {
		return err
	}
	if n := int(a.common.parties.Load()); n != len(ports) || n != a.common.groups.byKey.used {
		return fmt.Errorf("%d groups have clients, %d are counted, %d indexed", len(ports), n, a.common.groups.byKey.used)
	}
	return nil
}

// checkCounts checks each group's counts of clients and slots.
func (a *Aggregator) checkCounts(ports, held map[*group]int) error {
	holders := make(map[*group]int)
	for at := range a.senders.clients.all {
		if a.senders.clients.all[at].inFlight > 0 {
			holders[a.party(clientRef{uint32(at), true}).group]++
		}
	}
	for g, n := range ports {
		if h := int(g.holders.Load()); h != holders[g] {
			return fmt.Errorf("%d clients of group %v hold slots, counts %d", holders[g], g.key, h)
		}
		if int(g.ports.Load()) != n || int(g.held.Load()) != held[g] {
			return fmt.Errorf("group %v has %d ports and %d slots, counts %d and %d", g.key, n, held[g], g.ports.Load(), g.held.Load())
		}
	}
	return nil
}

// checkSide checks the clients with, or those without, proof.
func (a *Aggregator) checkSide(proved bool) error {
	c := a.senders.table(proved)
	inFlight := make(map[uint32]int32)
	for i := range a.slots {
		if r := &a.slots[i]; r.state != stateFree && r.client.proved == proved {
			if c.all[r.client.at].from != r.from {
				return fmt.Errorf("slot %d is of %v, its client is %v", i, r.from, c.all[r.client.at].from)
			}
			inFlight[r.client.at]++
		}
	}
	n := 0
	for at := c.recent.head; at != none; at = c.recent.links[at].next {
		k := &c.all[at]
		if k.inFlight != inFlight[at] {
			return fmt.Errorf("client %v has %d requests in flight, counts %d", k.from, inFlight[at], k.inFlight)
		}
		if ref, ok := c.find(k.hash, k.from); !ok || ref != at {
			return fmt.Errorf("client %v is found at %d, is at %d", k.from, ref, at)
		}
		n++
	}
	if n != c.active() || n != c.byKey.used {
		return fmt.Errorf("%d clients are listed, %d active, %d indexed", n, c.active(), c.byKey.used)
	}
	return nil
}

func (a *Aggregator) checkSums() error {
	s := a.Stats()
	datagrams := s.Fragments + s.Greeted
	for _, n := range s.Malformed {
		datagrams += n
	}
	for _, n := range s.Dropped {
		datagrams += n
	}
	if datagrams != s.Datagrams {
		return fmt.Errorf("%d datagrams came, %d are accounted for", s.Datagrams, datagrams)
	}
	gathering, whole, held := 0, 0, uint64(0)
	for i := range a.slots {
		switch r := &a.slots[i]; r.state {
		case stateGathering:
			gathering++
		case stateComplete, stateAnswered:
			whole++
		}
		for _, span := range a.slots[i].spans {
			held += uint64(span.Length)
		}
	}
	if gathering != s.Gathering || whole != s.InFlight || held != s.HeldBytes {
		return fmt.Errorf("%d gathering, %d whole, %d bytes; counted %d, %d, %d",
			gathering, whole, held, s.Gathering, s.InFlight, s.HeldBytes)
	}
	return nil
}
