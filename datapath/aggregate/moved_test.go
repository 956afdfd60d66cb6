package aggregate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

var self = node(1)

// node is the address of a node of the tests.
func node(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 5001)
}

// follows are the fragments of a request of a client that follows.
func follows(id int, cookie uint64) []fragment {
	f := all(id)
	f[0].extension = &wire.Extension{Follows: true, SentAt: 5, Cookie: cookie}
	return f
}

// moves fails the test unless a request is moved, and nothing of it is kept.
func (b *harness) moves(from netip.AddrPort, to netip.AddrPort, request ...fragment) {
	b.t.Helper()
	e := b.send(from, request...)
	want(b, "answers", e.Reported, []Answer{{
		To: from, RequestID: uint32(request[0].id), Result: wire.Result{Status: wire.StatusMoved, SentAt: 5, Moved: to, Lifetime: movedFor},
	}})
	if len(e.Complete)+len(e.Again)+len(e.NACKs) > 0 || b.a.Stats().Gathering > 0 {
		b.t.Fatalf("a moved request makes %+v", e)
	}
}

// takes fails the test unless a request completes.
func (b *harness) takes(from netip.AddrPort, request ...fragment) {
	b.t.Helper()
	e := b.send(from, request...)
	if len(e.Complete) != 1 || len(e.Reported) > 0 {
		b.t.Fatalf("request %d: slots %v are complete, answers %+v", request[0].id, e.Complete, e.Reported)
	}
	b.end(e.Complete[0], wire.StatusOK, "answer")
}

func TestMovedDrain(t *testing.T) {
	to := []Peer{{Address: node(2), Weight: 100}}
	drain := func(b *harness) { b.a.SetPeers("f", to, self, 100, true) }

	t.Run("clients that follow are moved", func(t *testing.T) {
		onBed(t, nil, func(b *harness) {
			b.takes(address(1), follows(1, 0)...)
			drain(b)
			b.moves(address(1), node(2), follows(2, 0)...)
			b.takes(address(1), all(3)...)
			other := follows(4, 0)
			other[0].extension = &wire.Extension{Priority: 1}
			b.takes(address(1), other...)
		})
	})
	t.Run("a request that has begun is finished", func(t *testing.T) {
		onBed(t, nil, func(b *harness) {
			request := follows(1, 0)
			b.send(address(1), request[:3]...)
			b.send(address(2), request[3:]...)
			drain(b)
			b.takes(address(1), request[3:]...)
			b.takes(address(2), request[:3]...) // fragment 0 is late: the request has begun without it
		})
	})
	t.Run("a client may stay or return under the same id", func(t *testing.T) {
		onBed(t, nil, func(b *harness) {
			drain(b)
			b.moves(address(1), node(2), follows(1, 0)...)
			b.moves(address(1), node(2), follows(1, 0)...)
			if e := b.send(address(1), all(1, 0)...); len(e.Reported)+len(e.Complete) > 0 || b.a.Stats().Gathering > 0 {
				t.Errorf("fragments without the first make %+v", e)
			}
			b.takes(address(1), all(1)...)
			if e := b.send(address(1), follows(1, 0)...); len(e.Reported)+len(e.Complete) > 0 {
				t.Errorf("a request that was answered makes %+v", e)
			}
		})
	})
	t.Run("no peer is left", func(t *testing.T) {
		onBed(t, nil, func(b *harness) {
			drain(b)
			b.moves(address(1), node(2), follows(1, 0)...)
			b.a.SetPeers("f", nil, self, 100, true)
			b.takes(address(1), follows(1, 0)...)
		})
	})
	t.Run("what is shed is busy", func(t *testing.T) {
		onBed(t, nil, func(b *harness) {
			drain(b)
			first := follows(1, 0)[0]
			first.shed = true
			if e := b.send(address(1), first); len(e.Reported) != 1 || e.Reported[0].Status != wire.StatusBusy {
				t.Errorf("a shed request makes %+v", e.Reported)
			}
		})
	})
	t.Run("the answer is no larger than the question", func(t *testing.T) {
		b := newHarness(t, nil)
		drain(b)
		b.moves(outsider, node(2), follows(1, 0)...)
		answer := wire.AppendResult(nil, 1, &b.events.Reported[0].Result, nil, wire.DefaultFragmentBytes, 0, false)
		if question := follows(1, 0)[0].datagram(); len(answer) > len(question) {
			t.Errorf("an answer of %d bytes to a first fragment of %d", len(answer), len(question))
		}
	})
}

