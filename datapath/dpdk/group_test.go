//go:build dpdk && cgo

package dpdk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/slab"
	"github.com/penstock/penstock/internal/testing/ingesttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
)

func TestFunctionsOnOnePort(t *testing.T) {
	for _, queues := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d queues", queues), func(t *testing.T) {
			b := newBed(t, Options{Queues: queues})
			const functions, each = 3, 40
			var sources []*Source
			for i := range functions {
				sources = append(sources, b.listen(uint16(9000+i)))
			}
			// A client's datagrams come by one queue, as with a NIC's hash. Clients use
			// different queues.
			for q := range queues {
				from := netip.AddrPortFrom(client4.Addr(), uint16(40000+q))
				for n := range each {
					for i, s := range sources {
						b.inject(q, b.datagram(b.link(), from, toOf(s, from), []byte{byte(i), byte(q), byte(n)}))
					}
				}
			}
			for i, s := range sources {
				next := make([]int, queues)
				for _, d := range ingesttest.Receive(t, s, each*queues, 16) {
					p := ingesttest.Payload(s, d)
					q := int(p[1])
					if int(p[0]) != i || d.From.Port() != uint16(40000+q) || int(p[2]) != next[q] {
						t.Fatalf("function %d received %v from %v, want datagram %d of client %d", i, p, d.From, next[q], q)
					}
					next[q]++
					release(s, d)
				}
			}
			b.wantReason(frame.OK, uint64(functions*each*queues))
		})
	}
}

func TestForeignFrameCounters(t *testing.T) {
	b := newBed(t, Options{})
	s := b.listen(9000)
	good := b.datagram(b.link(), client4, toOf(s, client4), []byte("good"))
	changed := func(change func(f []byte)) []byte {
		f := bytes.Clone(good)
		change(f)
		return f
	}
	options := b.datagram(b.link(), client6, toOf(s, client6), []byte("behind options"))
	options[20] = 0 // the next header
	// fix recomputes the IPv4 header's checksum.
	fix := func(f []byte) {
		f[24], f[25] = 0, 0
		sum := uint32(0)
		for i := 14; i < 34; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(f[i:]))
		}
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(f[24:], ^uint16(sum>>16+sum))
	}
	for _, test := range []struct {
		reason frame.Reason
		frame  []byte
	}{
		{frame.NotIP, changed(func(f []byte) { f[12], f[13] = 0x88, 0xcc })},
		{frame.NotUDP, changed(func(f []byte) { f[23] = 6; fix(f) })},
		{frame.NotUDP, options},
		{frame.Fragment, changed(func(f []byte) { f[20] = 0x20; fix(f) })},
		{frame.Fragment, changed(func(f []byte) { f[20], f[21] = 0, 9; fix(f) })},
		{frame.Truncated, good[:40]},
		{frame.Truncated, good[:7]},
		{frame.Truncated, changed(func(f []byte) { f[16] = 9; fix(f) })},
		{frame.BadHeader, changed(func(f []byte) { f[14] = 0x41 })},
		{frame.BadHeader, changed(func(f []byte) { f[38] = 0xff })},
		{frame.BadChecksum, changed(func(f []byte) { f[42] ^= 1 })},
		{frame.BadChecksum, changed(func(f []byte) { f[22]++ })},
		{frame.BadSource, changed(func(f []byte) { f[26] = 224; fix(f); f[40], f[41] = 0, 0 })},
		{frame.ForeignAddress, b.datagram(b.link(), client4, netip.MustParseAddrPort("10.9.0.77:9000"), []byte("x"))},
		{frame.ForeignPort, b.datagram(b.link(), client4, netip.AddrPortFrom(own4, 9001), []byte("x"))},
		{frame.ForeignPort, b.datagram(b.link(), client6, netip.AddrPortFrom(own6, 9001), []byte("x"))},
	} {
		before := b.Group.Stats().Frames[test.reason]
		b.inject(0, test.frame)
		// A bad frame for our port is counted when its function parses it.
		if n, err := s.Receive(make([]ingest.Datagram, 8), shm.Now()+int64(2*time.Millisecond)); n != 0 || err != nil {
			t.Errorf("%v: received %d, %v", test.reason, n, err)
		}
		b.eventually(fmt.Sprintf("a frame is %v", test.reason), func() bool {
			_, _ = s.Receive(make([]ingest.Datagram, 8), 1)
			return b.Group.Stats().Frames[test.reason] == before+1
		})
	}
	b.inject(0, good)
	release(s, ingesttest.Receive(t, s, 1, 8)...)
}

