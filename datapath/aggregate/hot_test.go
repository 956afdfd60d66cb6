package aggregate

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

// stream provides what consecutive reads bring when clients send requests of
// count fragments: datagrams back to back in the slab. The request ids are written
// in place, so that nothing is allocated during the measurement.
type stream struct {
	a      *Aggregator
	memory []byte
	table  *paper
	batch  []ingest.Datagram
	events Events
	now    int64
	id     uint32
	count  int
	// interleave is how many requests arrive mixed, one fragment of each in turn.
	interleave int
}

func newStream(from netip.Addr, count, interleave int) *stream {
	const fragmentBytes = 1024
	s := &stream{count: count, interleave: interleave, now: 1}
	total := count * fragmentBytes
	datagram := fragment{total: total, size: fragmentBytes}.datagram()
	s.memory = make([]byte, interleave*count*len(datagram))
	for i := range count {
		for n := range interleave {
			at := (i*interleave + n) * len(datagram)
			p := fragment{id: n, total: total, size: fragmentBytes, index: i}
			copy(s.memory[at:], p.datagram())
			s.batch = append(s.batch, ingest.Datagram{
				From: netip.AddrPortFrom(from, uint16(6000+n)), First: ingest.Span{Offset: uint64(at), Length: uint32(len(datagram))},
			})
		}
	}
	s.table = newPaper(64, 2*count)
	s.a = New(Config{Slots: 64, RequestBytes: total, MaxFragments: 2 * count, MinFragmentBytes: 512, SLO: 100 * time.Millisecond}, s.memory, s.table)
	return s
}

// round sends and answers as many requests as are interleaved, and returns how
// many became complete.
func (s *stream) round() int {
	s.id++
	for i := range s.batch {
		binary.LittleEndian.PutUint32(s.memory[s.batch[i].First.Offset+4:], s.id)
	}
	whole := 0
	for rest := s.batch; len(rest) > 0; {
		n := min(256, len(rest))
		s.now += 20_000
		s.events.Reset()
		s.a.Add(s.now, rest[:n], &s.events)
		s.a.NextDeadline()
		for _, slot := range s.events.Complete {
			result := wire.Result{Status: wire.StatusOK, Kind: wire.KindTopK}
			s.a.End(s.now, slot, &result, s.memory[:60], &s.events)
			whole++
		}
		rest = rest[n:]
	}
	return whole
}

func TestAddAndEndAllocateNothing(t *testing.T) {
	for _, row := range []struct {
		from       netip.Addr
		interleave int
	}{{camera.Addr(), 1}, {camera.Addr(), 8}, {outsider.Addr(), 1}, {outsider.Addr(), 8}} {
		interleave := row.interleave
		s := newStream(row.from, 147, interleave)
		lossy := s.batch[3]
		for range 20 {
			s.round()
		}
		if n := testing.AllocsPerRun(200, func() {
			if got := s.round(); got != interleave {
				t.Fatalf("%d requests became whole, want %d", got, interleave)
			}
		}); n != 0 {
			t.Errorf("%v, %d interleaved: %v allocations per round", row.from, interleave, n)
		}
		// NACKs, incomplete and late requests, repeated answers: no allocations
		// either in steady state.
		mishap := func() {
			s.id++
			binary.LittleEndian.PutUint32(s.memory[lossy.First.Offset+4:], s.id)
			s.events.Reset()
			s.a.Add(s.now, []ingest.Datagram{lossy}, &s.events)
			for s.a.NextDeadline() != 0 {
				s.now = s.a.NextDeadline()
				s.a.Expire(s.now, &s.events)
			}
			s.memory[lossy.First.Offset+3] |= byte(wire.FlagRetransmitted)
			s.a.Add(s.now, []ingest.Datagram{lossy}, &s.events)
			if len(s.events.Reported) != 1 || len(s.events.NACKs) == 0 {
				t.Fatalf("told %d, wishes %d", len(s.events.Reported), len(s.events.NACKs))
			}
		}
		mishap()
		if n := testing.AllocsPerRun(100, mishap); n != 0 {
			t.Errorf("%v, %d interleaved: %v allocations per mishap", row.from, interleave, n)
		}
	}
}

