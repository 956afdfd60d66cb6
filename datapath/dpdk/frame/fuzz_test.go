package frame

import (
	"bytes"
	"net/netip"
	"testing"
)

func seed(f *testing.F) {
	for _, frame := range []string{
		linuxUDP4, linuxUDP6, linuxUnfilled4, linuxUnfilled6, linuxOptions4, linuxNoCheck4, linuxOptions6, linuxFragment4, linuxFragment6,
		linuxARP, linuxNS, linuxDAD, linuxMLD, linuxEcho4, linuxEcho6,
		tagged(linuxUDP4, "81000007"), tagged(linuxNS, "88a8000981000007"), tagged(linuxARP, "8100e000"),
	} {
		f.Add(unhex(f, frame), uint8(7), uint16(0))
	}
}

// FuzzParse: for any bytes, a datagram lies inside its frame, and an answer can
// go back. Parsing the answer's frame, with checksums, returns the same
// addresses and tags.
func FuzzParse(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, b []byte, check uint8, _ uint16) {
		had := bytes.Clone(b)
		var d Datagram
		reason := parse(b, Checks(check), &d)
		if !bytes.Equal(b, had) {
			t.Fatal("the frame was written to")
		}
		if reason != OK {
			if reason >= Reasons {
				t.Fatalf("reason %d", reason)
			}
			return
		}
		from, to := d.From.Addr(), d.To.Addr()
		if uint64(d.Payload.Offset)+uint64(d.Payload.Length) > uint64(len(b)) || d.Payload.Offset < etherBytes+ip4Bytes+udpBytes {
			t.Fatalf("payload %v in %d bytes", d.Payload, len(b))
		}
		if d.From.Port() == 0 || from.Is4() != to.Is4() || from.Is4In6() || from.IsMulticast() || from.IsUnspecified() || from.IsLoopback() {
			t.Fatalf("no answer can go from %v to %v", d.To, d.From)
		}
		payload := b[d.Payload.Offset:][:d.Payload.Length]
		out := make([]byte, MaxHeaderBytes+len(payload)+leastFrame)
		n := PutUDP(out, &d.Link, d.To, d.From, payload, FillAll)
		if d.To.Port() == 0 || !answerable(to) {
			return // an answer could not come from that address
		}
		var back Datagram
		if reason := parse(out[:n], CheckIP|CheckUDP, &back); reason != OK && !d.Link.Own.group() {
			t.Fatalf("the answer is %v", reason)
		} else if reason == OK && (back.From != d.To || back.To != d.From || back.Link.Tags != d.Link.Tags) {
			t.Fatalf("%+v is answered %+v", d, back)
		}
	})
}

func answerable(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()
		return answerable4(b[:])
	}
	b := a.As16()
	return answerable6(b[:])
}

// FuzzAnswer: an answer is a valid frame from us that needs no answer itself.
// It goes to one machine, or to all nodes if RFC 4862 requires that. It is
// hardly larger than the question.
func FuzzAnswer(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, b []byte, _ uint8, stripped uint16) {
		r, table := newResponder()
		had := bytes.Clone(b)
		answer := r.Answer(1, b, stripped)
		if !bytes.Equal(b, had) {
			t.Fatal("the frame was written to")
		}
		for _, addr := range []netip.Addr{own4, own6, netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			if _, _, ok := table.Find(addr); ok {
				t.Fatalf("%v is a neighbour", addr)
			}
		}
		if answer == nil {
			return
		}
		var l Link
		var p packet
		reason := p.parse(answer, CheckIP, &l)
		if reason != ARP && reason != OK || l.Peer != ownMAC || l.Own.group() && l.Own != allNodesMAC {
			t.Fatalf("%x is answered %x: %v", b, answer, reason)
		}
		const linkOption = 8 // bytes
		if len(answer) > max(leastFrame, len(b)+linkOption+maxTags*tagBytes) {
			t.Fatalf("%d bytes are answered with %d", len(b), len(answer))
		}
		other := NewResponder(Host{MAC: clientMAC, Addresses: []netip.Addr{client4, client6}}, NewNeighbours(8))
		if m := other.Answer(2, answer, 0); m != nil {
			t.Fatalf("%x is answered %x, and that is answered", b, answer)
		}
	})
}