func TestAnswerRoute(t *testing.T) {
	second4 := netip.MustParseAddr("10.9.0.3")
	b := newBed(t, Options{Addresses: []netip.Addr{own4, second4, own6}})
	s := b.listen(9000)
	vlan := b.link()
	vlan.Tags[0] = frame.Tag(0x8100<<16 | 7)
	twice := vlan
	twice.Tags = [2]frame.Tag{0x88a8<<16 | 30, 0x8100<<16 | 7}
	other := b.link()
	other.Peer, other.Own = b.Group.MAC(), frame.MAC{2, 0, 0, 0, 0, 9}
	for name, test := range map[string]struct {
		link     frame.Link
		from, to netip.AddrPort
	}{
		"IPv4":           {b.link(), client4, netip.AddrPortFrom(own4, 9000)},
		"second address": {b.link(), netip.MustParseAddrPort("10.9.0.40:1"), netip.AddrPortFrom(second4, 9000)},
		"IPv6":           {b.link(), client6, netip.AddrPortFrom(own6, 9000)},
		"VLAN":           {vlan, netip.MustParseAddrPort("10.9.0.41:2"), netip.AddrPortFrom(own4, 9000)},
		"QinQ":           {twice, netip.MustParseAddrPort("[fd00:9::41]:2"), netip.AddrPortFrom(own6, 9000)},
		"router":         {other, netip.MustParseAddrPort("192.0.2.1:2"), netip.AddrPortFrom(own4, 9000)},
	} {
		t.Run(name, func(t *testing.T) {
			b.inject(0, b.datagram(test.link, test.from, test.to, []byte("question")))
			release(s, ingesttest.Receive(t, s, 1, 1)...)
			if n, err := s.Send([]ingest.Packet{{To: test.from, Data: []byte("answer")}}); n != 1 || err != nil {
				t.Fatalf("send: %d, %v", n, err)
			}
			payload, d := b.sentDatagram()
			if string(payload) != "answer" || d.From != test.to || d.To != test.from {
				t.Errorf("sent %q from %v to %v", payload, d.From, d.To)
			}
			if d.Link.Own != test.link.Own || d.Link.Peer != b.Group.MAC() || d.Link.Tags != test.link.Tags {
				t.Errorf("sent by %+v, want %+v turned round", d.Link, test.link)
			}
		})
	}
}

func TestSendNamesThePacketThatFailed(t *testing.T) {
	b := newBed(t, Options{Addresses: []netip.Addr{own4}})
	s := b.listen(9000)
	b.arp()
	good := ingest.Packet{To: client4, Data: []byte("good")}
	for name, test := range map[string]struct {
		bad  ingest.Packet
		want error
	}{
		"a stranger":     {ingest.Packet{To: netip.MustParseAddrPort("10.9.0.99:5"), Data: []byte("x")}, errNoNeighbour},
		"another family": {ingest.Packet{To: client6, Data: []byte("x")}, errFamily},
		"too long":       {ingest.Packet{To: client4, Data: make([]byte, 1473)}, errTooLong},
		"no address":     {ingest.Packet{Data: []byte("x")}, errFamily},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := s.Send([]ingest.Packet{good, good, test.bad, good})
			if n != 2 || !errors.Is(err, test.want) {
				t.Errorf("sent %d, %v; want 2, %v", n, err, test.want)
			}
			for range 2 {
				if got, _ := b.sentDatagram(); string(got) != "good" {
					t.Errorf("sent %q", got)
				}
			}
		})
	}
}

