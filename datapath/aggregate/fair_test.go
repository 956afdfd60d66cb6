package aggregate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

// rival is a client that sends as much as it can.
type rival struct {
	from     netip.AddrPort
	complete bool
	next     int
}

// contest has rivals and one well-behaved client send to an aggregator. Complete
// requests are answered in order, a few per round; incomplete ones end at their
// deadline.
type contest struct {
	*harness
	rivals []rival
	random *rand.Rand
	whole  []uint32
	good   netip.AddrPort
	demand int // requests that the good client keeps in flight
	sent   int
	busy   int
}

// held returns how many slots are held by clients for which of returns true.
func (c *contest) held(of func(from netip.AddrPort) bool) (n int) {
	for i := range c.a.slots {
		if r := &c.a.slots[i]; r.state != stateFree && of(r.from) {
			n++
		}
	}
	return n
}

func (c *contest) heldBy(from netip.AddrPort) int {
	return c.held(func(f netip.AddrPort) bool { return f == from })
}

// request sends a request and reports whether it got a slot. The datagrams stay in
// the slab; only the id is written.
func (c *contest) request(from netip.AddrPort, id int, complete bool) bool {
	p := fragment{id: id, total: testRequest, size: testFragment, index: 1}
	if complete {
		p.index, p.size = 0, testRequest
	}
	d := p.datagram()
	at := copy(c.memory, d)
	c.events.Reset()
	c.a.Add(c.now, []ingest.Datagram{{From: from, First: ingest.Span{Length: uint32(at)}}}, &c.events)
	c.whole = append(c.whole, c.events.Complete...)
	for _, told := range c.events.Reported {
		if told.To == from && told.RequestID == uint32(id) {
			return false
		}
	}
	return true
}

func (c *contest) round(served int) {
	c.t.Helper()
	order := c.random.Perm(4 * len(c.rivals))
	for i, n := range order {
		r := &c.rivals[n%len(c.rivals)]
		r.next++
		c.request(r.from, r.next, r.complete)
		for i == len(order)/2 && c.heldBy(c.good) < c.demand {
			c.sent++
			if !c.request(c.good, c.sent, true) {
				c.busy++
				break
			}
		}
	}
	for range min(served, len(c.whole)) {
		c.events.Reset()
		c.a.End(c.now, c.whole[0], &wire.Result{}, nil, &c.events)
		c.whole = c.whole[1:]
	}
	c.now += int64(c.config.Deadline / 20)
	c.events.Reset()
	c.a.Expire(c.now, &c.events)
	if err := c.a.Check(); err != nil {
		c.t.Fatalf("%v", err)
	}
}

// TestFairness checks the guarantee of fair.go. A client within its share is served, whatever
// others do. Clients that want more than their share hold equally many slots.
func TestFairness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &contest{
			harness: newHarness(t, func(c *Config) { c.Slots = 128; c.MaxFragments = 20 }),
			random:  rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)),
			good:    address(200),
		}
		n := rapid.IntRange(1, 30).Draw(t, "rivals")
		equal := slotsOf(c.config.Slots, 0, n+1, n).equal
		c.demand = rapid.IntRange(1, max(1, min(8, equal/2))).Draw(t, "demand")
		complete := rapid.SampledFrom([]string{"all", "none", "some"}).Draw(t, "complete requests")
		strangers := rapid.IntRange(0, 5).Draw(t, "strangers")
		for i := range n + strangers {
			r := rival{from: address(1 + i), complete: complete == "all" || complete == "some" && i%2 == 0}
			if i >= n {
				r.from = netip.AddrPortFrom(outsider.Addr(), uint16(7000+i))
			}
			c.rivals = append(c.rivals, r)
		}
		served := rapid.IntRange(2, 40).Draw(t, "answers per round")

		for range 100 {
			c.round(served + c.demand)
		}
		c.sent, c.busy = 1000, 0
		sums := make([]int, n)
		const rounds = 100
		for range rounds {
			c.round(served + c.demand)
			for i := range sums {
				sums[i] += c.heldBy(c.rivals[i].from)
			}
		}
		if sent := c.sent - 1000; c.busy*20 > sent {
			t.Errorf("%d of %d requests of the well-behaved client were turned away", c.busy, sent)
		}
		if complete == "some" || sums[0] < rounds*c.config.Slots/(n+2)/2 {
			return // no party wants more than it gets
		}
		most, fewest := 0, 1<<30
		for _, sum := range sums {
			most, fewest = max(most, sum), min(fewest, sum)
		}
		if most-fewest > rounds*2+most/4 {
			t.Errorf("rivals that want all hold from %.1f to %.1f slots", float64(fewest)/rounds, float64(most)/rounds)
		}
	})
}

