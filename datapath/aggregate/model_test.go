package aggregate

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

// model predicts the aggregator's behavior in the simplest way: maps, loops over everything,
// and payloads instead of descriptors. It remembers all requests that have ended. It
// therefore agrees with the aggregator as long as that drops none for lack of room.
type model struct {
	c        Config
	live     []*gathered // in the order in which they began
	ended    map[key]*ended
	ports    map[netip.AddrPort]map[netip.AddrPort]bool // clients with proof, by group
	proves   func(k key, p fragment) bool
	complete []key
	reported []string
	again    []string
	nacks    []string
}

type key struct {
	from netip.AddrPort
	id   uint32
}

type gathered struct {
	key
	count, size             int
	fragments               map[int]bool
	first, progress, nacked int64
	nacks                   int
	complete, proved        bool
	answered                bool // and its slot is not free
	sentAt                  uint64
	extended                bool
}

type ended struct {
	status            wire.Status
	payload           string
	answered, expires int64
	stranger          bool
}

func (k key) group() netip.AddrPort { return netip.AddrPortFrom(k.from.Addr(), 0) }

// held returns how many slots are held by clients for which of returns true.
func (m *model) held(of func(g *gathered) bool) (n int) {
	for _, g := range m.live {
		if of(g) {
			n++
		}
	}
	return n
}

func (m *model) heldBy(k key, proved bool) int {
	return m.held(func(g *gathered) bool { return g.proved == proved && (!proved || g.group() == k.group()) })
}

func (m *model) heldByPort(k key) int {
	return m.held(func(g *gathered) bool { return g.proved && g.from == k.from })
}

// holders returns how many parties with proof hold slots. of returns the party of a client,
// and the zero value for none.
func (m *model) holders(of func(k key) netip.AddrPort) int {
	parties := map[netip.AddrPort]bool{}
	for _, g := range m.live {
		if p := of(g.key); g.proved && p.IsValid() {
			parties[p] = true
		}
	}
	return len(parties)
}

func inGroup(o, k key) netip.AddrPort {
	if o.group() != k.group() {
		return netip.AddrPort{}
	}
	return o.from
}

// room reports whether a new request gets a slot, and returns the request that is evicted for
// it.
func (m *model) room(k key, proved bool) (victim *gathered, ok bool) {
	total, free, parties, ports := m.c.Slots, m.c.Slots-len(m.live), len(m.ports), len(m.ports[k.group()])
	held, l := m.heldBy(k, proved), slotsOf(total, free, parties, m.holders(key.group)).limit()
	class := m.heldBy(key{}, false)
	share := max(l, slotsOf(total, free, parties, 1).equal)
	if free > 0 && !proved && held < classOf(total, free, m.holders(key.group)).limit() {
		return nil, true
	}
	if free > 0 && proved && held < l && m.heldByPort(k) < portsOf(l, held, ports, m.holders(func(o key) netip.AddrPort { return inGroup(o, k) })).limit() {
		return nil, true
	}
	belowPort := m.heldByPort(k)*ports < held
	belowGroup := held*parties <= total-free-class && m.heldByPort(k)*ports <= held
	if !proved {
		belowPort, belowGroup = false, class < total/classPart
	}
	for _, g := range m.live {
		other := m.heldBy(g.key, g.proved)
		switch {
		case g.complete:
		case !g.proved && proved && belowGroup && class > total/classPart,
			g.proved && proved && g.group() == k.group() && belowPort && m.heldByPort(g.key) >= m.heldByPort(k)+2,
			g.proved && !(proved && g.group() == k.group()) && belowGroup && other > share && other >= held+2 &&
				m.heldByPort(g.key)*len(m.ports[g.group()]) >= other:
			return g, true
		}
	}
	return nil, false
}