func TestMovedNeedsProof(t *testing.T) {
	t.Run("state", func(t *testing.T) {
		onBed(t, func(c *Config) { c.Streams = true }, func(b *harness) {
			b.a.SetPeers("f", []Peer{{Address: node(2), Weight: 100}}, self, 100, true)
			e := b.send(outsider, follows(1, 0)...)
			if len(e.Reported) != 1 || e.Reported[0].Status != wire.StatusBusy {
				t.Fatalf("a request without proof makes %+v", e.Reported)
			}
			b.moves(outsider, node(2), follows(1, b.a.common.cookies.at(b.now, outsider))[0])
		})
	})
	t.Run("keys", func(t *testing.T) {
		onKeys(t, func(b *harness) {
			b.a.SetPeers("f", []Peer{{Address: node(2), Weight: 100}}, self, 100, true)
			b.refuses("no token", outsider, with(0, 1))
			b.moves(outsider, node(2), follows(1, b.token(outsider, goodKey))...)
		})
	})
}

// membership is the set of nodes of a test, as one of them knows it.
func membership(weights map[int]float64, from int) *peers {
	a := &Aggregator{common: &common{}}
	var others []Peer
	for n := range 300 {
		if weight, ok := weights[n]; ok && n != from {
			others = append(others, Peer{Address: node(n), Weight: weight})
		}
	}
	a.SetPeers("f", others, node(from), weights[from], false)
	return a.common.peers.Load()
}

func (p *peers) of(client netip.Addr) netip.AddrPort { return p.all[p.owner(client)].Address }

// clientAddress is one of many addresses, of both families.
func clientAddress(n int) netip.Addr {
	if n%2 == 0 {
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(n >> 16), byte(n >> 8), byte(n), 0, 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func TestOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.MapOfN(rapid.IntRange(0, 299), rapid.Float64Range(1, 1e6), 3, 17).Draw(t, "weights")
		nodes := []int{}
		for n := range 300 {
			if _, ok := weights[n]; ok {
				nodes = append(nodes, n)
			}
		}
		some := rapid.SliceOfNDistinct(rapid.SampledFrom(nodes), 3, 3, rapid.ID).Draw(t, "nodes")
		here, there, gone := membership(weights, some[0]), membership(weights, some[1]), some[2]
		delete(weights, gone)
		without := membership(weights, some[0])
		for n := range 200 {
			client := clientAddress(n)
			owner := here.of(client)
			if at := there.of(client); at != owner {
				t.Fatalf("%v belongs to %v at one node, to %v at another", client, owner, at)
			}
			if after := without.of(client); owner == node(gone) && after == owner || owner != node(gone) && after != owner {
				t.Fatalf("%v belonged to %v, and belongs to %v without %v", client, owner, after, node(gone))
			}
		}
	})
}

func TestOwnerShares(t *testing.T) {
	const clients = 50_000
	for _, weights := range []map[int]float64{
		{1: 1, 2: 1},
		{1: 100, 2: 300, 3: 600},
		{1: 1e9, 2: 1e9, 3: 5e8},
		{1: 7, 2: 7, 3: 7, 4: 7, 5: 7, 6: 7, 7: 7, 8: 7, 9: 7, 10: 7, 11: 7, 12: 7, 13: 7, 14: 7, 15: 7, 16: 7, 17: 7},
	} {
		p, total, got := membership(weights, 1), 0.0, map[netip.AddrPort]float64{}
		for _, w := range weights {
			total += w
		}
		for n := range clients {
			got[p.of(clientAddress(n))]++
		}
		for n, w := range weights {
			if share, want := got[node(n)]/clients, w/total; math.Abs(share-want) > 0.03*want+0.005 {
				t.Errorf("weights %v: node %d has %.3f of the clients, want %.3f", weights, n, share, want)
			}
		}
	}
}

func TestOwnerOfAddress(t *testing.T) {
	p := membership(map[int]float64{1: 1, 2: 1, 3: 1, 4: 1, 5: 1}, 1)
	for n := range 100 {
		v4 := netip.AddrFrom4([4]byte{10, 1, 1, byte(n)})
		if p.owner(v4) != p.owner(netip.AddrFrom16(v4.As16())) {
			t.Errorf("%v belongs to another node in its IPv6 form", v4)
		}
		network := netip.MustParseAddr("2001:db8::1")
		if host := netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", n+2)); p.owner(host) != p.owner(network) {
			t.Errorf("%v belongs to another node than its network", host)
		}
	}
}

