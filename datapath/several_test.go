package datapath

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/slab"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/ingestfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// severalPorts are the in-memory sources of a port, over one slab.
type severalPorts struct {
	sources []*ingestfake.Source
}

func newSeveralPorts(t *testing.T, n, slabBytes int) *severalPorts {
	t.Helper()
	first, err := ingestfake.New(ingestfake.Options{SlabBytes: slabBytes})
	must.OK(t, err)
	p := &severalPorts{sources: []*ingestfake.Source{first}}
	for range n - 1 {
		p.sources = append(p.sources, first.NewSibling())
	}
	return p
}

func (p *severalPorts) open() *Sources {
	s := &Sources{Close: p.sources[0].CloseSlab}
	for _, src := range p.sources {
		s.All = append(s.All, src)
	}
	return s
}

// of returns the source that has a client.
func (p *severalPorts) of(client int) *ingestfake.Source { return p.sources[client%len(p.sources)] }

func clientOf(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 7}), uint16(5000+n)) // RFC 5737
}

// fragment injects fragment i of a client's picture.
func (p *severalPorts) fragment(client int, id uint32, i int) {
	p.of(client).Inject(clientOf(client), datapathtest.Fragment(id, datapathtest.Picture(byte(client)+byte(id)*16), 1024, i, 0))
}

// results returns the answers that a source has sent since the last call.
func results(s *ingestfake.Source) (got []reply) {
	for _, p := range s.Sent() {
		h, r, payload, err := wire.DecodeResult(p.Data)
		if err != nil {
			continue // a NACK
		}
		got = append(got, reply{int(p.To.Port()) - 5000, h.RequestID, r.Status, payload})
	}
	return got
}

type reply struct {
	client  int
	id      uint32
	status  wire.Status
	payload []byte
}

// A function with several sources has a receive thread and an aggregator per source, and
// one ring. Each picture is completed once, with its own bytes, and answered once. The
// answer comes from the source that received its client's datagrams.
func TestSeveralSources(t *testing.T) {
	const sources, clients, each, answered = 3, 9, 60, 8
	ports := newSeveralPorts(t, sources, 4<<20)
	b := newHarnessOn(t, ports.open(), testOptions(2))
	c := []*datapathtest.Process{b.owner(0, 1), b.consumer(1, 1)}
	b.Queue(1).HandOver(1)
	c[1].TakeRing()
	b.Queue(0).SetServing(true)
	b.Queue(1).SetServing(true)
	var senders sync.WaitGroup
	var sent, done atomic.Int64
	for s := range sources {
		senders.Go(func() {
			// The fragments of a source's clients are interleaved; each client has four
			// pictures in flight.
			for from := uint32(0); from < each; from += 4 {
				sent.Add(4 * clients / sources)
				wait.Until(func() bool { return sent.Load()-done.Load() <= 40 || t.Failed() }) // there are 64 slots
				for i := range 3 {
					for id := from; id < from+4; id++ {
						for client := s; client < clients; client += sources {
							ports.fragment(client, id, i)
						}
					}
				}
			}
		})
	}
	answers := map[[2]int]int{}
	left := clients * each
	slots := make([]uint32, answered)
	for deadline := time.Now().Add(datapathtest.Patience); left > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d pictures of %d were not answered: %+v", left, clients*each, b.Requests())
		}
		for _, consumer := range c {
			n := consumer.Take(slots)
			for _, slot := range slots[:n] {
				got := make([]byte, datapathtest.PictureBytes)
				for _, p := range consumer.Fragments(slot) {
					copy(got[p.Place:], b.Slab().Bytes()[p.Offset:][:p.Length])
				}
				payload := binary.LittleEndian.AppendUint32(nil, uint32(got[0]))
				if !bytes.Equal(got, datapathtest.Picture(got[0])) {
					t.Errorf("slot %d has fragments of several pictures", slot)
				}
				consumer.Answer([]uint32{slot}, payload)
			}
		}
		for s, src := range ports.sources {
			for _, r := range results(src) {
				left--
				done.Add(1)
				answers[[2]int{r.client, int(r.id)}]++
				if r.client%sources != s {
					t.Errorf("client %d was answered by source %d, want %d", r.client, s, r.client%sources)
				}
				if want := byte(r.client) + byte(r.id)*16; r.status != wire.StatusOK || len(r.payload) != 4 || r.payload[0] != want {
					t.Errorf("picture %d of client %d was answered %v %v, want ok %d", r.id, r.client, r.status, r.payload, want)
				}
			}
		}
	}
	senders.Wait()
	for key, n := range answers {
		if n != 1 {
			t.Errorf("picture %d of client %d was answered %d times", key[1], key[0], n)
		}
	}
	if got := b.Requests(); got.Complete != clients*each || got.Datagrams != 3*clients*each || len(answers) != clients*each {
		t.Errorf("%d answers, counters %+v", len(answers), got)
	}
	if got := b.sources.stats().Datagrams; got != 3*clients*each {
		t.Errorf("the sources count %d datagrams, want %d", got, 3*clients*each)
	}
}

