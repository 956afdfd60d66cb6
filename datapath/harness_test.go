package datapath

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/udp"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// harness has a port with its threads running and no process. The test acts as the client
// and as the inference function.
type harness struct {
	*Port
	t testing.TB
}

// version is the model's version of a test's port.
const version = 7

func testOptions(queues int) Options {
	return Options{
		Name: "test", Queues: queues,
		RequestBytes: datapathtest.PictureBytes, ResultBytes: 4096, MinFragmentBytes: 512,
		Objective: time.Minute, Gather: 15 * time.Second, Transit: 500 * time.Microsecond,
		Version: version, Log: zerolog.Nop(),
	}
}

// loopback opens kernel sockets on 127.0.0.1.
func loopback() Network {
	return KernelNetwork(udp.Options{
		Listen:    netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0),
		SlabBytes: 1 << 20, RecvBuffer: 1 << 18,
	}, zerolog.Nop())
}

// open opens a free port of a network.
func open(t testing.TB, n Network, receivers int) *Sources {
	t.Helper()
	s, err := n.Open(0, receivers, true)
	must.OK(t, err)
	return s
}

// wrap puts each source of a port into a wrapper.
func wrap(s *Sources, wrapper func(s ingest.Source) ingest.Source) *Sources {
	for i := range s.All {
		s.All[i] = wrapper(s.All[i])
	}
	return s
}

// newHarness runs a port with so many queues on a kernel socket. When the test ends, every
// accepted request must have been answered, and its memory freed.
func newHarness(t testing.TB, queues int) *harness {
	t.Helper()
	return newHarnessOn(t, open(t, loopback(), 1), testOptions(queues))
}

// newHarnessOn is newHarness over these sources, with these options.
func newHarnessOn(t testing.TB, s *Sources, o Options) *harness {
	t.Helper()
	return newObservedHarness(t, s, o, discard{})
}

func newObservedHarness(t testing.TB, s *Sources, o Options, observer Observer) *harness {
	t.Helper()
	p, err := NewPort(s, o)
	must.OK(t, err)
	p.Start(observer)
	b := &harness{p, t}
	t.Cleanup(func() {
		if !t.Failed() {
			b.settled()
		}
		p.Stop()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// discard is an Observer.
type discard struct{}

func (discard) Answered(*Times) {}

// eventually waits until the port's threads have fulfilled a condition.
func (b *harness) eventually(what string, is func() bool) {
	b.t.Helper()
	wait.For(b.t, what, is)
}

// Check verifies invariants: the queues count the requests that are in flight, none is lost,
// each datagram was counted once, and no memory is held without a request.
func (p *Port) Check() error {
	r := p.Requests()
	datagrams := r.Fragments + r.Greeted
	for _, n := range append(r.Malformed[:], r.Dropped[:]...) {
		datagrams += n
	}
	if datagrams != r.Datagrams || r.Gathering+r.InFlight == 0 && r.HeldBytes > 0 {
		return fmt.Errorf("%d datagrams came, %d are accounted for; %d bytes are held: %+v", r.Datagrams, datagrams, r.HeldBytes, r)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	flying := make([]int, len(p.all()))
	total := uint64(0)
	for slot := range p.flights {
		if q := p.flights[slot].queue; q != nil {
			flying[q.index]++
			total++
		}
	}
	for i, q := range p.all() {
		if q.inFlight != flying[i] {
			return fmt.Errorf("queue %d counts %d requests in flight, %d are", i, q.inFlight, flying[i])
		}
	}
	if accepted := p.counters.accepted.Load(); p.ended+total != accepted {
		return fmt.Errorf("%d requests ended and %d are in flight, of %d accepted", p.ended, total, accepted)
	}
	return nil
}

// InFlight returns how many requests are complete and not answered.
func (p *Port) InFlight() int { return p.Stats().InFlight }

// settled checks that nothing is left over: each accepted request was answered once, and
// its memory is free.
func (b *harness) settled() {
	b.t.Helper()
	b.eventually("every accepted request is replied to", func() bool { return b.counters.replied.Load() == b.counters.accepted.Load() })
	b.eventually("no packet memory is held", func() bool { return b.sources.stats().HeldBytes == 0 })
	if n := b.Pending(); n != 0 {
		b.t.Errorf("%d requests pend, want none", n)
	}
	if s := b.Stats(); s.InFlight != 0 || s.Lost != 0 {
		b.t.Errorf("%d requests in flight, %d lost; want none", s.InFlight, s.Lost)
	}
	if err := b.Check(); err != nil {
		b.t.Error(err)
	}
}

// consumer attaches to a queue as a process would.
func (b *harness) consumer(queue int, generation uint32) *datapathtest.Process {
	b.t.Helper()
	return datapathtest.Attach(b.t, b.Queue(queue), b.geometry, generation)
}

// owner returns a process that has the ring; the test is its thread.
func (b *harness) owner(queue int, generation uint32) *datapathtest.Process {
	b.t.Helper()
	return datapathtest.Own(b.t, b.Queue(queue), b.geometry, generation)
}

func (b *harness) dial() *datapathtest.Client {
	b.t.Helper()
	return datapathtest.Dial(b.t, b.LocalAddr())
}

func (b *harness) dialRaw() *datapathtest.RawClient {
	b.t.Helper()
	return datapathtest.DialRaw(b.t, b.LocalAddr())
}