// TestEvictionAllocatesNothing makes two clients compete for all slots, with a
// third whose address is not proved.
func TestEvictionAllocatesNothing(t *testing.T) {
	s := newStream(camera.Addr(), 10, 1)
	from := []netip.AddrPort{address(1), address(2), outsider}
	d := s.batch[3]
	compete := func() {
		for i := range 3 * 64 {
			s.id++
			binary.LittleEndian.PutUint32(s.memory[d.First.Offset+4:], s.id)
			// The first takes all, then the others want their share.
			d.From = from[min(i/64, len(from)-1)]
			s.now += 1000
			s.events.Reset()
			s.a.Add(s.now, []ingest.Datagram{d}, &s.events)
		}
		s.now += int64(s.a.config.Deadline)
		s.events.Reset()
		s.a.Expire(s.now, &s.events)
	}
	for range 20 {
		compete()
	}
	before := s.a.Stats().Evicted
	if n := testing.AllocsPerRun(50, compete); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
	if s.a.Stats().Evicted == before {
		t.Error("no request was evicted")
	}
}

// BenchmarkAdd measures the cost of a datagram, including its share of the
// request's begin and end, with the memory in the cache. GRO brings one request
// at a time. Interleaved is the worst case: each fragment belongs to another
// request than the one before it.
func BenchmarkAdd(b *testing.B) {
	for _, count := range []int{147, 507} {
		for _, interleave := range []int{1, 16} {
			b.Run(fmt.Sprintf("%dx1KB/interleave=%d", count, interleave), func(b *testing.B) {
				s := newStream(camera.Addr(), count, interleave)
				s.round()
				b.ReportAllocs()
				for b.Loop() {
					s.round()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(s.batch)), "ns/datagram")
			})
		}
	}
}

// FuzzAdd splits bytes into datagrams of a few clients, some of them shed, and
// adds them. Nothing panics, and the invariants hold. Each span is held by a
// live slot or released once, and in the end nothing is left.
func FuzzAdd(f *testing.F) {
	var sound []byte
	for _, p := range append(all(1), fragment{id: 1, again: true, extension: &wire.Extension{Priority: 1}}, fragment{id: 2, padded: true}, fragment{id: 2, total: 999}) {
		d := p.datagram()
		sound = append(sound, 0x20, byte(len(d)), byte(len(d)>>8))
		sound = append(sound, d...)
	}
	f.Add(sound)
	f.Add([]byte{0, 1, 0, 0, 255, 255})
	var cut []byte
	for _, p := range []fragment{{id: 1, shed: true, extension: &wire.Extension{SentAt: 1}}, {id: 2, index: 1}, {id: 2, shed: true, again: true}, {id: 2, shed: true}} {
		d := p.datagram()
		cut = append(cut, 0x80, byte(len(d)), byte(len(d)>>8))
		cut = append(cut, d...)
	}
	f.Add(cut)
	f.Fuzz(func(t *testing.T, data []byte) {
		b := newHarness(t, nil)
		for datagrams := 0; len(data) >= 3 && datagrams < 300; datagrams++ {
			how, n := data[0], int(binary.LittleEndian.Uint16(data[1:]))
			n = min(n, len(data)-3)
			d := b.land(address(int(how&3)), data[3:3+n], int(how>>2))
			d.Shed = how&0x80 != 0
			e := b.add(d)
			for _, slot := range e.Complete {
				if how&4 != 0 {
					b.end(slot, wire.Status(how>>4%wire.NumStatuses), "answer")
				}
			}
			if how&8 != 0 {
				b.pass(time.Duration(how) * time.Millisecond / 16)
			}
			data = data[3+n:]
		}
		b.atEnd()
	})
}
