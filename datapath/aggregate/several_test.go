package aggregate

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

// several holds the aggregators of one function, over one slab and one table.
type several struct {
	*harness
	all   []*Aggregator
	owner map[uint32]int // of slots with complete requests
	ends  map[string]int // how each request ended, by client and id
}

func newSeveral(t failer, n int, change func(c *Config)) *several {
	s := &several{harness: newHarness(t, change), owner: map[uint32]int{}, ends: map[string]int{}}
	s.all = NewSeveral(n, s.config, s.memory, s.table)
	return s
}

// of returns the aggregator for all of a client's datagrams.
func (s *several) of(client int) int { return client % len(s.all) }

func (s *several) name(from netip.AddrPort, id uint32) string { return fmt.Sprint(from, " ", id) }

// do runs an action on aggregator i, and checks its events and all invariants.
func (s *several) do(i int, what func(a *Aggregator, events *Events)) *Events {
	s.t.Helper()
	s.events.Reset()
	what(s.all[i], &s.events)
	for _, slot := range s.events.Complete {
		if other, ok := s.owner[slot]; ok {
			s.t.Fatalf("slot %d is whole in aggregator %d, and in %d", slot, i, other)
		}
		s.owner[slot] = i
		o, _ := s.all[i].Origin(slot)
		s.ends[s.name(o.From, o.RequestID)]++
		if !bytes.Equal(s.assemble(slot), picture(o.RequestID, testRequest)) {
			s.t.Fatalf("slot %d does not have the fragments of its request", slot)
		}
	}
	for _, told := range s.events.Reported {
		if told.Status == wire.StatusIncomplete {
			s.ends[s.name(told.To, told.RequestID)]++
		}
	}
	s.look()
	return &s.events
}

// look releases the spans of the events and checks the invariants across all aggregators.
func (s *several) look() {
	s.t.Helper()
	for _, span := range s.events.Release {
		for at := span.Offset; at < span.Offset+uint64(span.Length); at++ {
			if !s.held[at] {
				s.t.Fatalf("byte %d of the slab is released and not held", at)
			}
			s.held[at] = false
			s.memory[at] = 0xdd
		}
		s.bytes -= uint64(span.Length)
	}
	var sum Stats
	taken, by := 0, map[int]int{}
	for i, a := range s.all {
		if err := a.Check(); err != nil {
			s.t.Fatalf("aggregator %d: %v", i, err)
		}
		for slot := range a.slots {
			if a.slots[slot].state == stateFree {
				continue
			}
			taken++
			if other, ok := by[slot]; ok {
				s.t.Fatalf("slot %d is aggregator %d's and %d's", slot, i, other)
			}
			by[slot] = i
		}
		stats := a.Stats()
		sum.Add(&stats)
	}
	common := s.all[0].common
	switch {
	case taken+len(common.free) != s.config.Slots, int(common.left.Load()) != len(common.free):
		s.t.Fatalf("%d slots are taken, %d free, %d counted free, of %d", taken, len(common.free), common.left.Load(), s.config.Slots)
	case sum.HeldBytes != s.bytes:
		s.t.Fatalf("aggregators hold %d bytes of the slab, %d are held", sum.HeldBytes, s.bytes)
	case sum.Clients != int(common.clients.Load()+common.strangers.Load()):
		s.t.Fatalf("%d clients, %d counted", sum.Clients, common.clients.Load())
	case sum.Gathering+sum.InFlight != taken:
		s.t.Fatalf("%d gathering, %d in flight, %d slots taken", sum.Gathering, sum.InFlight, taken)
	}
}

func (s *several) send(client, id, index int) *Events {
	s.t.Helper()
	d := s.land(address(client), fragment{id: id, index: index}.datagram(), 0)
	return s.do(s.of(client), func(a *Aggregator, events *Events) { a.Add(s.now, []ingest.Datagram{d}, events) })
}

func (s *several) answer(slot uint32) {
	s.t.Helper()
	i := s.owner[slot]
	delete(s.owner, slot)
	s.do(i, func(a *Aggregator, events *Events) {
		if result := (wire.Result{}); !a.End(s.now, slot, &result, nil, events) {
			s.t.Fatalf("End(%d) = false", slot)
		}
	})
}

