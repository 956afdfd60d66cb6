package frame

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

func newResponder() (*Responder, *Neighbours) {
	table := NewNeighbours(64)
	return NewResponder(Host{MAC: ownMAC, Addresses: []netip.Addr{own4, own6}}, table), table
}

const pad18 = "000000000000000000000000000000000000"

// Requests from Linux, and the frames that answer them.
func TestAnswersToLinux(t *testing.T) {
	r, table := newResponder()
	for name, c := range map[string]struct {
		ask      string
		stripped uint16
		answer   string
	}{
		"ARP": {linuxARP, 0, "020000000001020000000002" + "0806" +
			"0001080006040002" + "0200000000020a000002" + "0200000000010a000001" + pad18},
		"ARP in a VLAN": {tagged(linuxARP, "81000007"), 0, "020000000001020000000002" + "81000007" + "0806" +
			"0001080006040002" + "0200000000020a000002" + "0200000000010a000001" + pad18[:28]},
		"ARP in a VLAN that was stripped": {linuxARP, 7, "020000000001020000000002" + "81000007" + "0806" +
			"0001080006040002" + "0200000000020a000002" + "0200000000010a000001" + pad18[:28]},
		"neighbour solicitation": {linuxNS, 0, "020000000001020000000002" + "86dd" +
			"6000000000203aff" + "fd000000000000000000000000000002" + "fd000000000000000000000000000001" +
			"88001c9a60000000" + "fd000000000000000000000000000002" + "0201020000000002"},
		"echo": {linuxEcho4, 0, "020000000001020000000002" + "0800" +
			"4500002400004000400126d7" + "0a0000020a000001" + "0000494a0001000170656e73746f636b" + "00000000000000000000"},
		"echo of IPv6": {linuxEcho6, 0, "020000000001020000000002" + "86dd" +
			"6000000000103a40" + "fd000000000000000000000000000002" + "fd000000000000000000000000000001" +
			"8100cdfa0001000170656e73746f636b"},
		"somebody looks for another address": {linuxDAD, 0, ""},
		"listener report":                    {linuxMLD, 0, ""},
		"UDP":                                {linuxUDP4, 0, ""},
		"fragment":                           {linuxFragment6, 0, ""},
	} {
		if got := hex.EncodeToString(r.Answer(1, unhex(t, c.ask), c.stripped)); got != c.answer {
			t.Errorf("%s is answered\n%s, want\n%s", name, got, c.answer)
		}
	}
	if got, want := r.Stats(), (ResponderStats{ARP: 3, Neighbour: 1, Echo: 2}); got != want {
		t.Errorf("counters are %+v, want %+v", got, want)
	}
	for _, addr := range []netip.Addr{client4, client6} {
		if l, _, ok := table.Find(addr); !ok || l.Peer != clientMAC || l.Own != ownMAC {
			t.Errorf("who asked from %v is known as %v, %v", addr, l, ok)
		}
	}
}

// patch changes a frame and corrects its ICMPv6 checksum.
func patch(t *testing.T, frame string, at int, with ...byte) []byte {
	t.Helper()
	b := unhex(t, frame)
	copy(b[at:], with)
	if b[12] == 0x86 && b[20] == protoICMP6 {
		m := b[54:]
		m[2], m[3] = 0, 0
		check := ^fold(sum(m, pseudo(b[22:54], protoICMP6, len(m))))
		m[2], m[3] = byte(check>>8), byte(check)
	}
	return b
}

func TestWhatIsNotAnswered(t *testing.T) {
	const arp, ip, icmp6 = 14, 14, 54
	for name, ask := range map[string][]byte{
		"ARP for another address":                           patch(t, linuxARP, arp+27, 3),
		"ARP of another hardware":                           patch(t, linuxARP, arp+1, 6),
		"an ARP reply":                                      patch(t, linuxARP, arp+7, 2),
		"ARP from a group":                                  patch(t, linuxARP, arp+8, 3),
		"ARP from nobody's Ethernet address":                patch(t, linuxARP, arp+8, make([]byte, 6)...),
		"ARP from everybody":                                patch(t, linuxARP, arp+14, 255),
		"ARP cut short":                                     unhex(t, linuxARP)[:arp+27],
		"ARP that says it has our address":                  patch(t, linuxARP, arp+14, 10, 0, 0, 2),
		"solicitation of another address":                   patch(t, linuxNS, icmp6+23, 3),
		"solicitation through a router":                     patch(t, linuxNS, ip+7, 254),
		"solicitation with a code":                          patch(t, linuxNS, icmp6+1, 1),
		"solicitation with an empty option":                 patch(t, linuxNS, icmp6+25, 0),
		"solicitation with an option beyond":                patch(t, linuxNS, icmp6+25, 2),
		"solicitation from a group's Ethernet":              patch(t, linuxNS, icmp6+26, 3),
		"solicitation to another group":                     patch(t, linuxNS, ip+39, 9),
		"solicitation that says it has ours":                patch(t, linuxNS, ip+23, 2),
		"solicitation from a group":                         patch(t, linuxNS, ip+8, 0xff),
		"echo to another address":                           patch(t, linuxEcho4, ip+19, 3, 8, 0, 0x41, 0x4a),
		"echo of IPv6 to another address":                   patch(t, linuxEcho6, ip+39, 3),
		"echo of IPv6 from a group":                         patch(t, linuxEcho6, ip+8, 0xff),
		"echo of IPv6 from our address":                     patch(t, linuxEcho6, ip+23, 2),
		"echo of IPv6 to a group of Ethernet's":             patch(t, linuxEcho6, 0, 0x33, 0x33),
		"an echo reply of IPv6":                             patch(t, linuxEcho6, icmp6, layers.ICMPv6TypeEchoReply),
		"a frame from a group":                              patch(t, linuxEcho4, 6, 3),
		"echo with a bad checksum":                          patch(t, linuxEcho4, ip+30, 1),
		"echo with a bad header checksum":                   patch(t, linuxEcho4, ip+8, 1),
		"an empty frame":                                    {},
		"who looks whether our address is free, by unicast": patch(t, linuxNS, ip+8, make([]byte, 16)...),
	} {
		r, table := newResponder()
		if answer := r.Answer(1, ask, 0); answer != nil {
			t.Errorf("%s is answered %x", name, answer)
		}
		for _, addr := range []netip.Addr{own4, own6} {
			if l, _, ok := table.Find(addr); ok {
				t.Errorf("%s teaches that our %v is at %v", name, addr, l)
			}
		}
	}
}

