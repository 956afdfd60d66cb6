package udp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/slab"
	"github.com/penstock/penstock/internal/testing/ingesttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/shm"
)

var loopback4 = netip.MustParseAddrPort("127.0.0.1:0")

// client is the other end of a source.
type client struct {
	*net.UDPConn
	t *testing.T
}

func newClient(t *testing.T, to netip.AddrPort) client {
	t.Helper()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	must.OK(t, err)
	t.Cleanup(func() { conn.Close() })
	return client{conn, t}
}

func (c client) addr() netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

func (c client) send(payloads ...[]byte) {
	c.t.Helper()
	for _, p := range payloads {
		if _, err := c.Write(p); err != nil {
			c.t.Fatal(err)
		}
	}
}

// sendChain sends one chain of datagrams, segment bytes each. On loopback the kernel delivers
// it to a GRO receiver as one message.
func (c client) sendChain(segment int, payload []byte) {
	c.t.Helper()
	control := make([]byte, unix.CmsgSpace(2))
	putSegment(control, uint16(segment))
	if _, _, err := c.WriteMsgUDP(payload, control, nil); err != nil {
		c.t.Fatalf("send chain of %d bytes: %v", len(payload), err)
	}
}

func (c client) receive(t *testing.T, n int) [][]byte {
	t.Helper()
	buffer := make([]byte, 1<<16)
	var got [][]byte
	for range n {
		c.SetReadDeadline(time.Now().Add(ingesttest.Patience))
		k, err := c.Read(buffer)
		must.OK(t, err)
		got = append(got, bytes.Clone(buffer[:k]))
	}
	return got
}

func openTwin(t *testing.T, o Options, payloads [][]byte) ingesttest.Twin {
	t.Helper()
	s, err := openOne(o)
	must.OK(t, err)
	to := s.LocalAddr()
	if to.Addr().IsUnspecified() {
		to = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), to.Port())
	}
	c := newClient(t, to)
	twin := ingesttest.CloseAtEnd(t, ingesttest.Twin{Source: s, CloseSlab: s.CloseSlab, From: c.addr(), Sent: c.receive})
	c.send(payloads...)
	return twin
}

func TestSourcePassesTheSuite(t *testing.T) {
	kinds := map[string]Options{
		"IPv4":         {Listen: loopback4},
		"IPv4 no GRO":  {Listen: loopback4, NoGRO: true},
		"one message":  {Listen: loopback4, BatchMessages: 1},
		"IPv6":         {Listen: netip.MustParseAddrPort("[::1]:0")},
		"v4 on dual":   {Listen: netip.MustParseAddrPort("[::]:0")},
		"v4 any":       {Listen: netip.MustParseAddrPort("0.0.0.0:0")},
		"IPv4 as IPv6": {Listen: netip.MustParseAddrPort("[::ffff:127.0.0.1]:0")},
	}
	for name, o := range kinds {
		t.Run(name, func(t *testing.T) {
			if o.Listen.Addr().Is6() && !o.Listen.Addr().Is4In6() && !hasIPv6() {
				t.Skip("not on this machine: no IPv6 loopback address")
			}
			ingesttest.Run(t, ingesttest.Kind{
				Open: func(t *testing.T, slabBytes int, payloads [][]byte) ingesttest.Twin {
					o := o
					o.SlabBytes = slabBytes
					return openTwin(t, o, payloads)
				},
				OpenQuiet: func(t *testing.T) ingesttest.Twin {
					o := o
					o.SlabBytes = 1 << 20
					return openTwin(t, o, nil)
				},
			})
		})
	}
}

func hasIPv6() bool {
	conn, err := net.ListenPacket("udp6", "[::1]:0")
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// openPair opens a source on loopback with a client to it.
func openPair(t *testing.T, o Options) (*Source, client) {
	t.Helper()
	if !o.Listen.IsValid() {
		o.Listen = loopback4
	}
	s, err := openOne(o)
	must.OK(t, err)
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), s.CloseSlab()); err != nil {
			t.Error(err)
		}
	})
	return s, newClient(t, s.LocalAddr())
}

