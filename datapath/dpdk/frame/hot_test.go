package frame

import (
	"net/netip"
	"testing"

	"github.com/penstock/penstock/wire"
)

// hotFrame is the frame of a fragment of 1 KB, and the host that it is for.
func hotFrame() (b []byte, host Host) {
	b = make([]byte, 2048)
	l := Link{Peer: ownMAC, Own: clientMAC}
	n := PutUDP(b, &l, netip.AddrPortFrom(client4, 6000), netip.AddrPortFrom(own4, 5001), make([]byte, wire.HeaderSize+1024), FillAll)
	return b[:n], Host{MAC: ownMAC, Addresses: []netip.Addr{own4}}
}

func TestHotPathAllocations(t *testing.T) {
	b, host := hotFrame()
	learner := Learner{Table: NewNeighbours(64)}
	out, reply := make([]byte, 2048), make([]byte, 1024)
	now := int64(1)
	if n := testing.AllocsPerRun(100, func() {
		var d Datagram
		if reason := host.Parse(b, 0, CheckIP|CheckUDP, &d); reason != OK {
			t.Fatal(reason)
		}
		now += relearn // each time it writes to the table
		learner.Learn(&d, now)
		back, own, ok := learner.Table.Find(d.From.Addr())
		if !ok || PutUDP(out, &back, netip.AddrPortFrom(own, d.To.Port()), d.From, reply, FillAll) == 0 {
			t.Fatal("no reply")
		}
	}); n != 0 {
		t.Errorf("a datagram and its answer allocate %v times, want 0", n)
	}
}

func BenchmarkParse(b *testing.B) {
	for name, check := range map[string]Checks{"headers": CheckIP, "checksums": CheckIP | CheckUDP} {
		b.Run(name, func(b *testing.B) {
			frame, host := hotFrame()
			var d Datagram
			for b.Loop() {
				if host.Parse(frame, 0, check, &d) != OK {
					b.Fatal("no datagram")
				}
			}
		})
	}
}

func BenchmarkPutUDP(b *testing.B) {
	out, payload := make([]byte, 2048), make([]byte, 1024)
	l := Link{Peer: clientMAC, Own: ownMAC}
	for b.Loop() {
		PutUDP(out, &l, netip.AddrPortFrom(own4, 5001), netip.AddrPortFrom(client4, 6000), payload, FillAll)
	}
}