// richest returns the request that is evicted when memory runs out.
func (m *model) richest() (found *gathered) {
	for _, g := range m.live {
		if !g.complete && (found == nil || m.heldBy(g.key, g.proved) > m.heldBy(found.key, found.proved)) {
			found = g
		}
	}
	return found
}

func (m *model) seen(k key, proved bool) {
	if proved {
		if m.ports[k.group()] == nil {
			m.ports[k.group()] = map[netip.AddrPort]bool{}
		}
		m.ports[k.group()][k.from] = true
	}
}

func (m *model) find(k key) *gathered {
	for _, g := range m.live {
		if g.key == k && !g.answered {
			return g
		}
	}
	return nil
}

func (m *model) end(now int64, g *gathered, status wire.Status, payload string) {
	m.live = slices.DeleteFunc(m.live, func(o *gathered) bool { return o == g })
	m.remember(now, g.key, status, payload)
}

// answerEarly ends a request that keeps its slot.
func (m *model) answerEarly(now int64, g *gathered) {
	g.answered = true
	m.remember(now, g.key, wire.StatusLate, "")
}

// free frees the slot of a request that was answered early.
func (m *model) free(k key) {
	at := slices.IndexFunc(m.live, func(o *gathered) bool { return o.key == k && o.answered })
	m.live = slices.Delete(m.live, at, at+1)
}

func (m *model) remember(now int64, k key, status wire.Status, payload string) {
	life := m.c.AnsweredFor
	if status == wire.StatusBusy || status == wire.StatusRefused {
		life = m.c.TurnedAwayFor
	}
	m.ended[k] = &ended{status: status, payload: payload, answered: now, expires: now + int64(life)}
}

func (m *model) tell(now int64, g *gathered, status wire.Status) {
	m.reported = append(m.reported, fmt.Sprint(g.key, status, g.sentAt))
	m.end(now, g, status, "")
	m.ended[g.key].stranger = status == wire.StatusBusy && !g.proved
}

func (m *model) add(now int64, k key, p fragment) {
	h := wire.FragmentHeader(wire.TypeData, k.id, p.total, p.size, p.index)
	asks := p.again && p.index == 0
	proved := m.proves(k, p)
	if e := m.ended[k]; e != nil && e.stranger && proved && !p.shed {
		delete(m.ended, k)
	}
	if e := m.ended[k]; e != nil && e.expires > now {
		if asks && now-e.answered >= int64(againAfter) {
			e.answered = now
			m.again = append(m.again, fmt.Sprint(k, e.status, e.payload))
		}
		return
	}
	g := m.find(k)
	if g == nil {
		m.seen(k, proved)
		g = &gathered{key: k, proved: proved, count: int(h.Count), size: p.size, fragments: map[int]bool{}, first: now, progress: now, nacked: now}
		if p.extension != nil && p.index == 0 {
			g.sentAt = p.extension.SentAt
		}
		if p.total != m.c.RequestBytes || p.size < m.c.MinFragmentBytes {
			m.tell(now, g, wire.StatusRefused)
			return
		}
		if p.shed {
			m.tell(now, g, wire.StatusBusy)
			m.ended[k].stranger = false
			return
		}
		victim, ok := m.room(k, proved)
		if !ok {
			m.tell(now, g, wire.StatusBusy)
			return
		}
		if victim != nil {
			m.tell(now, victim, wire.StatusBusy)
		}
		m.live = append(m.live, g)
	}
	if proved && !g.proved {
		g.proved = true
		m.seen(k, true)
	}
	if p.total != m.c.RequestBytes || p.size != g.size {
		return
	}
	if p.shed {
		if !g.complete {
			if p.extension != nil && !g.extended {
				g.sentAt = p.extension.SentAt
			}
			m.tell(now, g, wire.StatusBusy)
			m.ended[k].stranger = false
		}
		return
	}
	if !g.fragments[p.index] && !g.complete {
		g.fragments[p.index] = true
		if g.progress != now {
			g.progress, g.nacks = now, 0
		}
		if p.extension != nil && p.index == 0 && !g.extended {
			g.extended, g.sentAt = true, p.extension.SentAt
		}
		if len(g.fragments) == g.count {
			g.complete = true
			m.complete = append(m.complete, k)
		}
	}
	if asks && !g.complete && now-g.nacked >= int64(againAfter) {
		m.nack(now, g)
	}
}