func TestSourceSegments(t *testing.T) {
	s, c := openPair(t, Options{})
	if !s.gro {
		t.Skip("not on this machine: the kernel has no UDP_GRO")
	}
	for _, test := range []struct{ segment, total int }{
		{1046, 62 * 1046}, {1046, 3*1046 + 5}, {1046, 1047}, {100, 64 * 100}, {1, 40}, {1472, 10 * 1472}, {8972, 7 * 8972},
	} {
		t.Run(fmt.Sprintf("%d of %d", test.segment, test.total), func(t *testing.T) {
			sent := ingesttest.Payloads(1, test.total)[0]
			c.sendChain(test.segment, sent)
			want := (test.total + test.segment - 1) / test.segment
			got := ingesttest.Receive(t, s, want, 7)
			if len(got) != want {
				t.Fatalf("%d datagrams, want %d", len(got), want)
			}
			for i, d := range got {
				fragment := sent[i*test.segment : min((i+1)*test.segment, len(sent))]
				if !bytes.Equal(ingesttest.Payload(s, d), fragment) {
					t.Errorf("datagram %d of the chain is another one", i)
				}
				if d.From != c.addr() {
					t.Errorf("datagram %d comes from %v, want %v", i, d.From, c.addr())
				}
				ingesttest.Release(s, d)
			}
			if held := s.Stats().HeldBytes; held != 0 {
				t.Errorf("%d bytes are held after the release", held)
			}
		})
	}
}

// A datagram shows when it arrived, however long it waited in the socket: single ones, and
// those of a chain.
func TestDatagramsSayWhenTheyArrived(t *testing.T) {
	s, c := openPair(t, Options{})
	const waits = 30 * time.Millisecond
	awaitStamps(t, s, c)
	before := shm.Now()
	c.send([]byte("alone"))
	c.sendChain(100, make([]byte, 250))
	after := shm.Now()
	time.Sleep(waits)
	for i, d := range ingesttest.Receive(t, s, 4, 2) {
		if d.Arrived < before-int64(time.Millisecond) || d.Arrived > after+int64(time.Millisecond) {
			t.Errorf("datagram %d of 4 arrived %v after the first was sent, want it within the %v that sending took",
				i, time.Duration(d.Arrived-before), time.Duration(after-before))
		}
		ingesttest.Release(s, d)
	}
}

// awaitStamps returns when datagrams are stamped as they arrive. If no socket of the machine
// had requested stamps before, the kernel starts a while after the first request
// (net_enable_timestamp leaves it to a worker). Until then the stamp is the time at which
// recvmsg is called.
func awaitStamps(t *testing.T, s *Source, c client) {
	t.Helper()
	for deadline := time.Now().Add(ingesttest.Patience); ; {
		c.send([]byte("when?"))
		sent := shm.Now()
		time.Sleep(5 * time.Millisecond)
		d := ingesttest.Receive(t, s, 1, 1)[0]
		ingesttest.Release(s, d)
		if d.Arrived < sent+int64(time.Millisecond) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not stamped as it arrives after %v", ingesttest.Patience)
		}
	}
}

func TestFirstPayloadIsAligned(t *testing.T) {
	s, c := openPair(t, Options{})
	const headerBytes = 22
	for i := range 5 {
		c.send(make([]byte, headerBytes+1024))
		d := ingesttest.Receive(t, s, 1, 4)[0]
		defer ingesttest.Release(s, d)
		if at := d.First.Offset + headerBytes; at%64 != 0 {
			t.Errorf("payload of datagram %d begins at %d", i, at)
		}
	}
}

// fill takes every free granule for which free is false, and returns what to release.
func fill(s *slab.Slab, free func(granule int) bool) (taken []ingest.Span) {
	for g := range s.Size() / slab.GranuleBytes {
		if !free(g) {
			span := ingest.Span{Offset: uint64(g) * slab.GranuleBytes, Length: slab.GranuleBytes}
			s.Hold(span)
			taken = append(taken, span)
		}
	}
	return taken
}

