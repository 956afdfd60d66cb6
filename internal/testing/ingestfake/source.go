// Package ingestfake is a source without a network, for tests. Receive returns the
// datagrams that the test injects. The Options make it lose, repeat, reorder and delay
// them on purpose, always in the same way for the same seed. The test can read what is
// sent.
package ingestfake

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/slab"
	"github.com/penstock/penstock/shm"
)

// Options say what happens to an injected datagram. Each probability, 0 to 1, is of one
// fault. The zero value is a perfect network.
type Options struct {
	// SlabBytes is the size of the memory for datagrams; 0 means 1 MiB.
	SlabBytes int
	// Loss is the probability that a datagram never arrives, Duplicate that it arrives
	// twice.
	Loss, Duplicate float64
	// Reorder is the probability that it overtakes up to ReorderDepth others that were
	// not received yet (0 means 8).
	Reorder      float64
	ReorderDepth int
	// Delay is the probability that it is held back for DelayFor, while others pass.
	Delay    float64
	DelayFor time.Duration
	// Straddle is the probability that it occupies two spans.
	Straddle float64
	// Seed is the seed of the faults.
	Seed uint64
	// Local is LocalAddr; if it is invalid, 192.0.2.1:9000 (a documentation address, RFC
	// 5737).
	Local netip.AddrPort
}

// Source implements ingest.Source. All its methods may be called from any
// goroutine.
type Source struct {
	options Options
	slab    *slab.Slab
	placing *sync.Mutex // held to find and take a place in the slab; sources that share a slab share it
	// arrived holds one token if Receive may have new datagrams.
	arrived chan struct{}

	mu     sync.Mutex // guards the fields below, and is locked before the slab's
	random *rand.Rand
	queue  []waiting
	sent   []ingest.Packet
	refuse error
	closed bool
	stats  ingest.Stats
}

// waiting is a datagram in transit; due is 0 if it has arrived.
type waiting struct {
	from netip.AddrPort
	data []byte
	due  int64
}

var _ ingest.Source = (*Source)(nil)

// New makes a source. It fails only if it cannot make the slab.
func New(o Options) (*Source, error) {
	if o.SlabBytes == 0 {
		o.SlabBytes = 1 << 20
	}
	if o.ReorderDepth == 0 {
		o.ReorderDepth = 8
	}
	if !o.Local.IsValid() {
		o.Local = netip.MustParseAddrPort("192.0.2.1:9000")
	}
	memory, err := slab.New("memory", o.SlabBytes, 1, false)
	if err != nil {
		return nil, fmt.Errorf("open memory source: %w", err)
	}
	return &Source{
		options: o,
		slab:    memory[0],
		placing: new(sync.Mutex),
		arrived: make(chan struct{}, 1),
		random:  rand.New(rand.NewPCG(o.Seed, 0)),
	}, nil
}

// NewSibling returns another source with the same slab and the same options. Either source
// may close the slab, once.
func (s *Source) NewSibling() *Source {
	return &Source{
		options: s.options,
		slab:    s.slab,
		placing: s.placing,
		arrived: make(chan struct{}, 1),
		random:  rand.New(rand.NewPCG(s.options.Seed, 1)),
	}
}

// Inject sends a datagram to the source, and copies its bytes.
func (s *Source) Inject(from netip.AddrPort, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chance(s.options.Loss) {
		return
	}
	copies := 1
	if s.chance(s.options.Duplicate) {
		copies = 2
	}
	for range copies {
		w := waiting{from: from, data: slices.Clone(data)}
		if s.chance(s.options.Delay) {
			w.due = shm.Now() + int64(s.options.DelayFor)
		}
		s.queue = append(s.queue, w)
		s.overtake()
	}
	s.ring()
}

// overtake moves the newest datagram before some that were injected earlier.
func (s *Source) overtake() {
	if last := len(s.queue) - 1; last > 0 && s.chance(s.options.Reorder) {
		back := 1 + s.random.IntN(min(last, s.options.ReorderDepth))
		w := s.queue[last]
		copy(s.queue[last-back+1:], s.queue[last-back:last])
		s.queue[last-back] = w
	}
}

// chance draws a random number even if p is 0, so that one probability does not change
// the effect of another.
func (s *Source) chance(p float64) bool { return s.random.Float64() < p }

// Sent returns the packets sent since the last call, in order.
func (s *Source) Sent() []ingest.Packet {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.sent = nil
	return sent
}

// RefuseSends makes each Send fail with err before its first packet, until it is called
// with nil.
func (s *Source) RefuseSends(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = err
}

// Slab returns the memory of the datagrams. It stays mapped after Close, until
// CloseSlab.
func (s *Source) Slab() shm.Memory { return s.slab }

// CloseSlab unmaps the slab. Call it when the slab is no longer in use.
func (s *Source) CloseSlab() error { return s.slab.Close() }