// TestPorts checks the same for the ports of one address, and of a trusted one.
func TestPorts(t *testing.T) {
	gateway := netip.MustParseAddr("127.0.1.1")
	for _, row := range []struct {
		name    string
		trusted []netip.Prefix
		// min slots of the other address, and of each port of the gateway
		other, port int
	}{
		{"one address", nil, 15, 2},
		{"trusted", []netip.Prefix{netip.MustParsePrefix("127.0.1.0/24")}, 6, 6},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newHarness(t, func(c *Config) { c.Trusted = row.trusted })
			c := &contest{harness: b, random: rand.New(rand.NewPCG(1, 1)), good: address(200), demand: 1}
			for port := range 5 {
				c.rivals = append(c.rivals, rival{from: netip.AddrPortFrom(gateway, uint16(6000+port)), complete: true})
			}
			c.rivals = append(c.rivals, rival{from: address(9), complete: true})
			for range 200 {
				c.round(4)
			}
			held := []int{}
			for _, r := range c.rivals {
				held = append(held, c.heldBy(r.from))
			}
			for i, n := range held {
				least := row.port
				if i == 5 {
					least = row.other
				}
				if n < least {
					t.Errorf("slots held by five ports and another address: %v; want at least %d each, %d", held, row.port, row.other)
					break
				}
			}
			if c.busy*20 > c.sent {
				t.Errorf("%d of %d requests of a third address were turned away", c.busy, c.sent)
			}
		})
	}
}

// TestTakeSlot makes clients hold slots, in the order of the rows, and then sends another
// request.
func TestTakeSlot(t *testing.T) {
	type holding struct {
		from     netip.AddrPort
		complete int // slots; these cannot be evicted
		gather   int // slots
	}
	a, b := address(1), address(2)
	port := netip.AddrPortFrom(a.Addr(), a.Port()+1)
	// others returns clients, from some address on, that hold equally many slots each.
	others := func(first, n, slots int) (all []holding) {
		for i := range n {
			all = append(all, holding{from: address(first + i), complete: slots})
		}
		return all
	}
	for _, row := range []struct {
		name   string
		held   []holding
		from   netip.AddrPort
		taken  bool
		victim netip.AddrPort // its oldest request is evicted
	}{
		// 13 addresses: each may hold 4 of 64 slots when 11 are free.
		{"an address holds one more", append([]holding{{b, 0, 5}, {a, 4, 0}}, others(3, 11, 4)...), a, false, netip.AddrPort{}},
		{"an address holds two more", append([]holding{{b, 0, 6}, {a, 4, 0}}, others(3, 11, 4)...), a, true, b},
		{"two more, complete", append([]holding{{b, 6, 0}, {a, 4, 0}}, others(3, 11, 4)...), a, false, netip.AddrPort{}},

		// 18 addresses: each may hold 3 when 12 are free, so the ports of one compete.
		{"a port holds one more", append([]holding{{a, 1, 0}, {port, 0, 2}, {b, 17, 0}}, others(3, 16, 2)...), a, false, netip.AddrPort{}},
		{"a port holds two more", append([]holding{{a, 1, 0}, {port, 0, 3}, {b, 17, 0}}, others(3, 16, 2)...), a, true, port},

		// An address may hold 18 when 8 are free, and one of its two ports less than 16.
		{"a port at its limit, its address below", []holding{{b, 40, 0}, {port, 0, 0}, {a, 16, 0}}, a, false, netip.AddrPort{}},
		{"another port of that address", []holding{{b, 40, 0}, {port, 0, 0}, {a, 16, 0}}, port, true, netip.AddrPort{}},

		{"the class above its part", []holding{{outsider, 0, 40}, {a, 24, 0}}, a, true, outsider},
		{"the class at its part", []holding{{outsider, 0, 8}, {a, 56, 0}}, a, false, netip.AddrPort{}},
		{"the class against itself", []holding{{outsider, 0, 40}, {a, 24, 0}}, outsider, false, netip.AddrPort{}},
		{"the class below its part", []holding{{outsider, 0, 7}, {a, 0, 35}, {b, 15, 0}}, outsider, true, a},
	} {
		t.Run(row.name, func(t *testing.T) {
			onBed(t, nil, func(b *harness) {
				id := 0
				begin := func(from netip.AddrPort, complete bool) *Events {
					id++
					if complete {
						return b.send(from, fragment{id: id, size: testRequest})
					}
					return b.send(from, fragment{id: id, index: 1})
				}
				for _, h := range row.held {
					if h.complete+h.gather == 0 {
						b.send(h.from, fragment{id: 1, total: 1, size: 1}) // refused: it holds no slot
					}
					for i := range h.complete + h.gather {
						if e := begin(h.from, i < h.complete); len(e.Reported) != 0 {
							t.Fatalf("slot %d of %v: told %+v", i+1, h.from, e.Reported)
						}
					}
				}

				begun := b.a.Stats().Begun
				e := begin(row.from, false)
				if taken := b.a.Stats().Begun > begun; taken != row.taken {
					t.Errorf("request gets a slot: %v, want %v", taken, row.taken)
				}
				var victims []netip.AddrPort
				for _, told := range e.Reported {
					if told.RequestID != uint32(id) {
						victims = append(victims, told.To)
					}
				}
				wanted := []netip.AddrPort(nil)
				if row.victim.IsValid() {
					wanted = []netip.AddrPort{row.victim}
				}
				want(b, "victims", victims, wanted)
			})
		})
	}
}

