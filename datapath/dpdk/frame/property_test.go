package frame

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/penstock/penstock/internal/testing/must"
	"pgregory.net/rapid"
)

// letter is a datagram to put into a frame.
type letter struct {
	link     Link
	from, to netip.AddrPort
	payload  []byte
}

func drawMAC(t *rapid.T, name string) MAC {
	m := MAC(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, name))
	m[0] &^= 1
	return m
}

func drawLetter(t *rapid.T) letter {
	var l letter
	l.link.Peer, l.link.Own = drawMAC(t, "peer"), drawMAC(t, "own")
	kinds := []uint16{typeVLAN, typeQinQ, typeOldQQ}
	for i := range rapid.IntRange(0, maxTags).Draw(t, "tags") {
		l.link.Tags[i] = makeTag(rapid.SampledFrom(kinds).Draw(t, "kind"), rapid.Uint16Range(1, 4095).Draw(t, "vlan"))
	}
	size := 4
	if rapid.Bool().Draw(t, "IPv6") {
		size = 16
	}
	addr := func(name string) netip.Addr {
		b := rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, name)
		b[0] = byte(rapid.IntRange(1, 126).Draw(t, "first"))
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	l.from = netip.AddrPortFrom(addr("from"), rapid.Uint16Min(1).Draw(t, "from port"))
	l.to = netip.AddrPortFrom(addr("to"), rapid.Uint16().Draw(t, "to port"))
	l.payload = rapid.SliceOfN(rapid.Byte(), 0, 1600).Draw(t, "payload")
	return l
}

func (l *letter) put(t *rapid.T, fill Filled) []byte {
	b := bytes.Repeat([]byte{0xaa}, MaxHeaderBytes+len(l.payload)+leastFrame)
	n := PutUDP(b, &l.link, l.from, l.to, l.payload, fill)
	if n < leastFrame {
		t.Fatalf("a frame of %d bytes", n)
	}
	if !bytes.Equal(b[n:], bytes.Repeat([]byte{0xaa}, len(b)-n)) {
		t.Fatal("it wrote beyond the frame")
	}
	return b[:n]
}

func TestWhatIsPutIsParsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLetter(t)
		fill, check := FillAll, CheckIP|CheckUDP
		if rapid.Bool().Draw(t, "unfilled") {
			fill, check = fillIP, check|AllowUnfilled
		}
		b := l.put(t, fill)
		var d Datagram
		if reason := parse(b, check, &d); reason != OK {
			t.Fatalf("it is %v", reason)
		}
		// The frame goes to the peer, so it comes from us.
		turned := Link{Peer: l.link.Own, Own: l.link.Peer, Tags: l.link.Tags}
		if d.From != l.from || d.To != l.to || d.Link != turned {
			t.Fatalf("%+v came as %+v", l, d)
		}
		if got := b[d.Payload.Offset:][:d.Payload.Length]; !bytes.Equal(got, l.payload) {
			t.Fatalf("payload %x came as %x", l.payload, got)
		}
		ether, ip := HeaderBytes(&l.link, l.to.Addr())
		if ether+ip+udpBytes != int(d.Payload.Offset) {
			t.Fatalf("headers of %d and %d bytes before a payload at %d", ether, ip, d.Payload.Offset)
		}
	})
}

// gopacket, an independent implementation, reads the same from the frame and
// computes the same checksums.
func TestOthersReadWhatIsPut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLetter(t)
		for i, tag := range l.link.Tags {
			if tag>>16 == typeOldQQ { // gopacket does not know that type
				l.link.Tags[i] = makeTag(typeVLAN, tag.VLAN())
			}
		}
		b := l.put(t, FillAll)
		p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
		if p.TransportLayer() == nil { // how gopacket interprets the payload by its port does not matter
			t.Fatalf("no datagram: %v", p.ErrorLayer())
		}
		ether := p.LinkLayer().(*layers.Ethernet)
		if MAC(ether.DstMAC) != l.link.Peer || MAC(ether.SrcMAC) != l.link.Own {
			t.Fatalf("from %v to %v, want %v", ether.SrcMAC, ether.DstMAC, l.link)
		}
		n := 0
		for _, layer := range p.Layers() {
			if v, ok := layer.(*layers.Dot1Q); ok {
				if v.VLANIdentifier != l.link.Tags[n].VLAN() {
					t.Fatalf("tag %d is of VLAN %d, want %d", n, v.VLANIdentifier, l.link.Tags[n].VLAN())
				}
				n++
			}
		}
		from, _ := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Src().Raw())
		to, _ := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Dst().Raw())
		udp := p.TransportLayer().(*layers.UDP)
		if from != l.from.Addr() || to != l.to.Addr() || uint16(udp.SrcPort) != l.from.Port() || uint16(udp.DstPort) != l.to.Port() {
			t.Fatalf("from %v:%d to %v:%d, want %v to %v", from, udp.SrcPort, to, udp.DstPort, l.from, l.to)
		}
		if !bytes.Equal(udp.Payload, l.payload) {
			t.Fatalf("payload %x, want %x", udp.Payload, l.payload)
		}
		udp.SetNetworkLayerForChecksum(p.NetworkLayer())
		err, wrong := p.VerifyChecksums()
		wrong = slices.DeleteFunc(wrong, func(m gopacket.ChecksumMismatch) bool {
			// gopacket may read the payload as another protocol, whose checksum is not ours.
			return m.Layer != gopacket.Layer(udp) && m.Layer != gopacket.Layer(p.NetworkLayer())
		})
		if err != nil || len(wrong) > 0 {
			t.Fatalf("checksums: %v %v", err, wrong)
		}
	})
}

