package udp

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/ingesttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// lookNow makes the receiver sample its socket as if a sample were due.
func (s *Source) lookNow() {
	s.shedder.shedding.looked = shm.Now() - int64(lookEvery)
	s.shed()
}

// If no filter can be attached, requests are received as without shedding, which is reported
// once.
func TestFilterRefused(t *testing.T) {
	var news []Overrun
	s := open1(t, Options{RecvBuffer: 128 << 10, NoGRO: true, OnOverrun: func(o Overrun) { news = append(news, o) }})
	must.OK(t, unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1))
	c := newClient(t, s.LocalAddr())
	c.sendRequests(1, 5, false)
	c.send([]byte("end"))
	receivedFragments(t, s)
	s.shedder.emptied = false
	for id := uint32(0); s.Stats().KernelDrops == 0; id++ {
		c.sendRequests(id, id+1, false)
	}
	for id := uint32(100); id < 106; id++ {
		s.lookNow()
		c.sendRequests(id, id+1, false)
	}
	if len(news) != 1 || news[0].Err == nil {
		t.Fatalf("told %+v, want one error", news)
	}
	if got := s.Stats().Shedding; got != 0 || s.shedder.shedding.on {
		t.Errorf("shedding %v, of %v of the requests, want none", s.shedder.shedding.on, got)
	}
	for s.drain(t) {
	}
	c.sendRequests(1000, 1004, false)
	c.send([]byte("end"))
	came, cut := receivedFragments(t, s)
	for id := uint32(1000); id < 1004; id++ {
		if came[id] != 16 || cut[id] != 0 {
			t.Errorf("of request %d came %d fragments and %d cut ones, want 16 and 0", id, came[id], cut[id])
		}
	}
}

// An attached filter stays until it can be replaced: the kernel may be short of memory for a
// moment.
func TestFilterCannotReplace(t *testing.T) {
	s, _ := overrunHeld(t, false)
	var news []Overrun
	s.shedder.tell = func(o Overrun) { news = append(news, o) }
	const steps = filterSteps / 2
	must.OK(t, attachFilter(s.socket, steps))
	s.shedder.steps.Store(steps)
	must.OK(t, unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1))
	s.shedder.shedding.began = shm.Now() - 2*int64(toldAfter)
	s.lookNow()
	if s.shedder.shedding.steps() == steps {
		t.Fatal("nothing is to be replaced")
	}
	if got := s.shedder.steps.Load(); got != steps || !s.shedder.shedding.on || s.shedder.off {
		t.Errorf("%d steps are let in (shedding %v, off %v), want %d as before", got, s.shedder.shedding.on, s.shedder.off, steps)
	}
	if len(news) != 1 || news[0].Err != nil {
		t.Errorf("told %+v, want the overrun", news)
	}
}

// A receiver whose reads are neither full nor empty takes samples too.
func TestShedWhileBusy(t *testing.T) {
	s, c := openPair(t, Options{})
	batch := make([]ingest.Datagram, 16)
	s.reader.want = 4 // so that a read of one message is not full
	x := s.shedder
	x.shedding = shedding{room: x.shedding.room, on: true, accepted: 0.5, working: 1, all: 1}
	x.shedding.looked = shm.Now() - int64(lookEvery)
	before := x.shedding.looked
	c.send([]byte("one"))
	n, err := s.Receive(batch, shm.Now()+int64(ingesttest.Patience))
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
	ingesttest.Release(s, batch[0])
	if x.shedding.looked == before {
		t.Error("it did not look")
	}
}

// In datagrams over IPv6, and over IPv4 to a dual-stack socket, the filter finds ports and
// header at the same offsets.
func TestFilterOnAllSockets(t *testing.T) {
	for name, a := range map[string]struct{ listen, to string }{
		"IPv4":       {"127.0.0.1:0", "127.0.0.1"},
		"IPv6":       {"[::1]:0", "::1"},
		"v4 on dual": {"[::]:0", "127.0.0.1"},
		"v6 on dual": {"[::]:0", "::1"},
	} {
		t.Run(name, func(t *testing.T) {
			if netip.MustParseAddrPort(a.listen).Addr().Is6() && !hasIPv6() {
				t.Skip("not on this machine: no IPv6 loopback address")
			}
			s, err := openOne(Options{Listen: netip.MustParseAddrPort(a.listen)})
			must.OK(t, err)
			t.Cleanup(func() { s.Close(); s.CloseSlab() })
			c := newClient(t, netip.AddrPortFrom(netip.MustParseAddr(a.to), s.LocalAddr().Port()))
			const steps = filterSteps / 2
			must.OK(t, attachFilter(s.socket, steps))
			s.shedder.shedding.on, s.shedder.shedding.looked = true, 1<<62
			for _, chained := range []bool{false, true} {
				c.sendRequests(1, 9, chained)
				c.send([]byte("end"))
				came, cut := receivedFragments(t, s)
				for id := uint32(1); id < 9; id++ {
					want, wantCut := 16, 0
					if requestHash(c.addr().Port(), id) >= steps*(1<<32/filterSteps) {
						want, wantCut = 0, 1
					}
					if came[id] != want || cut[id] != wantCut {
						t.Errorf("chained %v: of request %d came %d fragments and %d cut ones, want %d and %d", chained, id, came[id], cut[id], want, wantCut)
					}
				}
			}
		})
	}
}

func TestShedAllocations(t *testing.T) {
	s, c := openPair(t, Options{})
	must.OK(t, attachFilter(s.socket, 0))
	s.shedder.shedding.on, s.shedder.shedding.looked = true, 1<<62
	fragment := fragmentOf(1, 0)
	batch := make([]ingest.Datagram, 16)
	spans := make([]ingest.Span, 1)
	if allocations := testing.AllocsPerRun(100, func() {
		must.Get(c.Write(fragment))(t)
		n, err := s.Receive(batch, shm.Now()+int64(ingesttest.Patience))
		if n != 1 || err != nil || !batch[0].Shed {
			t.Fatal(n, err, batch[0])
		}
		spans[0] = batch[0].First
		s.Release(spans)
	}); allocations != 0 {
		t.Errorf("%v allocations a round", allocations)
	}
}

// The filter cuts no small request. A client that sends only the header of one is like any
// other that sends malformed datagrams.
func TestShortDatagramNotCut(t *testing.T) {
	for _, total := range []int{1, 1000, answeredBytes - 1} {
		if b := fragmentOfTotal(7, total, total, 0, 0); isCut(b[:wire.HeaderSize], wire.HeaderSize) {
			t.Errorf("the header of a request of %d bytes is taken for cut", total)
		}
	}
}