func TestGroupKey(t *testing.T) {
	c := Config{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:1::/48")}}
	for _, row := range []struct{ from, want string }{
		{"192.0.2.1:5000", "192.0.2.1:0"},
		{"10.1.2.3:5000", "10.1.2.3:5000"},
		{"[2001:db8::1]:5000", "[2001:db8::]:0"},
		{"[2001:db8::ffff:0:0:1]:5000", "[2001:db8::]:0"},
		{"[2001:db8:0:1::1]:5000", "[2001:db8:0:1::]:0"},
		{"[2001:db8:1::1]:5000", "[2001:db8:1::1]:5000"},
		{"[fe80::1%2]:5000", "[fe80::]:0"},
	} {
		if got := fmt.Sprint(c.groupKey(netip.MustParseAddrPort(row.from))); got != row.want {
			t.Errorf("%s is in group %s, want %s", row.from, got, row.want)
		}
	}
}

func TestLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(1, 1<<16).Draw(t, "total")
		parties := rapid.IntRange(0, 2000).Draw(t, "parties")
		holders := rapid.IntRange(0, parties).Draw(t, "holders")
		held := rapid.IntRange(0, total).Draw(t, "held")
		free := rapid.IntRange(0, total-held).Draw(t, "free")
		for _, s := range []func(free int) supply{
			func(free int) supply { return slotsOf(total, free, parties, holders) },
			func(free int) supply { return portsOf(total, total-free, parties, holders) },
			func(free int) supply { return classOf(total, free, holders) },
		} {
			// A party takes as many slots as room returns, one after the other, and no more.
			n := s(free).room(held, total)
			for i := range n {
				if l := s(free - i).limit(); held+i >= l {
					t.Fatalf("%+v: room is %d, but after %d the limit is %d", s(free), n, i, l)
				}
			}
			if n < free && held+n < s(free-n).limit() {
				t.Fatalf("%+v: room is %d, but one more is below the limit", s(free), n)
			}
		}
		// mayTake relies on this: no port of a group at its limit gets a slot.
		ports, port := 1, total-free
		if rapid.Bool().Draw(t, "several ports") {
			ports, port = 2+parties, rapid.IntRange(0, total-free).Draw(t, "held by the port")
		}
		groupLimit := rapid.IntRange(0, total-free).Draw(t, "limit of the group")
		if s := portsOf(groupLimit, total-free, ports, min(ports, 1+holders)); port < s.limit() {
			t.Fatalf("%+v: limit of a port that holds %d is %d, but the group holds %d", s, port, s.limit(), total-free)
		}
		if s := slotsOf(total, 0, parties, holders); s.parties > 0 && total >= 64 && s.parties < total/2 && s.equal*s.parties+total/classPart >= total {
			t.Fatalf("%+v: equal parts and the class leave nothing for a newcomer", s)
		}
	})
}

// Parties that all take their share get it, in whatever order they come.
func TestSharesFit(t *testing.T) {
	for _, total := range []int{64, 128, 1000, 4096} {
		for parties := 1; parties <= total/2; parties += 1 + parties/8 {
			for _, inTurn := range []bool{true, false} {
				held := make([]int, parties)
				s := slotsOf(total, total, parties, 0)
				share := s.share()
				for i := range parties * share {
					at := i / share
					if inTurn {
						at = i % parties
					}
					if held[at] == 0 {
						s.holders++
					}
					if 2*s.free < total && held[at] >= s.limit() {
						t.Fatalf("%d of %d parties hold %d of %d slots each, and %d is refused with %d", s.holders, parties, share, total, at, held[at])
					}
					held[at]++
					s.free--
				}
			}
		}
	}
}
