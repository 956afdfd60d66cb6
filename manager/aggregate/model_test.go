package aggregate

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/manager/source"
	"github.com/penstock/penstock/wire"
)

// model says what the aggregator should do, in the plainest way there is: maps
// and loops over everything, payloads in place of descriptors. It keeps all that
// has ended, so it agrees with the aggregator while nothing is forgotten for want
// of room.
type model struct {
	c      Config
	live   []*gathered // in the order in which they began
	ended  map[key]*ended
	whole  []key
	told   []string
	again  []string
	wishes []string
}

type key struct {
	from netip.AddrPort
	id   uint32
}

type gathered struct {
	key
	count, size             int
	pieces                  map[int]bool
	first, progress, wished int64
	wishes                  int
	whole                   bool
	sentAt                  uint64
	extended                bool
}

type ended struct {
	status            wire.Status
	payload           string
	answered, expires int64
}

func (m *model) find(k key) *gathered {
	for _, g := range m.live {
		if g.key == k {
			return g
		}
	}
	return nil
}

func (m *model) end(now int64, g *gathered, status wire.Status, payload string) {
	m.live = slices.DeleteFunc(m.live, func(o *gathered) bool { return o == g })
	m.remember(now, g.key, status, payload)
}

func (m *model) remember(now int64, k key, status wire.Status, payload string) {
	life := m.c.AnsweredFor
	if status == wire.StatusBusy || status == wire.StatusRefused {
		life = m.c.TurnedAwayFor
	}
	m.ended[k] = &ended{status, payload, now, now + int64(life)}
}

func (m *model) tell(now int64, g *gathered, status wire.Status) {
	m.told = append(m.told, fmt.Sprint(g.key, status, g.sentAt))
	m.end(now, g, status, "")
}

func (m *model) add(now int64, k key, p piece) {
	h := wire.PieceHeader(wire.TypeData, k.id, p.total, p.size, p.index)
	asks := p.again && p.index == 0
	if e := m.ended[k]; e != nil && e.expires > now {
		if asks && now-e.answered >= int64(AgainAfter) {
			e.answered = now
			m.again = append(m.again, fmt.Sprint(k, e.status, e.payload))
		}
		return
	}
	g := m.find(k)
	if g == nil {
		g = &gathered{key: k, count: int(h.Count), size: p.size, pieces: map[int]bool{}, first: now, progress: now, wished: now}
		if p.extension != nil && p.index == 0 {
			g.sentAt = p.extension.SentAt
		}
		if p.total != m.c.RequestBytes || p.size < m.c.MinPieceBytes {
			m.tell(now, g, wire.StatusRefused)
			return
		}
		if p.shed {
			m.tell(now, g, wire.StatusBusy)
			return
		}
		if len(m.live) == m.c.Slots {
			at := slices.IndexFunc(m.live, func(o *gathered) bool { return !o.whole && now-o.progress >= 2*int64(m.c.WishAfter) })
			if at < 0 {
				m.tell(now, g, wire.StatusBusy)
				return
			}
			m.tell(now, m.live[at], wire.StatusBusy)
		}
		m.live = append(m.live, g)
	}
	if p.total != m.c.RequestBytes || p.size != g.size {
		return
	}
	if p.shed {
		if !g.whole {
			if p.extension != nil && !g.extended {
				g.sentAt = p.extension.SentAt
			}
			m.tell(now, g, wire.StatusBusy)
		}
		return
	}
	if !g.pieces[p.index] && !g.whole {
		g.pieces[p.index] = true
		g.progress = now
		if p.extension != nil && p.index == 0 && !g.extended {
			g.extended, g.sentAt = true, p.extension.SentAt
		}
		if len(g.pieces) == g.count {
			g.whole = true
			m.whole = append(m.whole, k)
		}
	}
	if asks && !g.whole && now-g.wished >= int64(m.c.WishAfter) {
		m.wish(now, g)
	}
}

func (m *model) wish(now int64, g *gathered) {
	missing := ""
	for i := range g.count {
		if !g.pieces[i] {
			missing += fmt.Sprint(i, " ")
		}
	}
	g.wishes = min(g.wishes+1, m.c.MaxWishes)
	g.wished = now
	m.wishes = append(m.wishes, fmt.Sprint(g.key, missing))
}

// next is when something is to be done, and the request that it is to be done to.
func (m *model) next() (at int64, g *gathered, wish bool) {
	for _, o := range m.live {
		if o.whole {
			continue
		}
		if t := o.first + int64(m.c.Deadline); g == nil || t < at || t == at && wish {
			at, g, wish = t, o, false
		}
		if t := max(o.progress, o.wished) + int64(m.c.WishAfter)<<o.wishes; o.wishes < m.c.MaxWishes && t < at {
			at, g, wish = t, o, true
		}
	}
	return at, g, wish
}

func TestAggregatorDoesWhatTheModelDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBed(t, func(c *Config) {
			c.Deadline = 20 * time.Millisecond
			c.AnsweredFor, c.TurnedAwayFor = 40*time.Millisecond, 15*time.Millisecond
			c.MaxWishes = 2
		})
		m := &model{c: b.config, ended: map[key]*ended{}}
		whole := map[uint32]key{}
		slotsTaken := rapid.SampledFrom([]int{0, b.config.Slots - 4, b.config.Slots - 2}).Draw(t, "slots taken from the start")
		compare := func() {
			t.Helper()
			var got []key
			for _, slot := range b.events.Whole {
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
			for _, a := range b.events.Told {
				told = append(told, fmt.Sprint(key{a.To, a.RequestID}, a.Status, a.SentAt))
			}
			for _, a := range b.events.Again {
				again = append(again, fmt.Sprint(key{a.To, a.RequestID}, a.Status, string(a.Payload)))
			}
			for _, w := range b.events.Wishes {
				missing := ""
				for i := range int(w.Count) {
					if w.Present[i/64]&(1<<(i%64)) == 0 {
						missing += fmt.Sprint(i, " ")
					}
				}
				wishes = append(wishes, fmt.Sprint(key{w.To, w.RequestID}, missing))
			}
			// What falls due at one time may come in any order.
			for _, s := range [][]string{told, again, wishes, m.told, m.again, m.wishes} {
				slices.Sort(s)
			}
			same := slices.Equal(got, m.whole) && slices.Equal(told, m.told) && slices.Equal(again, m.again) && slices.Equal(wishes, m.wishes)
			if !same {
				t.Fatalf("aggregator: whole %v, told %v, again %v, wishes %v\nmodel:      whole %v, told %v, again %v, wishes %v",
					got, told, again, wishes, m.whole, m.told, m.again, m.wishes)
			}
			if s := b.a.Stats(); s.Gathering+s.InFlight != len(m.live) {
				t.Fatalf("aggregator has %d + %d live requests, the model %d", s.Gathering, s.InFlight, len(m.live))
			}
			m.whole, m.told, m.again, m.wishes = nil, nil, nil, nil
		}
		// Most slots are full of whole requests, so that a handful fills the rest.
		for id := range slotsTaken {
			b.send(address(99), all(id)...)
			for _, p := range all(id) {
				p.total, p.size = testRequest, testPiece
				m.add(b.now, key{address(99), uint32(id)}, p)
			}
			compare()
		}
		t.Repeat(map[string]func(*rapid.T){
			"pieces": func(t *rapid.T) {
				var batch []source.Datagram
				for range rapid.IntRange(1, 12).Draw(t, "pieces") {
					k := key{address(rapid.IntRange(1, 3).Draw(t, "client")), uint32(rapid.IntRange(1, 3).Draw(t, "id"))}
					p := piece{id: int(k.id), total: testRequest, size: testPiece, again: rapid.Bool().Draw(t, "retransmitted"), padded: rapid.Bool().Draw(t, "padded")}
					switch rapid.IntRange(0, 40).Draw(t, "kind") {
					case 0:
						p.total = 999
					case 1:
						p.size = 99
					case 2:
						p.size = 250
					}
					p.index = rapid.IntRange(0, wire.Pieces(p.total, p.size)-1).Draw(t, "index")
					if rapid.Bool().Draw(t, "extended") {
						p.extension = &wire.Extension{SentAt: uint64(rapid.IntRange(1, 9).Draw(t, "sent at"))}
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
				k := key{address(rapid.IntRange(1, 3).Draw(t, "client")), uint32(rapid.IntRange(1, 3).Draw(t, "id"))}
				pieces := rapid.Permutation(all(int(k.id))).Draw(t, "order")
				for i := range pieces {
					pieces[i].total, pieces[i].size = testRequest, testPiece
					m.add(b.now, k, pieces[i])
				}
				b.send(k.from, pieces...)
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
			"time": func(t *rapid.T) {
				d := time.Duration(rapid.IntRange(1, 12).Draw(t, "half milliseconds")) * time.Millisecond / 2
				for at, g, wish := m.next(); g != nil && at <= b.now+int64(d); at, g, wish = m.next() {
					if wish {
						m.wish(at, g)
					} else {
						m.tell(at, g, wire.StatusIncomplete)
					}
				}
				b.pass(d)
				compare()
			},
			"pressure": func(t *rapid.T) {
				if at := slices.IndexFunc(m.live, func(g *gathered) bool { return !g.whole }); at >= 0 && rapid.IntRange(0, 9).Draw(t, "how bad") == 0 {
					m.tell(b.now, m.live[at], wire.StatusBusy)
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
						// Few hashes, at the table's end too: they meet.
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

func TestArenaReturnsAPayloadOrNothing(t *testing.T) {
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
					// Half of the ring is never gone over by what fits the other half.
					if newer += len(put[i]); !ok && newer <= 32 {
						t.Fatalf("payload %q is gone, only %d bytes after it", put[i], newer)
					}
				}
			},
		})
	})
}