func TestMappedIPv4Address(t *testing.T) {
	b := newBed(t, Options{})
	s := b.listen(9000)
	b.arp()
	mapped := netip.AddrPortFrom(netip.AddrFrom16(client4.Addr().As16()), client4.Port())
	if n, err := s.Send([]ingest.Packet{{To: mapped, Data: []byte("x")}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if _, d := b.sentDatagram(); d.To != client4 {
		t.Errorf("sent to %v", d.To)
	}
}

// Two functions; one holds nearly all mbufs. That one is asked to evict, and the other
// continues to receive.
func TestMbufsLow(t *testing.T) {
	b := newBed(t, Options{Mbufs: 256})
	greedy, modest := b.listen(9000), b.listen(9001)
	var held []ingest.Datagram
	batch := make([]ingest.Datagram, 8)
	for n := 0; greedy.Stats().NoRoom == 0; n++ {
		if n > 400 {
			t.Fatal("mbufs never ran low")
		}
		b.send(greedy, client4, []byte("kept"))
		got, err := greedy.Receive(batch, shm.Now()+int64(ingesttest.Patience))
		must.OK(t, err)
		held = append(held, batch[:got]...)
	}
	if free := 256 - len(held); free < 1 || free > 256/8 {
		t.Errorf("it was asked with %d mbufs left", free)
	}
	b.send(modest, client4, []byte("goes on"))
	release(modest, ingesttest.Receive(t, modest, 1, 1)...)
	if n := modest.Stats().NoRoom; n != 0 {
		t.Errorf("the other was asked %d times", n)
	}
	// The other's Receive also asks it while it sleeps.
	release(greedy, held[:40]...)
	held = held[40:]
	// The last datagram was not received, but its frame came.
	held = append(held, ingesttest.Receive(t, greedy, 1, 8)...)
	asked := make(chan error, 1)
	go func() {
		_, err := greedy.Receive(make([]ingest.Datagram, 8), 0)
		asked <- err
	}()
	time.Sleep(5 * time.Millisecond)
	var others []ingest.Datagram
	before := greedy.Stats().NoRoom
	more := b.datagram(b.link(), client4, toOf(modest, client4), []byte("more"))
	for ended := false; !ended; {
		// Without waiting for room: if no mbufs are left, this thread has to receive.
		_, _ = b.wire.Put(b.pool, 0, more)
		n, err := modest.Receive(batch, shm.Now()+int64(time.Millisecond))
		must.OK(t, err)
		others = append(others, batch[:n]...)
		select {
		case err := <-asked:
			must.OK(t, err)
			ended = true
		default:
			if len(others) > 200 {
				t.Fatal("the sleeping one was not asked")
			}
		}
	}
	if greedy.Stats().NoRoom == before {
		t.Error("its Receive ended without a reason")
	}
	release(greedy, held...)
	release(modest, others...)
}

func TestReleasingTwicePanics(t *testing.T) {
	b := newBed(t, Options{})
	s, other := b.listen(9000), b.listen(9001)
	b.send(s, client4, []byte("x"))
	d := ingesttest.Receive(t, s, 1, 1)[0]
	panics := func(what string, by *Source, span ingest.Span) {
		t.Helper()
		defer func() {
			if err, _ := recover().(error); !errors.Is(err, slab.ErrReleasedTwice) {
				t.Errorf("%s: %v", what, err)
			}
		}()
		by.Release([]ingest.Span{span})
	}
	panics("memory before the first mbuf", s, ingest.Span{Offset: 1, Length: 1})
	panics("memory behind the last mbuf", s, ingest.Span{Offset: 1 << 40, Length: 1})
	release(s, d)
	panics("a second release", s, d.First)
	b.send(s, client4, []byte("y"))
	d = ingesttest.Receive(t, s, 1, 1)[0]
	func() {
		defer func() { _ = recover() }()
		other.Release([]ingest.Span{d.First})
		t.Error("another function released it")
	}()
	release(s, d)
}

func TestCloseReleasesUnread(t *testing.T) {
	b := newBed(t, Options{})
	for round := range 5 {
		s := b.listen(9000)
		b.send(s, client4, ingesttest.Payloads(50, 100)...)
		b.eventually("frames wait", func() bool { return s.sink.Waiting() == 50 })
		if err := s.Close(); err != nil {
			t.Fatal(round, err)
		}
		b.eventually("they are back", b.back)
	}
	// No function has the port any more.
	b.inject(0, b.datagram(b.link(), client4, netip.AddrPortFrom(own4, 9000), []byte("late")))
	b.wantReason(frame.ForeignPort, 1)
}

func TestCloseReleasesHeld(t *testing.T) {
	b := newBed(t, Options{})
	stays := b.listen(9001)
	for range 300 { // more often than there are numbers
		s, err := listenOne(b.Group, 9000)
		must.OK(t, err)
		b.send(s, client4, ingesttest.Payloads(3, 100)...)
		b.send(stays, client4, []byte("kept"))
		ingesttest.Receive(t, s, 3, 8)
		kept := ingesttest.Receive(t, stays, 1, 1)
		must.OK(t, errors.Join(s.Close(), s.CloseSlab(), s.CloseSlab()))
		if held := b.held.Load(); held != 1 {
			t.Fatalf("%d mbufs are held, want the other function's one", held)
		}
		release(stays, kept...)
	}
}

func TestOpenCloseUnderTraffic(t *testing.T) {
	b := newBed(t, Options{Queues: 2})
	b.injectors.Go(func() {
		f := b.datagram(b.link(), client4, netip.AddrPortFrom(own4, 9000), make([]byte, 500))
		for n := 0; !b.stop.Load(); n++ {
			b.inject(n%2, f)
		}
	})
	batch := make([]ingest.Datagram, 32)
	for range 50 {
		s, err := listenOne(b.Group, 9000)
		must.OK(t, err)
		for range 3 {
			n, err := s.Receive(batch, shm.Now()+int64(ingesttest.Patience))
			if err != nil || n == 0 {
				t.Fatal(n, err)
			}
			release(s, batch[:n]...)
		}
		must.OK(t, errors.Join(s.Close(), s.CloseSlab()))
	}
}

func TestAGroupSaysWhatCannotBe(t *testing.T) {
	b := newBed(t, Options{})
	b.listen(9000)
	if _, err := listenOne(b.Group, 9000); err == nil || !strings.Contains(err.Error(), "9000") || !strings.Contains(err.Error(), "another function") {
		t.Errorf("a port that is taken: %v", err)
	}
	free := b.listen(0)
	if p := free.LocalAddr().Port(); p < firstFree {
		t.Errorf("a free port is %d", p)
	}
	if err := b.Group.Close(); err == nil || !strings.Contains(err.Error(), "2 of its sources") {
		t.Errorf("closing with open sources: %v", err)
	}
	for port, words := range map[string][]string{
		"net_nosuch0":                   {"net_nosuch0", "no such driver"},
		"net_af_packet7,iface=nosuch0":  {"net_af_packet7", "interface"},
		"net_pcap7,rx_pcap=/no/such":    {"net_pcap7"},
		"0000:ff:1f.7":                  {"0000:ff:1f.7", "doctor"},
		"net_ring7,nodeaction=x:y:what": {"net_ring7"},
	} {
		_, err := Open(Options{Port: port, MTU: 1500, Queues: 1, Memory: 64 << 20, Mbufs: 512, Addresses: []netip.Addr{own4}})
		if err == nil {
			t.Errorf("%s was opened", port)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: error %q does not name %q", port, err, word)
			}
		}
	}
	if _, err := Open(Options{Port: "net_null9", MTU: 1500, Queues: 1, Memory: 64 << 30, Addresses: []netip.Addr{own4}}); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("more mbufs than memory: %v", err)
	}
	if _, err := Open(Options{Port: "net_null9", MTU: 1500, Queues: 65, Memory: 64 << 20, Mbufs: 512, Addresses: []netip.Addr{own4}}); err == nil || !strings.Contains(err.Error(), "queues") {
		t.Errorf("more queues than the driver has: %v", err)
	}
	if _, err := Open(Options{Port: "net_null9", MTU: 1500}); err == nil || !strings.Contains(err.Error(), "address") {
		t.Errorf("no address: %v", err)
	}
}