func TestSourceStraddle(t *testing.T) {
	for name, granulesFree := range map[string]int{"runs of 2 KiB": 32, "runs of 4 KiB": 64, "runs of 10 KiB": 160} {
		t.Run(name, func(t *testing.T) {
			s, c := openPair(t, Options{})
			// Low addresses, which are taken first, are full of holes. Jumbos that fall into
			// three of them are joined above the holes.
			holes := s.slab.Size() / slab.GranuleBytes / 2
			taken := fill(s.slab, func(g int) bool { return g%(granulesFree+1) != 0 || g > holes })
			for round, segment := range []int{1046, 1472, 2000, 300, 8000} {
				sent := ingesttest.Payloads(1, 7*segment+segment/2)[0]
				c.sendChain(segment, sent)
				got := ingesttest.Receive(t, s, 8, 3)
				straddling := 0
				for i, d := range got {
					fragment := sent[i*segment : min((i+1)*segment, len(sent))]
					if !bytes.Equal(ingesttest.Payload(s, d), fragment) {
						t.Errorf("round %d: datagram %d of %d bytes is another one", round, i, segment)
					}
					if d.Rest.Length > 0 {
						straddling++
					}
					ingesttest.Release(s, d)
				}
				if segment == 1046 && granulesFree == 32 && straddling == 0 {
					t.Error("no datagram straddled two runs: the test tests nothing")
				}
			}
			s.Release(taken)
			if stats := s.Stats(); stats.HeldBytes != 0 || stats.Truncated != 0 {
				t.Errorf("at the end: %+v", stats)
			}
		})
	}
}

func TestSourceJumboDropped(t *testing.T) {
	s, c := openPair(t, Options{SlabBytes: 256 << 10, BatchMessages: 1})
	taken := fill(s.slab, func(g int) bool { return g%33 != 0 })
	c.send(make([]byte, 9000), []byte("small"))
	got := ingesttest.Receive(t, s, 1, 4)
	if d := ingesttest.Payload(s, got[0]); string(d) != "small" {
		t.Errorf("received %d bytes, want the small one", len(d))
	}
	ingesttest.Release(s, got[0])
	s.Release(taken)
	if stats := s.Stats(); stats.Truncated != 1 || stats.HeldBytes != 0 {
		t.Errorf("truncated %d, held %d; want 1 and 0", stats.Truncated, stats.HeldBytes)
	}
}

// A lingering 1 KB datagram must not pin a 64 KiB buffer.
func TestLingeringMemory(t *testing.T) {
	s, c := openPair(t, Options{})
	var held []ingest.Datagram
	payload := uint64(0)
	for i, p := range ingesttest.Payloads(500, 1046) {
		c.send(p)
		d := ingesttest.Receive(t, s, 1, 1)[0]
		if i%3 == 0 {
			ingesttest.Release(s, d)
			continue
		}
		held = append(held, d)
		payload += uint64(d.Length())
		if now := s.Stats().HeldBytes; now > 2*payload {
			t.Fatalf("%d bytes held for %d of payload", now, payload)
		}
	}
	for _, d := range held {
		ingesttest.Release(s, d)
	}
	if now := s.Stats().HeldBytes; now != 0 {
		t.Errorf("%d bytes held after the release", now)
	}
}

// One datagram of each chain of 64 KiB stays; the rest is freed. Reception must continue
// until the lingering datagrams themselves fill the slab.
func TestLingeringReception(t *testing.T) {
	const slabBytes = 1 << 20
	s, c := openPair(t, Options{SlabBytes: slabBytes})
	const segment, chain = 1046, 60
	sent := ingesttest.Payloads(1, segment*chain)[0]
	var lingering []ingest.Datagram
	for len(lingering) < 300 { // a third of the slab; as buffers of 64 KiB, 19 slabs
		c.sendChain(segment, sent)
		for i, d := range ingesttest.Receive(t, s, chain, 64) {
			if i == len(lingering)%chain {
				lingering = append(lingering, d)
			} else {
				ingesttest.Release(s, d)
			}
		}
	}
	for i, d := range lingering {
		at := i % chain * segment
		if !bytes.Equal(ingesttest.Payload(s, d), sent[at:at+segment]) {
			t.Errorf("lingering datagram %d was written over", i)
		}
		ingesttest.Release(s, d)
	}
	if stats := s.Stats(); stats.HeldBytes != 0 || stats.Truncated != 0 {
		t.Errorf("at the end: %+v", stats)
	}
}