// If one source runs out of memory, the function's oldest incomplete request gives up its
// memory, whichever aggregator has it.
func TestEvictOldest(t *testing.T) {
	ports := newSeveralPorts(t, 2, 256<<10)
	// Other data fills most of the memory, so that it runs out before the slots do.
	for range 210 {
		ports.of(0).Inject(clientOf(0), make([]byte, 1024))
	}
	ballast := make([]ingest.Datagram, 210)
	if n, err := ports.of(0).Receive(ballast, 1); n != len(ballast) || err != nil {
		t.Fatalf("received %d, %v", n, err)
	}
	b := newHarnessOn(t, ports.open(), testOptions(1))
	ports.fragment(0, 0, 0) // the oldest, of source 0
	b.eventually("it has begun", func() bool { return b.Requests().Gathering == 1 })
	filled := uint32(0)
	for evicted := false; !evicted; filled++ {
		if filled > 1000 {
			t.Fatalf("no memory was freed: %+v", b.Requests())
		}
		ports.fragment(1, filled, 0)
		b.eventually("its fragment is received", func() bool {
			s := b.Requests()
			evicted = s.Evicted > 0
			return evicted || s.Begun == uint64(filled)+2
		})
	}
	b.eventually("its client gets an answer", func() bool {
		for _, r := range results(ports.sources[0]) {
			if r.client == 0 && r.id == 0 && r.status == wire.StatusBusy {
				return true
			}
		}
		return false
	})
	for _, d := range ballast {
		ports.of(0).Release([]ingest.Span{d.First})
	}
	b.evictAll()
}

// Kernel sockets of one port feed one ring. Clients with their own sockets get the answers
// to their own pictures. Each kernel socket has some of the clients, and none has part of
// another's request.
func TestSeveralSockets(t *testing.T) {
	const sockets, clients, each = 3, 24, 12
	n := loopback().(kernelNetwork)
	n.options.SlabBytes, n.options.RecvBuffer = sockets<<20, 1<<20
	b := newHarnessOn(t, open(t, n, sockets), testOptions(1))
	c := b.owner(0, 1)
	b.Queue(0).SetServing(true)
	if n := len(b.receivers); n != sockets {
		t.Fatalf("%d receivers, want %d", n, sockets)
	}
	var all []*datapathtest.RawClient
	for range clients {
		all = append(all, b.dialRaw())
	}
	for id := range uint32(each) {
		// The fragments of all clients are interleaved.
		for i := range 3 {
			for k, client := range all {
				client.Fragment(id, datapathtest.Picture(byte(k)+byte(id)*32), 1024, i, 0)
			}
		}
		for _, slot := range c.Await(clients) {
			got := make([]byte, datapathtest.PictureBytes)
			for _, p := range c.Fragments(slot) {
				copy(got[p.Place:], b.Slab().Bytes()[p.Offset:][:p.Length])
			}
			if !bytes.Equal(got, datapathtest.Picture(got[0])) {
				t.Errorf("slot %d has fragments of several pictures", slot)
			}
			c.Answer([]uint32{slot}, binary.LittleEndian.AppendUint32(nil, uint32(got[0])))
		}
		for k, client := range all {
			h, r, payload := client.Result()
			if want := byte(k) + byte(id)*32; h.RequestID != id || r.Status != wire.StatusOK || len(payload) != 4 || payload[0] != want {
				t.Fatalf("picture %d of client %d was answered as %d, %v %v, want ok %d", id, k, h.RequestID, r.Status, payload, want)
			}
		}
	}
	if got := b.Requests(); got.Complete != clients*each || got.Begun != clients*each || got.Datagrams != 3*clients*each {
		t.Errorf("counters %+v, want %d requests of 3 datagrams", got, clients*each)
	}
	if got := b.sources.stats(); got.Datagrams != 3*clients*each || got.SlabBytes != sockets<<20 || got.KernelDrops != 0 {
		t.Errorf("the sources count %+v, want %d datagrams", got, 3*clients*each)
	}
	for i, r := range b.receivers {
		if n := r.source.Stats().Datagrams; n == 0 || n%3 != 0 {
			t.Errorf("socket %d has %d datagrams, want some clients' whole pictures", i, n)
		}
	}
	if got := b.Stats().Receivers; got != sockets {
		t.Errorf("counted %d receivers, want %d", got, sockets)
	}
}