func TestDataPathAllocations(t *testing.T) {
	b := newBed(t, Options{Addresses: []netip.Addr{own4, netip.MustParseAddr("10.9.0.3"), own6}})
	s := b.listen(9000)
	f := b.datagram(b.link(), client4, toOf(s, client4), make([]byte, 1046))
	batch := make([]ingest.Datagram, 16)
	spans := make([]ingest.Span, 0, 16)
	packets := []ingest.Packet{{To: client4, Data: make([]byte, 100)}, {To: client4, Data: make([]byte, 10)}}
	taken := make([]byte, 1<<12)
	frames := [][]byte{f, f, f, f}
	if n := testing.AllocsPerRun(200, func() {
		if n, err := b.wire.Put(b.pool, 0, frames...); n != len(frames) || err != nil {
			t.Fatal(n, err)
		}
		for got := 0; got < len(frames); {
			n, err := s.Receive(batch, shm.Now()+int64(ingesttest.Patience))
			if err != nil || n == 0 {
				t.Fatal(n, err)
			}
			got += n
			spans = spans[:0]
			for _, d := range batch[:n] {
				spans = append(spans, d.First)
			}
			s.Release(spans)
		}
		if n, err := s.Send(packets); n != len(packets) || err != nil {
			t.Fatal(n, err)
		}
		for range packets {
			b.wire.Take(0, taken)
		}
		_, _ = s.Receive(batch, shm.Now()+1000)
	}); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
}