// A node gets more than its rate from clients that send independently. Moved clients stay away for the lifetime.
func TestSurplus(t *testing.T) {
	const clients, rate = 400, 1000.0
	for _, c := range []struct {
		name              string
		offered           float64 // requests per second of all clients together
		elsewhere         float64 // part of the clients that belong elsewhere
		leastAway, mostAt float64 // away and load of the node at the end
	}{
		{"below the rate", 900, 0.5, 0, 900},
		{"slightly above", 1200, 0.5, 0.1, 1060},
		{"twice the rate", 2000, 0.6, 0.4, 1060},
		{"three times the rate", 3000, 0.75, 0.5, 1100},
		{"more than others can take", 2000, 0.25, 0.2, 1600},
		{"none belongs elsewhere", 2000, 0, 0, 2100},
	} {
		t.Run(c.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			var s surplus
			away := make([]float64, clients) // until when, in seconds
			moves, load := 0, 0
			each := c.offered / clients
			next := make([]float64, clients)
			for i := range next {
				next[i] = random.ExpFloat64() / each
			}
			const end, settled = 600.0, 300.0
			for now := 0.0; now < end; now += 0.005 {
				for i := range next {
					if next[i] > now {
						continue
					}
					next[i] += random.ExpFloat64() / each
					if away[i] > now {
						continue
					}
					order := (float64(i) + 0.5) / clients
					if s.moves(int64((now+1)*1e9), rate, float64(i%20) < 20*c.elsewhere, math.Mod(order*7.3, 1)) {
						away[i] = now + movedFor.Seconds()
						moves++
						if now < settled {
							moves = 0
						}
					} else if now > settled {
						load++
					}
				}
			}
			gone := 0
			for i := range away {
				if away[i] > end-movedFor.Seconds()/2 {
					gone++
				}
			}
			if at := float64(load) / (end - settled); at > c.mostAt || at < min(c.offered, rate)*0.7 {
				t.Errorf("%.0f requests per second are left, want %.0f to %.0f", at, min(c.offered, rate)*0.7, c.mostAt)
			}
			if part := float64(gone) / clients; part < c.leastAway*0.8 {
				t.Errorf("%.2f of the clients are away, want %.2f", part, c.leastAway)
			}
			// Clients that are away ask once per lifetime. More moves are clients that come and go.
			if most := 1.3*float64(gone)*(end-settled)/movedFor.Seconds() + 1; float64(moves) > most {
				t.Errorf("%d moves of %d clients, want at most %.0f", moves, gone, most)
			}
		})
	}
}

func TestMovedAboveRate(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		b.a.SetPeers("f", []Peer{{Address: node(2), Weight: 10}}, self, 10, false)
		moved := map[netip.AddrPort]bool{}
		id := 0
		for range 20 * 50 {
			b.now += int64(20 * time.Millisecond)
			id++
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 1, byte(id % 50)}), 5000)
			e := b.send(from, follows(id, 0)...)
			for _, a := range e.Reported {
				if a.Status != wire.StatusMoved || a.Moved != node(2) || b.a.common.peers.Load().owner(from.Addr()) == 0 {
					t.Fatalf("%v gets %+v", from, a)
				}
				moved[from] = true
			}
			for _, slot := range e.Complete {
				b.end(slot, wire.StatusOK, "")
			}
			b.takes(address(1), all(1_000_000+id)...) // does not follow: it counts, and is never moved
		}
		if n := len(moved); n == 0 || n == 50 {
			t.Errorf("%d of 50 clients were moved", n)
		}
		b.a.SetPeers("f", nil, self, 0, false)
		for from := range moved {
			id++
			b.takes(from, follows(id, 0)...)
		}
	})
}

func TestMovedAllocatesNothing(t *testing.T) {
	for _, drain := range []bool{false, true} {
		b := newHarness(t, nil)
		b.a.SetPeers("f", []Peer{{Address: node(2), Weight: 10}, {Address: node(3), Weight: 10}}, self, 10, drain)
		batch := []ingest.Datagram{b.land(address(1), follows(1, 0)[0].datagram(), 0)}
		ask := func() {
			b.now += int64(time.Second)
			b.events.Reset()
			b.a.Add(b.now, batch, &b.events)
			if drain != (len(b.events.Reported) == 1) {
				t.Fatalf("drain %v: answers %+v", drain, b.events.Reported)
			}
		}
		ask()
		if n := testing.AllocsPerRun(1000, ask); n != 0 {
			t.Errorf("drain %v: %v allocations", drain, n)
		}
	}
}
