package frame

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// For any frames, Find returns what Parse returns. Frames that it does not find are damaged,
// or of a kind that it does not handle.
func TestRecentFindsWhatParseSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Recent
		first := drawLetter(t)
		host := Host{MAC: first.link.Own, Addresses: []netip.Addr{first.to.Addr()}}
		check := rapid.SampledFrom([]Checks{0, CheckIP, CheckUDP, CheckIP | CheckUDP, CheckIP | CheckUDP | AllowUnfilled}).Draw(t, "check")
		hits := 0
		for range rapid.IntRange(1, 20).Draw(t, "frames") {
			l := first
			l.payload = rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "payload")
			switch rapid.IntRange(0, 5).Draw(t, "another") {
			case 0:
				l.from = netip.AddrPortFrom(l.from.Addr(), rapid.Uint16Min(1).Draw(t, "from port"))
			case 1:
				l.link.Peer = drawMAC(t, "peer")
			}
			fill := rapid.SampledFrom([]Filled{FillAll, fillIP}).Draw(t, "fill")
			// The link as the receiver sees it.
			l.link.Peer, l.link.Own = l.link.Own, l.link.Peer
			b := l.put(t, fill)
			damaged := rapid.IntRange(0, 2).Draw(t, "damaged") == 0
			if damaged {
				b[rapid.IntRange(0, min(len(b), 60)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
				b = b[:rapid.IntRange(0, len(b)).Draw(t, "cut")]
			}
			var d Datagram
			reason := host.Parse(b, 0, check, &d)
			f := r.Find(b, check)
			switch {
			case f == nil:
				if reason == OK {
					r.Note(b, &d)
				}
			case reason != OK:
				t.Fatalf("found what Parse calls %v: %x", reason, b)
			case f.Datagram != d:
				t.Fatalf("found %+v, Parse says %+v: %x", f.Datagram, d, b)
			default:
				hits++
			}
			if reason == OK && plain(b) && (r.Find(b, check) == nil || r.Find(b, check).Datagram != d) {
				t.Fatalf("what was noted is not found: %x", b)
			}
		}
	})
}

// plain reports whether Recent handles frames of this kind.
func plain(b []byte) bool {
	return binary.BigEndian.Uint16(b[12:]) == typeIP4 && b[14] == 0x45
}

func TestRecentRouteChange(t *testing.T) {
	var r Recent
	host := Host{MAC: MAC{2, 0, 0, 0, 0, 1}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	find := func(last byte) *Flow {
		link := Link{Peer: host.MAC, Own: MAC{2, 0, 0, 0, 1, last}}
		b := make([]byte, 200)
		b = b[:PutUDP(b, &link, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), 5000+uint16(last)), netip.AddrPortFrom(host.Addresses[0], 9000), bytes.Repeat([]byte{1}, 64), FillAll)]
		if f := r.Find(b, CheckIP); f != nil {
			return f
		}
		var d Datagram
		if reason := host.Parse(b, 0, CheckIP, &d); reason != OK {
			t.Fatal(reason)
		}
		return r.Note(b, &d)
	}
	now := int64(1)
	for i, step := range []struct {
		way   byte
		stale bool
	}{{1, true}, {1, false}, {2, true}, {2, false}, {1, true}, {2, true}, {2, false}} {
		f := find(step.way)
		if f.Stale(now) != step.stale {
			t.Errorf("datagram %d, way %d: stale %v, want %v", i, step.way, !step.stale, step.stale)
		}
		if f.Stale(now) {
			r.Told(f, now)
		}
		now++
	}
	if f := find(2); !f.Stale(now + relearn) {
		t.Error("a second later nobody would be told of it")
	}
}