// A socket whose part of the slab is full evicts its own oldest request: another's memory
// would not help it.
func TestEvictOldestOfPart(t *testing.T) {
	const sockets = 2
	n := loopback().(kernelNetwork)
	n.options.SlabBytes, n.options.RecvBuffer = sockets*slab.MinBytes, 1<<20
	o := testOptions(1)
	o.RequestBytes = 128 * 128 * 3 // 48 fragments
	b := newHarnessOn(t, open(t, n, sockets), o)
	full := make([]byte, o.RequestBytes)
	// Each socket begins a picture and does not finish it. The picture of the quiet socket
	// is the older one.
	quiet := b.dialRaw()
	quiet.Fragment(0, full, 1024, 0, 0)
	b.eventually("it has begun", func() bool { return b.Requests().Gathering == 1 })
	owner := slices.IndexFunc(b.receivers, func(r *receiver) bool { return r.oldest.Load() != 0 })
	var busy *datapathtest.RawClient
	for busy == nil {
		c := b.dialRaw()
		before := b.receivers[1-owner].source.Stats().Datagrams
		total := b.sources.stats().Datagrams
		c.Fragment(0, full, 1024, 0, 0)
		b.eventually("it is received", func() bool { return b.sources.stats().Datagrams > total })
		if b.receivers[1-owner].source.Stats().Datagrams > before {
			busy = c
		}
	}
	begun := b.Requests().Gathering
	for id := uint32(1); b.Requests().Evicted == 0; id++ {
		if id > 60 {
			t.Fatalf("no memory was freed: %+v, %+v", b.Requests(), b.sources.stats())
		}
		total := b.sources.stats().Datagrams
		for i := range 47 {
			busy.Fragment(id, full, 1024, i, 0)
		}
		b.eventually("they are received, or wait for room", func() bool {
			return b.sources.stats().Datagrams == total+47 || b.Requests().Evicted > 0
		})
	}
	r := b.receivers[owner]
	r.mu.Lock()
	stats := r.aggregate.Stats()
	r.mu.Unlock()
	if stats.Evicted != 0 || stats.Gathering == 0 {
		t.Errorf("the quiet socket has let requests go: %+v (%d had begun)", stats, begun)
	}
	b.evictAll()
}

// evictAll evicts the incomplete requests: no client completes them, and the harness must
// end empty.
func (b *harness) evictAll() {
	b.t.Helper()
	for _, r := range b.receivers {
		b.eventually("the rest is gone", func() bool {
			var events aggregate.Events
			r.mu.Lock()
			more := r.aggregate.EvictOldest(shm.Now(), &events)
			r.mu.Unlock()
			r.source.Release(events.Release)
			return !more
		})
	}
}

// A port gets another queue while it runs, and loses it again. Its requests are answered by the other one.
func TestSetQueues(t *testing.T) {
	b := newHarness(t, 1)
	first := b.owner(0, 1)
	b.Queue(0).SetServing(true)
	s := b.dial()
	s.Send(0)
	first.Answer(first.Await(1), nil)
	s.Next()
	for range 2 {
		must.OK(t, b.SetQueues(2))
		generation := b.Queue(1).Epoch() + 1
		second := b.consumer(1, generation)
		for tag := range uint64(4) { // the new queue has no process yet
			s.Send(tag)
		}
		first.Answer(first.Await(4), nil)
		s.Statuses(4)
		b.Queue(1).HandOver(generation)
		second.TakeRing()
		b.Queue(1).SetServing(true)

		for tag := range uint64(16) {
			s.Send(tag)
		}
		b.eventually("all are published", func() bool { return b.InFlight() == 16 })
		taken := second.Await(4)
		second.Start(taken[:1])
		must.OK(t, b.SetQueues(1)) // those that the process has taken stay
		must.OK(t, b.Check())
		second.Answer(taken[:1], nil)
		b.Queue(1).SetServing(false)
		b.Queue(1).Abandon(generation)
		b.Queue(1).PassOn()
		first.Answer(first.Await(15), nil)
		for tag, status := range s.Statuses(16) {
			if status != client.StatusOK {
				t.Errorf("request %d is %v, want ok", tag, status)
			}
		}
	}
}
