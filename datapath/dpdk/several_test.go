//go:build dpdk && cgo

package dpdk

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/datapath/dpdk/eal"
	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/ingesttest"
	"github.com/penstock/penstock/internal/testing/must"
)

// listenSeveral opens the sources of a port, which are closed at the end of the test.
func (b *bed) listenSeveral(port uint16, n int) []*Source {
	b.t.Helper()
	all, err := b.Listen(port, n)
	must.OK(b.t, err)
	b.t.Cleanup(func() {
		for _, s := range all {
			if err := s.Close(); err != nil {
				b.t.Error(err)
			}
		}
		for _, s := range all {
			if err := s.CloseSlab(); err != nil {
				b.t.Error(err)
			}
		}
	})
	return all
}

// Whichever queue a client's frames come by, and whatever tags they have, one source of the port
// receives them all, once.
func TestClientStaysOnSource(t *testing.T) {
	const queues, port = 3, 9000
	b := newBed(t, Options{Queues: queues})
	all := b.listenSeveral(port, queues)
	rapid.Check(t, func(t *rapid.T) {
		clients := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) netip.AddrPort {
			host, udp := rapid.Byte().Draw(t, "host"), rapid.Uint16Range(1, 1<<16-1).Draw(t, "port")
			address := netip.AddrFrom4([4]byte{10, 9, 1, host})
			if rapid.Bool().Draw(t, "IPv6") {
				address = netip.AddrFrom16([16]byte{0: 0xfd, 3: 9, 8: host, 15: 7})
			}
			return netip.AddrPortFrom(address, udp)
		}), 1, 12, rapid.ID).Draw(t, "clients")
		sent := map[netip.AddrPort]int{}
		total := 0
		for range rapid.IntRange(1, 60).Draw(t, "datagrams") {
			from := rapid.SampledFrom(clients).Draw(t, "from")
			link := b.link()
			for i := range rapid.IntRange(0, 2).Draw(t, "tags") {
				link.Tags[i] = frame.Tag(rapid.SampledFrom([]uint32{0x8100, 0x88a8, 0x9100}).Draw(t, "tag")<<16 | 7)
			}
			f := b.datagram(link, from, toOf(all[0], from), []byte{byte(sent[from])})
			b.inject(rapid.IntRange(0, queues-1).Draw(t, "queue"), f)
			sent[from]++
			total++
		}
		got := map[netip.AddrPort][]byte{}
		batch := make([]ingest.Datagram, 16)
		for deadline := time.Now().Add(ingesttest.Patience); total > 0; {
			if time.Now().After(deadline) {
				t.Fatalf("%d datagrams did not come", total)
			}
			for i, s := range all {
				n, err := s.Receive(batch, 1)
				must.OK(t, err)
				for _, d := range batch[:n] {
					if want := eal.Member(d.From, len(all)); want != i {
						t.Errorf("a datagram of %v comes from source %d, want %d", d.From, i, want)
					}
					got[d.From] = append(got[d.From], ingesttest.Payload(s, d)...)
					release(s, d)
				}
				total -= n
			}
		}
		for from, n := range sent {
			// Queues may overtake each other; nothing is lost or duplicated.
			payloads := slices.Sorted(slices.Values(got[from]))
			for i := range n {
				if len(payloads) != n || int(payloads[i]) != i {
					t.Fatalf("of %v came %v, want 0 to %d once each", from, payloads, n-1)
				}
			}
		}
	})
}

// Clients are spread about evenly over the sources.
func TestClientSpread(t *testing.T) {
	for _, test := range []struct {
		name string
		from func(i int) netip.AddrPort
	}{
		{"ports of one host", func(i int) netip.AddrPort { return netip.AddrPortFrom(own4, uint16(32768+i)) }},
		{"hosts", func(i int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 5000)
		}},
		{"IPv6 hosts", func(i int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}), 5000)
		}},
		{"IPv6 networks", func(i int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 6: byte(i >> 8), 7: byte(i), 15: 1}), 5000)
		}},
	} {
		for members := 2; members <= 16; members++ {
			const clients = 4096
			count := make([]int, members)
			for i := range clients {
				count[eal.Member(test.from(i), members)]++
			}
			if least, fair := slices.Min(count), clients/members; least < fair/2 || slices.Max(count) > 2*fair {
				t.Errorf("%s, %d sources: they have %v of %d clients", test.name, members, count, clients)
			}
		}
	}
}

// The port closes with the first of its sources. What the others hold stays valid, and the
// port can be opened again.
func TestSeveralSourcesClose(t *testing.T) {
	b := newBed(t, Options{Queues: 2})
	for round := range 3 {
		all, err := b.Listen(9000, 2)
		must.OK(t, err)
		// A client of each source.
		var held []ingest.Datagram
		for i, s := range all {
			from := client4
			for eal.Member(from, 2) != i {
				from = netip.AddrPortFrom(from.Addr(), from.Port()+1)
			}
			b.send(s, from, fmt.Appendf(nil, "%d of %d", i, round))
			held = append(held, ingesttest.Receive(t, s, 1, 1)...)
		}
		for i := range all {
			s := all[(i+round)%2]
			must.OK(t, s.Close())
			if _, err := s.Receive(make([]ingest.Datagram, 1), 1); err != ingest.ErrClosed {
				t.Errorf("a closed source receives with %v", err)
			}
		}
		before := b.Group.Stats().Frames[frame.ForeignPort]
		b.send(all[0], client4, []byte("too late"))
		b.wantReason(frame.ForeignPort, before+1)
		release(all[0], held[0])
		for _, s := range all { // the second gives up what it holds
			must.OK(t, s.CloseSlab())
		}
	}
	if _, err := b.Listen(9000, 0); err == nil {
		t.Error("no sources could be opened")
	}
}

// Of a port's sources, the one that holds the most is asked for mbufs, even if another one
// receives.
func TestSeveralSourcesMbufsLow(t *testing.T) {
	b := newBed(t, Options{Queues: 2, Mbufs: 512})
	all := b.listenSeveral(9000, 2)
	other := b.listen(9001)
	from := make([]netip.AddrPort, 2)
	for i := range from {
		for from[i] = client4; eal.Member(from[i], 2) != i; {
			from[i] = netip.AddrPortFrom(from[i].Addr(), from[i].Port()+1)
		}
	}
	few := int(b.capacity-b.lowWater) / 8
	fill := func(s *Source, from netip.AddrPort, n int) []ingest.Datagram {
		for range n {
			b.send(s, from, []byte("x"))
		}
		return ingesttest.Receive(t, s, n, 16)
	}
	// The function's two sources hold more than the other function, though neither alone
	// does.
	held := [][]ingest.Datagram{fill(all[0], from[0], 2*few), fill(all[1], from[1], 3*few)}
	others := fill(other, client4, 3*few+few/2)
	defer func() {
		for i, s := range all {
			release(s, held[i]...)
		}
		release(other, others...)
	}()
	if free := b.capacity - b.held.Load(); free >= b.lowWater {
		t.Fatalf("%d mbufs are free, want fewer than %d", free, b.lowWater)
	}
	for _, s := range []*Source{other, all[0], all[1]} {
		b.lowSince.Store(0) // no source has been asked yet
		all[1].asked.Store(false)
		if got := b.low(s); got != (s == all[1]) {
			t.Errorf("the source of %v that holds %d shall let requests go: %v", s.local, s.held.Load(), got)
		}
		if asked := all[1].asked.Load(); asked != (s != all[1]) {
			t.Errorf("the source that holds the most was asked: %v", asked)
		}
	}
}