func TestAddressConflicts(t *testing.T) {
	r, _ := newResponder()
	r.Answer(1, patch(t, linuxARP, 14+14, 10, 0, 0, 2), 0)
	r.Answer(1, patch(t, linuxNS, 14+23, 2), 0)
	if got := r.Stats().Conflicts; got != 2 {
		t.Errorf("%d conflicts, want 2", got)
	}
}

// A host that checks whether our address is free gets an answer; in IPv6 the answer goes to
// all nodes (RFC 4862, 5227).
func TestAddressProbes(t *testing.T) {
	r, table := newResponder()
	probe := patch(t, linuxARP, 14+14, 0, 0, 0, 0)
	if out := r.Answer(1, probe, 0); len(out) != leastFrame || MAC(out[:6]) != clientMAC {
		t.Errorf("the ARP probe is answered %x", out)
	}
	dad := unhex(t, linuxDAD)
	dad[5], dad[53] = 2, 2
	out := r.Answer(1, patch(t, hex.EncodeToString(dad), 77, 2), 0)
	if len(out) != 14+40+32 || MAC(out[:6]) != allNodesMAC || netip.AddrFrom16([16]byte(out[38:54])) != allNodes || out[58] != flagOverride {
		t.Errorf("the solicitation is answered %x", out)
	}
	if _, _, ok := table.Find(netip.IPv6Unspecified()); ok {
		t.Error("the unspecified address has been learned")
	}
}

func TestAClientThatMovesIsFollowed(t *testing.T) {
	r, table := newResponder()
	moved := MAC{2, 0, 0, 0, 0, 9}
	reply := patch(t, linuxARP, 14+7, 2)
	copy(reply[14+8:], moved[:])
	r.Answer(1, reply, 0)
	if _, _, ok := table.Find(client4); ok {
		t.Error("an ARP reply that nobody asked for is believed")
	}
	table.Learn(client4, &Link{Peer: clientMAC, Own: ownMAC}, own4, 1)
	r.Answer(2, reply, 0)
	if l, _, _ := table.Find(client4); l.Peer != moved {
		t.Errorf("a client that moved is at %v", l.Peer)
	}

	// An unsolicited advertisement of fd00::1, with the override flag.
	table.Learn(client6, &Link{Peer: clientMAC, Own: ownMAC}, own4, 1)
	na := patch(t, linuxNS, 54, append([]byte{layers.ICMPv6TypeNeighborAdvertisement, 0, 0, 0, flagOverride, 0, 0, 0,
		0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, byte(layers.ICMPv6OptTargetAddress), 1}, moved[:]...)...)
	if r.Answer(3, na, 0) != nil {
		t.Error("an advertisement is answered")
	}
	if l, _, _ := table.Find(client6); l.Peer != moved {
		t.Errorf("a client that moved is at %v", l.Peer)
	}
}

// The responder itself treats another host's announcement as a conflict.
func TestAddressesAreAnnounced(t *testing.T) {
	r, _ := newResponder()
	other := NewResponder(Host{MAC: clientMAC, Addresses: []netip.Addr{own4, own6}}, NewNeighbours(8))
	frames := r.Announcements()
	for i, b := range frames {
		if len(b) < leastFrame || !(*MAC)(b[:6]).group() || MAC(b[6:12]) != ownMAC {
			t.Errorf("announcement %d is %x", i, b)
		}
		other.Answer(1, b, 0)
	}
	if got := other.Stats().Conflicts; got != 2 {
		t.Errorf("%d of 2 announcements were understood", got)
	}
}