// A capture of a camera's traffic is received as from a NIC.
func TestACaptureIsReceived(t *testing.T) {
	var link frame.Link
	link.Own = clientMAC
	name := filepath.Join(t.TempDir(), "traffic.pcap")
	file, err := os.Create(name)
	must.OK(t, err)
	capture := pcapgo.NewWriter(file)
	must.OK(t, capture.WriteFileHeader(1<<16, layers.LinkTypeEthernet))
	const datagrams = 30
	sent := ingesttest.Payloads(datagrams, 1046)
	put := func(f []byte) {
		must.OK(t, capture.WritePacket(gopacket.CaptureInfo{CaptureLength: len(f), Length: len(f)}, f))
	}
	// The driver's ports choose their own addresses: 02:70:63:61:70:NN.
	link.Peer = frame.MAC{2, 0x70, 0x63, 0x61, 0x70, 0}
	for _, p := range sent {
		f := make([]byte, 2000)
		put(f[:frame.PutUDP(f, &link, client4, netip.AddrPortFrom(own4, 9000), p, frame.FillAll)])
	}
	big := make([]byte, 9000) // larger than an mbuf
	copy(big, sent[0])
	put(big)
	must.OK(t, file.Close())
	g, err := Open(Options{
		Port: "net_pcap0,infinite_rx=0,rx_pcap=" + name, MTU: 1500, Queues: 1, Mbufs: 512, Memory: 64 << 20,
		Addresses: []netip.Addr{own4},
	})
	must.OK(t, err)
	b := &bed{Group: g, t: t}
	// The capture's frames may have been counted as foreign before the port opened. Only
	// opening a device makes its driver read the file from the beginning. The test avoids
	// this race by checking both.
	s, err := listenOne(g, 9000)
	must.OK(t, err)
	got := 0
	var payloads [][]byte
	for deadline := time.Now().Add(ingesttest.Patience); time.Now().Before(deadline); {
		batch := make([]ingest.Datagram, 8)
		n, err := s.Receive(batch, shm.Now()+int64(time.Millisecond))
		must.OK(t, err)
		for _, d := range batch[:n] {
			payloads = append(payloads, bytes.Clone(ingesttest.Payload(s, d)))
			release(s, d)
		}
		got += n
		if f := g.Stats().Frames; got+int(f[frame.ForeignPort])+int(f[frame.ForeignAddress]) == datagrams && f[frame.Scattered] == 1 {
			break
		}
	}
	if f := g.Stats().Frames; got+int(f[frame.ForeignPort])+int(f[frame.ForeignAddress]) != datagrams || f[frame.Scattered] != 1 {
		t.Errorf("received %d of %d: %+v, %x", got, datagrams, g.Stats(), g.MAC())
	}
	if !slices.EqualFunc(payloads, sent[datagrams-got:], bytes.Equal) {
		t.Errorf("the %d datagrams received are not the capture's last ones", got)
	}
	if err := errors.Join(s.Close(), s.CloseSlab()); err != nil {
		t.Error(err)
	}
	b.eventually("every mbuf is back", func() bool { return g.Stats().MbufsHeld == 0 })
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// The kernel writes the remaining time into the timeout of a wait. The next wait with the
// same timeout must be as long, or a loop of waits would spin.
func TestAWaitLeavesItsTimeoutAsItWas(t *testing.T) {
	b := newBed(t, Options{})
	sink, err := b.device.NewSink(1, 1, 8)
	must.OK(t, err)
	defer sink.Close()
	timeout := unix.NsecToTimespec(int64(time.Millisecond))
	for _, wait := range []func(*unix.Timespec) error{sink.Sleep, sink.Pause} {
		must.OK(t, wait(&timeout))
		if got := timeout.Nano(); got != int64(time.Millisecond) {
			t.Errorf("after a wait of a millisecond its timeout is %v", time.Duration(got))
		}
	}
}