// TestSeveralAggregators runs several of them in any order. A slot or a span
// belongs to one at a time. Each request with all its fragments becomes complete once, with the
// bytes that were sent. In the end everything is released.
func TestSeveralAggregators(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSeveral(t, rapid.IntRange(2, 4).Draw(t, "aggregators"), nil)
		// What each client still has to send, by request.
		type request struct{ client, id, next int }
		var open []*request
		id := 0
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				for range rapid.IntRange(1, 12).Draw(t, "how many") {
					id++
					open = append(open, &request{client: rapid.IntRange(0, 7).Draw(t, "client"), id: id})
				}
			},
			"fragments": func(t *rapid.T) {
				for range rapid.IntRange(1, 3*testCount).Draw(t, "how many") {
					if len(open) == 0 {
						return
					}
					at := rapid.IntRange(0, len(open)-1).Draw(t, "of")
					r := open[at]
					s.send(r.client, r.id, r.next)
					if r.next++; r.next == testCount {
						open = append(open[:at], open[at+1:]...)
					}
				}
			},
			"answer": func(t *rapid.T) {
				for slot := range uint32(s.config.Slots) {
					if _, ok := s.owner[slot]; ok && rapid.Bool().Draw(t, "this one") {
						s.answer(slot)
					}
				}
			},
			"evict": func(t *rapid.T) {
				i := rapid.IntRange(0, len(s.all)-1).Draw(t, "of")
				had := s.all[i].Oldest()
				s.do(i, func(a *Aggregator, events *Events) {
					if a.EvictOldest(s.now, events) != (had != 0) {
						s.t.Fatalf("the oldest is of %d, and was evicted: %v", had, had == 0)
					}
				})
			},
			"pass": func(t *rapid.T) {
				s.now += int64(rapid.IntRange(0, 20).Draw(t, "ms")) * int64(time.Millisecond)
				for i := range s.all {
					s.do(i, func(a *Aggregator, events *Events) { a.Expire(s.now, events) })
				}
			},
		})
		for slot := range uint32(s.config.Slots) {
			if _, ok := s.owner[slot]; ok {
				s.answer(slot)
			}
		}
		for range 2 {
			s.now += int64(time.Hour)
			for i := range s.all {
				s.do(i, func(a *Aggregator, events *Events) { a.Expire(s.now, events); a.Add(s.now, nil, events) })
			}
		}
		for name, n := range s.ends {
			if n != 1 {
				t.Errorf("request %s ended %d times", name, n)
			}
		}
		for i, a := range s.all {
			if left := a.Stats(); left.Gathering+left.InFlight+left.Clients+left.Remembered != 0 || a.NextDeadline() != 0 {
				t.Errorf("aggregator %d has left over: %+v, to do at %d", i, left, a.NextDeadline())
			}
		}
	})
}

// All aggregators share the slots: one may have every slot, and then another has none. What
// one releases, another may take.
func TestSeveralShareLimit(t *testing.T) {
	s := newSeveral(t, 2, nil)
	for id := range s.config.Slots {
		for i := range testCount {
			s.send(0, id, i)
		}
	}
	if len(s.owner) != alone {
		t.Fatalf("%d requests are whole, want %d", len(s.owner), alone)
	}
	const second = 5 // the last slots are for a third client
	for id := range second {
		if e := s.send(1, id, 0); len(e.Reported) != 0 {
			t.Fatalf("told %+v, want nothing: slots are free", e.Reported)
		}
	}
	if e := s.send(1, 1000, 0); len(e.Reported) != 1 || e.Reported[0].Status != wire.StatusBusy {
		t.Fatalf("told %+v, want busy: there is no slot left", e.Reported)
	}
	s.answer(0)
	if e := s.send(1, 1001, 0); len(e.Reported) != 0 {
		t.Fatalf("told %+v, want nothing: a slot is free", e.Reported)
	}
	// Each of 2 clients has a fair share of the slots, whichever aggregator serves it.
	s.do(0, func(a *Aggregator, _ *Events) {
		for slot := range uint32(40) {
			if _, ok := s.owner[slot]; ok {
				delete(s.owner, slot)
				a.End(s.now, slot, &wire.Result{}, nil, &s.events)
			}
		}
	})
	if got := s.all[0].Credit(address(0)); got != uint16(ofTwo-17) {
		t.Errorf("client 0, with 17 requests in flight, has a credit of %d, want %d", got, ofTwo-17)
	}
	if got := s.all[1].Credit(address(1)); got != uint16(ofTwo-6) {
		t.Errorf("client 1, with 6 requests in flight, has a credit of %d, want %d", got, ofTwo-6)
	}
	// Silent clients are dropped, even if no datagram arrives.
	for slot := range s.owner {
		s.answer(slot)
	}
	for i := range s.all {
		for next := s.all[i].NextDeadline(); next != 0; next = s.all[i].NextDeadline() {
			s.now = max(s.now, next)
			s.do(i, func(a *Aggregator, events *Events) { a.Expire(s.now, events) })
		}
	}
	if n := s.all[0].common.clients.Load(); n != 0 {
		t.Errorf("%d clients are still counted", n)
	}
}