// Random chains, random lingering, random order of release: every datagram stays unchanged
// until it is released.
func TestHeldDatagrams(t *testing.T) {
	s, c := openPair(t, Options{SlabBytes: 512 << 10})
	type kept struct {
		d    ingest.Datagram
		want []byte
	}
	rapid.Check(t, func(rt *rapid.T) {
		var held []kept
		release := func(i int) {
			k := held[i]
			if !bytes.Equal(ingesttest.Payload(s, k.d), k.want) {
				rt.Fatalf("a held datagram of %d bytes was written over", len(k.want))
			}
			ingesttest.Release(s, k.d)
			held = append(held[:i], held[i+1:]...)
		}
		for round := range rapid.IntRange(1, 12).Draw(rt, "rounds") {
			segment := rapid.IntRange(1, 3000).Draw(rt, "segment")
			n := rapid.IntRange(1, min(40, 60000/segment)).Draw(rt, "datagrams")
			sent := make([]byte, segment*n)
			for i := range sent {
				sent[i] = byte(round*97 + i*13 + i>>8)
			}
			c.sendChain(segment, sent)
			for i, d := range ingesttest.Receive(t, s, n, rapid.IntRange(1, 50).Draw(rt, "batch")) {
				held = append(held, kept{d, sent[i*segment : (i+1)*segment]})
			}
			for range rapid.IntRange(0, len(held)).Draw(rt, "releases") {
				release(rapid.IntRange(0, len(held)-1).Draw(rt, "which"))
			}
			for s.Stats().HeldBytes > 300<<10 {
				release(0)
			}
		}
		for len(held) > 0 {
			release(len(held) - 1)
		}
		if now := s.Stats().HeldBytes; now != 0 {
			rt.Fatalf("%d bytes held after every release", now)
		}
	})
}

func TestReceiveAllocations(t *testing.T) {
	for name, o := range map[string]Options{"GRO": {}, "no GRO": {NoGRO: true}} {
		t.Run(name, func(t *testing.T) {
			s, c := openPair(t, o)
			sent := ingesttest.Payloads(1, 20*1046)[0]
			fd, err := c.SyscallConn()
			must.OK(t, err)
			chain := newRawChain(fd, 1046, sent)
			batch := make([]ingest.Datagram, 16)
			spans := make([]ingest.Span, 0, 32)
			allocations := testing.AllocsPerRun(200, func() {
				chain.send()
				for got := 0; got < 20; {
					n, err := s.Receive(batch, shm.Now()+int64(ingesttest.Patience))
					if err != nil || n == 0 {
						t.Fatal(n, err)
					}
					got += n
					spans = spans[:0]
					for _, d := range batch[:n] {
						spans = append(spans, d.First)
						if d.Rest.Length > 0 {
							spans = append(spans, d.Rest)
						}
					}
					s.Release(spans)
				}
			})
			if allocations != 0 {
				t.Errorf("%v allocations a round", allocations)
			}
		})
	}
}

func TestWaitingDoesNotAllocate(t *testing.T) {
	s, _ := openPair(t, Options{})
	batch := make([]ingest.Datagram, 16)
	if n := testing.AllocsPerRun(50, func() {
		if n, err := s.Receive(batch, shm.Now()+int64(100*time.Microsecond)); n != 0 || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a wait", n)
	}
}

func TestSendDoesNotAllocate(t *testing.T) {
	s, c := openPair(t, Options{})
	packets := make([]ingest.Packet, 10)
	for i := range packets {
		packets[i] = ingest.Packet{To: c.addr(), Data: make([]byte, 100)}
	}
	if n := testing.AllocsPerRun(100, func() {
		if n, err := s.Send(packets); n != len(packets) || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a send", n)
	}
}

func TestSendNamesThePacketThatFailed(t *testing.T) {
	s, c := openPair(t, Options{})
	good := ingest.Packet{To: c.addr(), Data: []byte("good")}
	for name, bad := range map[string]ingest.Packet{
		"no address":     {Data: []byte("x")},
		"another family": {To: netip.MustParseAddrPort("[2001:db8::1]:5"), Data: []byte("x")},
		"too long":       {To: c.addr(), Data: make([]byte, 1<<16)},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := s.Send([]ingest.Packet{good, good, bad, good})
			if n != 2 || err == nil {
				t.Fatalf("sent %d, %v; want 2 and an error", n, err)
			}
			for _, got := range c.receive(t, 2) {
				if string(got) != "good" {
					t.Errorf("received %q", got)
				}
			}
		})
	}
}

