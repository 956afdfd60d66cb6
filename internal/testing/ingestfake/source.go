// Package ingestfake is a source without a network, for tests: what the test injects
// comes out of Receive, lost, repeated, reordered and delayed on purpose, as its
// Options say, and the same each time for the same seed. What is sent can be read
// by the test.
package ingestfake

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/manager/ingest"
	"github.com/penstock/penstock/manager/ingest/slab"
	"github.com/penstock/penstock/shm"
)

// Options say what happens to an injected datagram; each is the probability of
// one mishap, 0 to 1. The zero value is a perfect network.
type Options struct {
	// SlabBytes is the size of the memory for datagrams, 1 MiB where it is 0.
	SlabBytes int
	// Loss is that of a datagram never arriving, Duplicate of arriving twice.
	Loss, Duplicate float64
	// Reorder is that of overtaking up to ReorderDepth others (8 where it is 0)
	// that were not received yet.
	Reorder      float64
	ReorderDepth int
	// Delay is that of being held back for DelayFor, while others pass.
	Delay    float64
	DelayFor time.Duration
	// Straddle is that of lying in two spans.
	Straddle float64
	// Seed makes the mishaps.
	Seed uint64
	// Local is LocalAddr; 192.0.2.1:9000 (a documentation address, RFC 5737)
	// where it is invalid.
	Local netip.AddrPort
}

// Source implements ingest.Source. All its methods may be called from any
// goroutine.
type Source struct {
	options Options
	slab    *slab.Slab
	placing *sync.Mutex // held to find a place in the slab and take it; sources beside each other have one
	// arrived holds one token while something may be new for Receive.
	arrived chan struct{}

	mu     sync.Mutex // guards the following, and is taken before the slab's
	random *rand.Rand
	queue  []waiting
	sent   []ingest.Packet
	refuse error
	woken  bool
	closed bool
	stats  ingest.Stats
}

// waiting is a datagram on its way; due is 0 for one that has arrived.
type waiting struct {
	from netip.AddrPort
	data []byte
	due  int64
}

var _ ingest.Source = (*Source)(nil)

// New makes a source; the only errors are those of making its slab.
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
	memory, err := slab.New("memory", o.SlabBytes, false)
	if err != nil {
		return nil, fmt.Errorf("open memory source: %w", err)
	}
	return &Source{
		options: o,
		slab:    memory,
		placing: new(sync.Mutex),
		arrived: make(chan struct{}, 1),
		random:  rand.New(rand.NewPCG(o.Seed, 0)),
	}, nil
}

// Beside is another source over the same slab, with the same options. The slab is closed
// once, by either.
func (s *Source) Beside() *Source {
	return &Source{
		options: s.options,
		slab:    s.slab,
		placing: s.placing,
		arrived: make(chan struct{}, 1),
		random:  rand.New(rand.NewPCG(s.options.Seed, 1)),
	}
}

// Inject sends a datagram to the source; its bytes are copied.
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

// overtake moves the newest before some that were injected earlier.
func (s *Source) overtake() {
	if last := len(s.queue) - 1; last > 0 && s.chance(s.options.Reorder) {
		back := 1 + s.random.IntN(min(last, s.options.ReorderDepth))
		w := s.queue[last]
		copy(s.queue[last-back+1:], s.queue[last-back:last])
		s.queue[last-back] = w
	}
}

// chance draws, also where p is 0, so that one probability does not change what
// another one does.
func (s *Source) chance(p float64) bool { return s.random.Float64() < p }

// Sent returns what was sent since the last call, in order.
func (s *Source) Sent() []ingest.Packet {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.sent = nil
	return sent
}

// RefuseSends makes each Send fail with err before its first packet; nil ends
// that.
func (s *Source) RefuseSends(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = err
}

// Slab is where datagrams lie; it stays mapped after Close, until CloseSlab.
func (s *Source) Slab() shm.Memory { return s.slab }

// CloseSlab unmaps the slab, when nobody uses it any more.
func (s *Source) CloseSlab() error { return s.slab.Close() }

// Receive gives what was injected; see ingest.Source.
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

// now is deliver's word for returning at once.
const now = -1

// deliver moves what has arrived to batch. next is when the next one will have,
// 0 if none is on its way.
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
	if n == 0 && s.woken {
		s.woken = false
		return 0, now, nil
	}
	return n, next, nil
}

// place puts a datagram into the slab; false means that there is no room.
func (s *Source) place(d *ingest.Datagram, w waiting) bool {
	straddle := 0
	if len(w.data) > 1 && s.chance(s.options.Straddle) {
		straddle = 1 + s.random.IntN(len(w.data)-1)
	}
	s.placing.Lock()
	first, rest, ok := s.slab.Put(w.data, straddle)
	s.placing.Unlock()
	if !ok {
		return false
	}
	*d = ingest.Datagram{From: w.from, First: first, Rest: rest}
	s.stats.Datagrams++
	s.stats.Bytes += uint64(len(w.data))
	return true
}

// ring tells Receive to look.
func (s *Source) ring() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// Release gives spans back; see ingest.Source.
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

// Wake makes a blocked Receive, or the next one with nothing to receive, return.
func (s *Source) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.woken = true
	s.ring()
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

// Close ends a blocked Receive; what had not been received is gone. The slab
// stays.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.queue = nil
	s.ring()
	return nil
}