// A request of a client above its share is evicted for a client below its share, whichever
// aggregator has it.
func TestEvictionAcrossAggregators(t *testing.T) {
	s := newSeveral(t, 2, nil)
	for id := range s.config.Slots {
		s.send(0, id, 0)
	}
	for id := range 5 {
		s.send(1, id, 0)
	}
	if e := s.send(1, 1000, 0); len(e.Reported) != 1 || e.Reported[0].Status != wire.StatusBusy {
		t.Fatalf("told %+v, want busy", e.Reported)
	}
	e := s.do(0, func(a *Aggregator, events *Events) { a.Expire(s.now, events) })
	if len(e.Reported) != 1 || e.Reported[0].To != address(0) || e.Reported[0].Status != wire.StatusBusy {
		t.Fatalf("told %+v, want that the oldest of client 0 is evicted", e.Reported)
	}
	if e := s.send(1, 1001, 0); len(e.Reported) != 0 {
		t.Errorf("told %+v, want nothing", e.Reported)
	}
}

// TestSeveralAggregatorsAtOnce runs each on its own goroutine, under its own lock; another
// goroutine answers. Under the race detector it finds shared data without a guard.
func TestSeveralAggregatorsAtOnce(t *testing.T) {
	const each, clients = 400, 3
	config := Config{
		Slots: minSlots, RequestBytes: testRequest, MaxFragments: 2 * testCount, MinFragmentBytes: testFragment, SLO: time.Minute,
	}
	memory := make([]byte, 3*16<<10)
	table := newPaper(config.Slots, config.MaxFragments)
	all := NewSeveral(3, config, memory, table)
	locks := make([]sync.Mutex, len(all))
	type whole struct {
		of   int
		slot uint32
	}
	answers := make(chan whole, config.Slots)
	var senders, replies sync.WaitGroup
	replies.Go(func() {
		var events Events
		for w := range answers {
			locks[w.of].Lock()
			events.Reset()
			if result := (wire.Result{}); !all[w.of].End(2, w.slot, &result, nil, &events) {
				t.Errorf("slot %d of aggregator %d was whole, and is not", w.slot, w.of)
			}
			locks[w.of].Unlock()
		}
	})
	for i := range all {
		senders.Go(func() {
			var events Events
			part := memory[i*16<<10:]
			for id := range each {
				at := 0
				var batch []ingest.Datagram
				for n := range testCount {
					d := fragment{id: id, index: n}.datagram()
					copy(part[at:], d)
					batch = append(batch, ingest.Datagram{From: address(i + len(all)*(id%clients)), First: ingest.Span{Offset: uint64(i*16<<10 + at), Length: uint32(len(d))}})
					at += len(d)
				}
				locks[i].Lock()
				events.Reset()
				all[i].Add(1, batch, &events)
				locks[i].Unlock()
				for _, slot := range events.Complete {
					if table.requests[slot].ID != uint32(id) {
						t.Errorf("slot %d has request %d, want %d", slot, table.requests[slot].ID, id)
					}
					answers <- whole{i, slot}
				}
			}
		})
	}
	senders.Wait()
	close(answers)
	replies.Wait()
	var sum Stats
	for _, a := range all {
		if err := a.Check(); err != nil {
			t.Error(err)
		}
		stats := a.Stats()
		sum.Add(&stats)
	}
	// A request that found every slot taken was turned away; a request ends in no other way.
	if sum.Complete+sum.Busy != uint64(len(all)*each) || sum.Gathering+sum.InFlight != 0 || all[0].common.left.Load() != int64(config.Slots) {
		t.Errorf("of %d requests: %+v, %d slots free", len(all)*each, sum, all[0].common.left.Load())
	}
}

// BenchmarkSeveral compares aggregators of one function that run concurrently, each on its
// own thread and under its own lock, with a single one. Each has a processor if there are
// enough.
func BenchmarkSeveral(b *testing.B) {
	for _, n := range []int{1, 2} {
		b.Run(fmt.Sprintf("aggregators=%d", n), func(b *testing.B) {
			var streams []*stream
			for range n {
				streams = append(streams, newStream(camera.Addr(), 147, 1))
			}
			for i, a := range NewSeveral(n, streams[0].a.config, nil, streams[0].table) {
				// Each reads its own datagrams; slots and the table are shared.
				a.memory, streams[i].a = streams[i].memory, a
			}
			datagrams := n * b.N * len(streams[0].batch)
			var all sync.WaitGroup
			b.ResetTimer()
			for _, s := range streams {
				all.Go(func() {
					for range b.N {
						s.round()
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(datagrams)/b.Elapsed().Seconds()/1e6, "Mdatagrams/s")
		})
	}
}