func TestSendConcurrently(t *testing.T) {
	s, _ := openPair(t, Options{})
	const clients, packets = 4, 100
	done := blockedReceive(s) // Send must work at the same time
	var wg sync.WaitGroup
	for range clients {
		c := newClient(t, s.LocalAddr())
		wg.Go(func() {
			for i := range packets {
				p := ingest.Packet{To: c.addr(), Data: fmt.Appendf(nil, "%v %d", c.addr(), i)}
				if n, err := s.Send([]ingest.Packet{p}); n != 1 || err != nil {
					t.Errorf("send: %d, %v", n, err)
				}
			}
		})
		wg.Go(func() {
			for i, got := range c.receive(t, packets) {
				if want := fmt.Sprintf("%v %d", c.addr(), i); string(got) != want {
					t.Errorf("received %q, want %q", got, want)
				}
			}
		})
	}
	wg.Wait()
	must.OK(t, s.Close())
	<-done
}

// A system call that sends for one goroutine does not delay another goroutine's answers, nor
// does a second one delay a third's. If all senders are in use, the caller waits for one.
func TestSendDoesNotWaitForAnother(t *testing.T) {
	s, c := openPair(t, Options{})
	send := func() <-chan error {
		sent := make(chan error, 1)
		go func() {
			_, err := s.Send([]ingest.Packet{{To: c.addr(), Data: []byte("answer")}})
			sent <- err
		}()
		return sent
	}
	const atOnce = 3
	var last <-chan error
	func() {
		for i := range s.senders {
			sent := send()
			select {
			case err := <-sent:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Errorf("while %d send, another waits", i)
				return
			}
			s.senders[i].mu.Lock()
			defer s.senders[i].mu.Unlock()
		}
		last = send()
		select {
		case err := <-last:
			t.Errorf("sent while all senders were taken: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}()
	if t.Failed() {
		return
	}
	must.OK(t, <-last)
	if got := len(c.receive(t, len(s.senders)+1)); got != atOnce+1 {
		t.Errorf("%d could send before all waited, want %d", got-1, atOnce)
	}
}

func blockedReceive(s *Source) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Receive(make([]ingest.Datagram, 1), 0)
	}()
	return done
}

// openOne opens a source that has its port alone.
func openOne(o Options) (*Source, error) {
	all, err := Open(o, 1)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

func TestKernelDropsAreCounted(t *testing.T) {
	s, c := openPair(t, Options{RecvBuffer: 4096})
	const sent = 2000
	for range sent {
		c.send(make([]byte, 1000))
	}
	if s.Stats().KernelDrops == 0 {
		t.Fatal("the kernel dropped nothing from a full buffer")
	}
	// Received and dropped datagrams together are all that was sent.
	drain(t, s)
	if stats := s.Stats(); stats.Datagrams+stats.KernelDrops != sent {
		t.Errorf("%d came and %d were dropped of %d", stats.Datagrams, stats.KernelDrops, sent)
	}
}

// The buffer has room for all that the kernel may report about one message: a chain
// has a segment size and a stamp.
func TestControlMessageRoom(t *testing.T) {
	for _, listen := range []netip.AddrPort{loopback4, netip.MustParseAddrPort("[::1]:0")} {
		s, c := openPair(t, Options{Listen: listen, RecvBuffer: 4096})
		if !s.gro {
			t.Skip("not on this machine: the kernel has no UDP_GRO")
		}
		const segment, total = 100, 250
		before := shm.Now()
		c.sendChain(segment, make([]byte, total))
		for i, d := range ingesttest.Receive(t, s, 3, 3) {
			if d.Length() != min(segment, total-i*segment) || d.Arrived < before {
				t.Errorf("%v: datagram %d of the chain has %d bytes and came %v after it was sent", listen, i, d.Length(), time.Duration(d.Arrived-before))
			}
			ingesttest.Release(s, d)
		}
		if n := s.Stats().Truncated; n != 0 {
			t.Errorf("%v: %d messages were cut", listen, n)
		}
	}
}

// drain receives and releases what is there.
func drain(t *testing.T, s *Source) {
	t.Helper()
	batch := make([]ingest.Datagram, 64)
	for {
		n, err := s.Receive(batch, shm.Now())
		must.OK(t, err)
		for _, d := range batch[:n] {
			ingesttest.Release(s, d)
		}
		if n == 0 {
			return
		}
	}
}

func TestDropCountMessages(t *testing.T) {
	s, _ := openPair(t, Options{})
	for _, reading := range []uint32{5, 3, 5, 10, 1<<32 - 1} {
		s.noteDrops(reading)
	}
	if got := s.kernelDrops.Load(); got != 10 {
		t.Errorf("after readings up to 10 and an old one: %d", got)
	}
	s.kernelDrops.Store(1<<32 - 2)
	s.noteDrops(3)
	if got := s.kernelDrops.Load(); got != 1<<32+3 {
		t.Errorf("after the counter wrapped: %d, want %d", got, 1<<32+3)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	s, _ := openPair(t, Options{})
	taken := s.LocalAddr()
	for name, test := range map[string]struct {
		o    Options
		want []string
	}{
		"taken port":      {Options{Listen: taken}, []string{taken.String(), "in use", "another port"}},
		"foreign address": {Options{Listen: netip.MustParseAddrPort("192.0.2.1:0")}, []string{"192.0.2.1", "not an address of this machine"}},
		"no address":      {Options{}, []string{"no address to listen on"}},
		"tiny slab":       {Options{Listen: loopback4, SlabBytes: 4096}, []string{"slab", "4096", "at least"}},
		"huge batch":      {Options{Listen: loopback4, BatchMessages: 5000}, []string{"5000", "1024"}},
		"unknown zone":    {Options{Listen: netip.MustParseAddrPort("[fe80::1%nosuchif0]:0")}, []string{"nosuchif0"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := openfiles.Count(t)
			_, err := openOne(test.o)
			if err == nil {
				t.Fatal("opened")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than one line", err)
			}
			if after := openfiles.Count(t); after > before {
				t.Errorf("%d files are open, %d were before", after, before)
			}
		})
	}
}

func TestAddressesComeBackAsTheyWent(t *testing.T) {
	var zones zoneNames
	for _, test := range []struct {
		address string
		inet6   bool
		want    string
	}{
		{"192.0.2.7:80", false, "192.0.2.7:80"},
		{"192.0.2.7:80", true, "192.0.2.7:80"},
		{"[::ffff:192.0.2.7]:80", false, "192.0.2.7:80"},
		{"[2001:db8::5]:65535", true, "[2001:db8::5]:65535"},
		{"[fe80::5%3]:9", true, "[fe80::5%3]:9"},
		{"[fe80::5%4]:9", true, "[fe80::5%4]:9"},
	} {
		var b [sockaddrBytes]byte
		if _, err := encodeAddress(&b, netip.MustParseAddrPort(test.address), test.inet6); err != nil {
			t.Errorf("%s: %v", test.address, err)
			continue
		}
		if got := zones.decode(&b).String(); got != test.want {
			t.Errorf("%s came back as %s, want %s", test.address, got, test.want)
		}
	}
}

func FuzzParseControl(f *testing.F) {
	control := make([]byte, unix.CmsgSpace(2))
	putSegment(control, 1046)
	f.Add(control)
	f.Add(control[:17])
	f.Fuzz(func(t *testing.T, b []byte) {
		parseControl(b) // must neither panic nor hang
	})
}

// BenchmarkReceive compares the source with the bare loop that it is built on:
// recvmmsg with GRO into fixed buffers, one thread, the same sender.
func BenchmarkReceive(b *testing.B) {
	b.Run("bare", func(b *testing.B) { benchmark(b, bareReceiver) })
	b.Run("source", func(b *testing.B) { benchmark(b, sourceReceiver) })
}

// benchmark drives a receiver as fast as it takes chains of 62 × 1046 bytes. The sender sends
// only as much as was received, so nothing is dropped.
func benchmark(b *testing.B, open func(b *testing.B) (to netip.AddrPort, receive func() int)) {
	to, receive := open(b)
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	must.OK(b, err)
	defer conn.Close()
	raw, err := conn.SyscallConn()
	must.OK(b, err)
	const segment, chain = 1046, 62
	sender := newRawChain(raw, segment, make([]byte, segment*chain))
	credit := make(chan struct{}, 64) // 4 MiB in flight
	go func() {
		runtime.LockOSThread()
		for range credit {
			sender.send()
		}
	}()
	defer close(credit)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.SetBytes(segment * chain)
	b.ReportAllocs()
	b.ResetTimer()
	before := threadTime(b)
	defer func() { b.ReportMetric(float64(threadTime(b)-before)/float64(b.N), "cpu-ns/op") }()
	got, asked := 0, 0
	for got < b.N*chain {
		for asked < b.N && asked*chain-got < 64*chain-chain {
			credit <- struct{}{}
			asked++
		}
		got += receive()
	}
}

// threadTime is the CPU time of this thread, which is more reliable than the wall clock on a
// busy machine.
func threadTime(b *testing.B) int64 {
	var usage unix.Rusage
	must.OK(b, unix.Getrusage(unix.RUSAGE_THREAD, &usage))
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func sourceReceiver(b *testing.B) (netip.AddrPort, func() int) {
	s, err := openOne(Options{Listen: loopback4})
	must.OK(b, err)
	b.Cleanup(func() { s.Close(); s.CloseSlab() })
	batch := make([]ingest.Datagram, 256)
	spans := make([]ingest.Span, 0, 512)
	return s.LocalAddr(), func() int {
		n, err := s.Receive(batch, shm.Now()+int64(time.Second))
		must.OK(b, err)
		spans = spans[:0]
		for _, d := range batch[:n] {
			spans = append(spans, d.First)
			if d.Rest.Length > 0 {
				spans = append(spans, d.Rest)
			}
		}
		s.Release(spans)
		return n
	}
}

func bareReceiver(b *testing.B) (netip.AddrPort, func() int) {
	s := &Source{}
	must.OK(b, s.listen(Options{Listen: loopback4, RecvBuffer: defaultRecvBuffer}, 0, 1))
	b.Cleanup(func() { unix.Close(s.socket) })
	r := newReader(defaultBatchMessages)
	for i := range r.headers {
		buffer := make([]byte, slab.MessageBytes)
		r.iovecs[i*slab.MaxRuns].Base = &buffer[0]
		r.iovecs[i*slab.MaxRuns].SetLen(len(buffer))
		r.headers[i].hdr.SetIovlen(1)
	}
	polls := []unix.PollFd{{Fd: int32(s.socket), Events: unix.POLLIN}}
	return s.LocalAddr(), func() int {
		for i := range r.headers {
			r.headers[i].hdr.Namelen = sockaddrBytes
			r.headers[i].hdr.SetControllen(controlBytes)
		}
		n, err := recvmmsg(s.socket, r.headers, unix.MSG_DONTWAIT)
		if err != nil {
			timeout := unix.NsecToTimespec(int64(time.Second))
			ppoll(polls, &timeout)
			return 0
		}
		datagrams := 0
		for i := range n {
			segment := parseControl(r.controls[i][:r.headers[i].hdr.Controllen]).segment
			datagrams += (int(r.headers[i].n) + segment - 1) / segment
		}
		return datagrams
	}
}