// Receive returns injected datagrams; see ingest.Source.
func (s *Source) Receive(batch []ingest.Datagram, deadline int64) (int, error) {
	for {
		n, next, err := s.deliver(batch)
		if n > 0 || err != nil || next == now {
			return n, err
		}
		if deadline != 0 && (next == 0 || deadline < next) {
			next = deadline
		}
		var alarm <-chan time.Time
		if next != 0 {
			left := next - shm.Now()
			if left <= 0 {
				if next == deadline {
					return 0, nil
				}
				continue
			}
			alarm = time.After(time.Duration(left))
		}
		select {
		case <-s.arrived:
		case <-alarm:
		}
	}
}

// now makes deliver return immediately.
const now = -1

// deliver moves datagrams that have arrived to batch. next is when the next one arrives,
// 0 if none is in transit.
func (s *Source) deliver(batch []ingest.Datagram) (n int, next int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, 0, ingest.ErrClosed
	}
	clock := shm.Now()
	kept := s.queue[:0]
	full := false
	for _, w := range s.queue {
		switch {
		case w.due > clock:
			kept = append(kept, w)
			if next == 0 || w.due < next {
				next = w.due
			}
		case n == len(batch) || full || !s.place(&batch[n], w):
			full = full || n < len(batch)
			kept = append(kept, w)
		default:
			n++
		}
	}
	clear(s.queue[len(kept):])
	s.queue = kept
	if n == 0 && full {
		s.stats.NoRoom++
		return 0, now, nil
	}
	return n, next, nil
}

// Put copies a payload into a slab and holds it. ok is false if there is no room. If straddle is
// above 0 and below the payload's size, the payload gets two spans, with straddle bytes in the
// first. If straddle is 0, it gets two spans only if no free run is long enough.
func Put(s *slab.Slab, payload []byte, straddle int) (first, rest ingest.Span, ok bool) {
	if straddle <= 0 || straddle >= len(payload) {
		if first, ok = putRun(s, payload, 0); ok {
			return first, rest, true
		}
		var runs [2]ingest.Span
		if n, _ := s.Free(runs[:], 0, len(payload)); n != 2 {
			return first, rest, false
		}
		straddle = int(runs[0].Length)
		for i, part := range [][]byte{payload[:straddle], payload[straddle:]} {
			copy(s.View(runs[i]), part)
			s.Hold(runs[i])
		}
		return runs[0], runs[1], true
	}
	if first, ok = putRun(s, payload[:straddle], 0); !ok {
		return first, rest, false
	}
	beyond := first.Offset + uint64(first.Length) + 2*slab.GranuleBytes
	if rest, ok = putRun(s, payload[straddle:], beyond); !ok {
		s.Release([]ingest.Span{first})
	}
	return first, rest, ok
}

// putRun copies a payload to the first run that holds it, at or above from.
func putRun(s *slab.Slab, payload []byte, from uint64) (ingest.Span, bool) {
	var runs [slab.MaxRuns]ingest.Span
	for {
		n, _ := s.Free(runs[:], from, len(payload))
		switch n {
		case 0:
			return ingest.Span{}, false
		case 1:
			copy(s.View(runs[0]), payload)
			s.Hold(runs[0])
			return runs[0], true
		}
		from = runs[1].Offset
	}
}

// place puts a datagram into the slab. It returns false if there is no room.
func (s *Source) place(d *ingest.Datagram, w waiting) bool {
	straddle := 0
	if len(w.data) > 1 && s.chance(s.options.Straddle) {
		straddle = 1 + s.random.IntN(len(w.data)-1)
	}
	s.placing.Lock()
	first, rest, ok := Put(s.slab, w.data, straddle)
	s.placing.Unlock()
	if !ok {
		return false
	}
	*d = ingest.Datagram{From: w.from, First: first, Rest: rest}
	s.stats.Datagrams++
	s.stats.Bytes += uint64(len(w.data))
	return true
}

// ring wakes Receive.
func (s *Source) ring() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// Release frees spans; see ingest.Source.
func (s *Source) Release(spans []ingest.Span) {
	s.slab.Release(spans)
}

// Send keeps copies of the packets for Sent.
func (s *Source) Send(packets []ingest.Packet) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, ingest.ErrClosed
	}
	if s.refuse != nil {
		return 0, s.refuse
	}
	for _, p := range packets {
		s.sent = append(s.sent, ingest.Packet{To: p.To, Data: slices.Clone(p.Data)})
	}
	return len(packets), nil
}

// LocalAddr is Options.Local.
func (s *Source) LocalAddr() netip.AddrPort { return s.options.Local }

// Stats reads the counters.
func (s *Source) Stats() ingest.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.HeldBytes, stats.SlabBytes = s.slab.HeldBytes(), uint64(s.slab.Size())
	return stats
}

// Close ends a blocked Receive and drops the datagrams that were not received. The slab
// remains.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.queue = nil
	s.ring()
	return nil
}