// Frames made by gopacket, with IPv4 options.
func TestWhatOthersPutIsParsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLetter(t)
		l.link.Tags = [maxTags]Tag{}
		udp := &layers.UDP{SrcPort: layers.UDPPort(l.from.Port()), DstPort: layers.UDPPort(l.to.Port())}
		ether := &layers.Ethernet{SrcMAC: l.link.Peer[:], DstMAC: l.link.Own[:]}
		list := []gopacket.SerializableLayer{ether}
		from, to := net.IP(l.from.Addr().AsSlice()), net.IP(l.to.Addr().AsSlice())
		if l.to.Addr().Is4() {
			ether.EthernetType = layers.EthernetTypeIPv4
			ip := &layers.IPv4{Version: 4, Protocol: layers.IPProtocolUDP, SrcIP: from, DstIP: to, TTL: 1, Flags: layers.IPv4DontFragment}
			for range rapid.IntRange(0, 9).Draw(t, "options") {
				ip.Options = append(ip.Options, layers.IPv4Option{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}})
			}
			list = append(list, ip)
			udp.SetNetworkLayerForChecksum(ip)
		} else {
			ether.EthernetType = layers.EthernetTypeIPv6
			ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolUDP, SrcIP: from, DstIP: to, HopLimit: 1}
			list = append(list, ip)
			udp.SetNetworkLayerForChecksum(ip)
		}
		list = append(list, udp, gopacket.Payload(l.payload))
		buffer := gopacket.NewSerializeBuffer()
		must.OK(t, gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...))
		b := buffer.Bytes()
		var d Datagram
		if reason := parse(b, CheckIP|CheckUDP, &d); reason != OK {
			t.Fatalf("it is %v: %x", reason, b)
		}
		if d.From != l.from || d.To != l.to || d.Link != l.link || !bytes.Equal(b[d.Payload.Offset:][:d.Payload.Length], l.payload) {
			t.Fatalf("%+v came as %+v", l, d)
		}
	})
}

// One flipped bit is detected, anywhere that a checksum covers.
func TestDamageIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLetter(t)
		b := l.put(t, FillAll)
		ether, ip := HeaderBytes(&l.link, l.to.Addr())
		from, to := ether, ether+ip+udpBytes+len(l.payload)
		if ip == ip6Bytes {
			from += 8 // IPv6 does not cover its first fields, except the length, by a checksum
		}
		bit := rapid.IntRange(8*from, 8*to-1).Draw(t, "bit")
		b[bit/8] ^= 1 << (bit % 8)
		var d Datagram
		switch reason := parse(b, CheckIP|CheckUDP, &d); {
		case reason != OK:
		case binary.BigEndian.Uint16(b[ether+ip+6:]) == 0:
			// The UDP checksum had a single bit and is now 0, which means none
			// in IPv4.
		default:
			t.Fatalf("bit %d of byte %d is not missed", bit%8, bit/8)
		}
	})
}

func TestSumIsThatOfRFC1071(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0x7f, 0x80, 0xfe, 0xff}), 0, 300).Draw(t, "bytes")
		begin := rapid.Uint16().Draw(t, "begin")
		want := uint32(begin)
		for i, v := range b {
			if i%2 == 0 {
				want += uint32(v) << 8
			} else {
				want += uint32(v)
			}
			want = want>>16 + want&0xffff
		}
		if got := fold(sum(b, sum16(begin, 0))); got != uint16(want) {
			t.Fatalf("the sum is %#04x, want %#04x", got, want)
		}
	})
}

func TestPutRefusesWhatIsNoFrame(t *testing.T) {
	l := Link{Peer: clientMAC, Own: ownMAC}
	from4, to4 := netip.AddrPortFrom(own4, 1), netip.AddrPortFrom(client4, 2)
	from6, to6 := netip.AddrPortFrom(own6, 1), netip.AddrPortFrom(client6, 2)
	b := make([]byte, 100)
	for name, n := range map[string]int{
		"two families":         PutUDP(b, &l, from4, to6, nil, FillAll),
		"two families again":   PutUDP(b, &l, from6, to4, nil, FillAll),
		"nobody":               PutUDP(b, &l, from4, netip.AddrPort{}, nil, FillAll),
		"from nobody":          PutUDP(b, &l, netip.AddrPort{}, to6, nil, FillAll),
		"no room":              PutUDP(b, &l, from4, to4, make([]byte, 100-41), FillAll),
		"no room for IPv6":     PutUDP(b, &l, from6, to6, make([]byte, 100-61), FillAll),
		"no IP packet":         PutUDP(make([]byte, 70000), &l, from4, to4, make([]byte, 65536-28), FillAll),
		"no room for anything": PutUDP(nil, &l, from4, to4, nil, FillAll),
	} {
		if n != 0 {
			t.Errorf("%s: a frame of %d bytes", name, n)
		}
	}
	if n := PutUDP(b, &l, from4, to4, make([]byte, 100-42), FillAll); n != 100 {
		t.Errorf("a frame that just fits has %d bytes, want 100", n)
	}
}

func TestPayloadMayLieInPlace(t *testing.T) {
	l := Link{Peer: clientMAC, Own: ownMAC}
	b := make([]byte, 200)
	for i := range b {
		b[i] = byte(i)
	}
	n := PutUDP(b, &l, netip.AddrPortFrom(own4, 1), netip.AddrPortFrom(client4, 2), b[42:142], FillAll)
	var d Datagram
	if reason := parse(b[:n], CheckIP|CheckUDP, &d); reason != OK || d.Payload != (Span{42, 100}) || b[42] != 42 || b[141] != 141 {
		t.Errorf("it is %v, payload at %v", reason, d.Payload)
	}
}