func (m *model) nack(now int64, g *gathered) {
	missing := ""
	for i := range g.count {
		if !g.fragments[i] {
			missing += fmt.Sprint(i, " ")
		}
	}
	g.nacks = min(g.nacks+1, m.c.MaxNACKs)
	g.nacked = now
	m.nacks = append(m.nacks, fmt.Sprint(g.key, missing))
}

// next returns when the next action is due, and its request.
func (m *model) next() (at int64, g *gathered, nack bool) {
	for _, o := range m.live {
		if o.complete {
			continue
		}
		if t := o.first + int64(m.c.Deadline); g == nil || t < at || t == at && nack {
			at, g, nack = t, o, false
		}
		if t := max(o.progress, o.nacked) + int64(m.c.NACKAfter)<<o.nacks; o.nacks < m.c.MaxNACKs && t < at {
			at, g, nack = t, o, true
		}
	}
	return at, g, nack
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newHarness(t, func(c *Config) {
			c.Deadline = 20 * time.Millisecond
			c.AnsweredFor, c.TurnedAwayFor = 40*time.Millisecond, 15*time.Millisecond
			c.MaxNACKs = 2
		})
		m := &model{c: b.config, ended: map[key]*ended{}, ports: map[netip.AddrPort]map[netip.AddrPort]bool{}}
		m.proves = func(k key, p fragment) bool {
			return k.from.Addr().IsLoopback() ||
				p.index == 0 && p.extension != nil && b.a.common.cookies.proves(b.now, k.from, p.extension.Cookie)
		}
		clients := []netip.AddrPort{address(1), address(2), netip.MustParseAddrPort("127.0.0.1:5001"), address(3), outsider, netip.MustParseAddrPort("192.0.2.1:5001")}
		whole, answered := map[uint32]key{}, map[uint32]key{}
		slotsTaken := rapid.SampledFrom([]int{0, b.config.Slots - 6, b.config.Slots}).Draw(t, "slots taken from the start")
		compare := func() {
			t.Helper()
			var got []key
			for _, slot := range b.events.Complete {
				o, ok := b.a.Origin(slot)
				if !ok || whole[slot] != (key{}) {
					t.Fatalf("slot %d became whole, but is not, or was before", slot)
				}
				if !bytes.Equal(b.assemble(slot), picture(o.RequestID, testRequest)) {
					t.Fatalf("request %v %d is not the picture that was sent", o.From, o.RequestID)
				}
				whole[slot] = key{o.From, o.RequestID}
				got = append(got, whole[slot])
			}
			var told, again, wishes []string
			for _, a := range b.events.Reported {
				told = append(told, fmt.Sprint(key{a.To, a.RequestID}, a.Status, a.SentAt))
			}
			for _, a := range b.events.Again {
				again = append(again, fmt.Sprint(key{a.To, a.RequestID}, a.Status, string(a.Payload)))
			}
			for _, w := range b.events.NACKs {
				missing := ""
				for i := range int(w.Count) {
					if w.Present[i/64]&(1<<(i%64)) == 0 {
						missing += fmt.Sprint(i, " ")
					}
				}
				wishes = append(wishes, fmt.Sprint(key{w.To, w.RequestID}, missing))
			}
			// Events due at the same time may come in any order.
			for _, s := range [][]string{told, again, wishes, m.reported, m.again, m.nacks} {
				slices.Sort(s)
			}
			same := slices.Equal(got, m.complete) && slices.Equal(told, m.reported) && slices.Equal(again, m.again) && slices.Equal(wishes, m.nacks)
			if !same {
				t.Fatalf("aggregator: whole %v, told %v, again %v, wishes %v\nmodel:      whole %v, told %v, again %v, wishes %v",
					got, told, again, wishes, m.complete, m.reported, m.again, m.nacks)
			}
			if s := b.a.Stats(); s.Gathering+s.InFlight != len(m.live) {
				t.Fatalf("aggregator has %d + %d live requests, the model %d", s.Gathering, s.InFlight, len(m.live))
			}
			m.complete, m.reported, m.again, m.nacks = nil, nil, nil, nil
		}
		// Most slots are full of complete requests, so that a handful fills the rest. Some
		// are incomplete, so that they can be evicted.
		incomplete := rapid.SampledFrom([]int{1000, 7, 2}).Draw(t, "every which request from the start is incomplete")
		for id := range slotsTaken {
			from, fragments := address(97+id%3), all(id)
			if id%incomplete == incomplete-1 {
				fragments = all(id, 0)
			}
			for i := range fragments {
				fragments[i].total, fragments[i].size = testRequest, testFragment
				m.add(b.now, key{from, uint32(id)}, fragments[i])
			}
			b.send(from, fragments...)
			compare()
		}
		t.Repeat(map[string]func(*rapid.T){
			"fragments": func(t *rapid.T) {
				var batch []ingest.Datagram
				for range rapid.IntRange(1, 12).Draw(t, "fragments") {
					k := key{rapid.SampledFrom(clients).Draw(t, "client"), uint32(rapid.IntRange(1, 8).Draw(t, "id"))}
					p := fragment{id: int(k.id), total: testRequest, size: testFragment, again: rapid.Bool().Draw(t, "retransmitted"), padded: rapid.Bool().Draw(t, "padded")}
					switch rapid.IntRange(0, 40).Draw(t, "kind") {
					case 0:
						p.total = 999
					case 1:
						p.size = 99
					case 2:
						p.size = 250
					}
					p.index = rapid.IntRange(0, wire.Fragments(p.total, p.size)-1).Draw(t, "index")
					if rapid.Bool().Draw(t, "extended") {
						p.extension = &wire.Extension{SentAt: uint64(rapid.IntRange(1, 9).Draw(t, "sent at"))}
						if rapid.Bool().Draw(t, "cookie") {
							p.extension.Cookie = b.a.common.cookies.at(b.now, k.from)
						}
					}
					p.shed = p.index == 0 && rapid.IntRange(0, 3).Draw(t, "shed") == 0
					d := p.datagram()
					landed := b.land(k.from, d, rapid.IntRange(0, len(d)).Draw(t, "straddles at"))
					landed.Shed = p.shed
					batch = append(batch, landed)
					m.add(b.now, k, p)
				}
				b.add(batch...)
				compare()
			},
			"the rest of a request": func(t *rapid.T) {
				k := key{rapid.SampledFrom(clients).Draw(t, "client"), uint32(rapid.IntRange(1, 8).Draw(t, "id"))}
				fragments := rapid.Permutation(all(int(k.id))).Draw(t, "order")
				for i := range fragments {
					fragments[i].total, fragments[i].size = testRequest, testFragment
					m.add(b.now, k, fragments[i])
				}
				b.send(k.from, fragments...)
				compare()
			},
			"answer": func(t *rapid.T) {
				if len(whole) == 0 {
					t.Skip("nothing is whole")
				}
				slots := make([]uint32, 0, len(whole))
				for slot := range whole {
					slots = append(slots, slot)
				}
				slices.Sort(slots)
				slot := rapid.SampledFrom(slots).Draw(t, "slot")
				status := rapid.SampledFrom([]wire.Status{wire.StatusOK, wire.StatusLate, wire.StatusFailed, wire.StatusBusy}).Draw(t, "status")
				payload := fmt.Sprint("answer to ", whole[slot], " at ", b.now)
				m.end(b.now, m.find(whole[slot]), status, payload)
				delete(whole, slot)
				b.end(slot, status, payload)
				compare()
			},
			"answer early": func(t *rapid.T) {
				if len(whole) == 0 {
					t.Skip("nothing is whole")
				}
				slot := rapid.SampledFrom(slices.Sorted(maps.Keys(whole))).Draw(t, "slot")
				m.answerEarly(b.now, m.find(whole[slot]))
				answered[slot] = whole[slot]
				delete(whole, slot)
				b.answerEarly(slot)
				compare()
			},
			"free": func(t *rapid.T) {
				if len(answered) == 0 {
					t.Skip("nothing was answered early")
				}
				slot := rapid.SampledFrom(slices.Sorted(maps.Keys(answered))).Draw(t, "slot")
				m.free(answered[slot])
				delete(answered, slot)
				if !b.free(slot) {
					t.Fatalf("slot %d was answered early and is not freed", slot)
				}
				compare()
			},
			"time": func(t *rapid.T) {
				d := time.Duration(rapid.IntRange(1, 12).Draw(t, "half milliseconds")) * time.Millisecond / 2
				for at, g, nack := m.next(); g != nil && at <= b.now+int64(d); at, g, nack = m.next() {
					if nack {
						m.nack(at, g)
					} else {
						m.tell(at, g, wire.StatusIncomplete)
					}
				}
				b.pass(d)
				compare()
			},
			"pressure": func(t *rapid.T) {
				if g := m.richest(); g != nil && rapid.IntRange(0, 9).Draw(t, "how bad") == 0 {
					m.tell(b.now, g, wire.StatusBusy)
					b.events.Reset()
					b.a.EvictOldest(b.now, &b.events)
					b.settle()
					compare()
				}
			},
		})
		b.atEnd()
	})
}

func TestIndexIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 40
		x, in := newIndex(most), map[uint32]uint32{} // reference to hash
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				if ref := rapid.Uint32Range(0, 99).Draw(t, "ref"); len(in) < most {
					if _, ok := in[ref]; !ok {
						// Few hashes, including the table's end: they collide.
						in[ref] = rapid.SampledFrom([]uint32{0, 1, 2, 126, 127, 128, 255, 1<<32 - 1}).Draw(t, "hash")
						x.insert(in[ref], ref)
					}
				}
			},
			"remove": func(t *rapid.T) {
				ref := rapid.Uint32Range(0, 99).Draw(t, "ref")
				if hash, ok := in[ref]; ok {
					x.remove(hash, ref)
					delete(in, ref)
				}
			},
			"": func(t *rapid.T) {
				for ref, hash := range in {
					found := 0
					for got, at, ok := x.find(hash, hash); ok; got, at, ok = x.find(hash, at+1) {
						if in[got] != hash {
							t.Fatalf("found %d under %d", got, hash)
						}
						if got == ref {
							found++
						}
					}
					if found != 1 {
						t.Fatalf("%d is found %d times under %d", ref, found, hash)
					}
				}
				if x.used != len(in) {
					t.Fatalf("%d are in, %d counted", len(in), x.used)
				}
			},
		})
	})
}

func TestArenaPayload(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := newArena(64)
		var put []string
		var handles []stored
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				p := rapid.StringN(0, 70, 70).Draw(t, "payload")
				put, handles = append(put, p), append(handles, a.put([]byte(p)))
			},
			"": func(t *rapid.T) {
				newer := 0
				for i := len(put) - 1; i >= 0; i-- {
					got, ok := a.get(handles[i])
					if ok && string(got) != put[i] {
						t.Fatalf("payload %q comes back as %q", put[i], got)
					}
					// Payloads that fit one half of the ring never overwrite the other half.
					if newer += len(put[i]); !ok && newer <= 32 {
						t.Fatalf("payload %q is gone, only %d bytes after it", put[i], newer)
					}
				}
			},
		})
	})
}
