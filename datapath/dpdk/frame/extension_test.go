package frame

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// IPv6 extension headers before a datagram: which are accepted, and the reasons for the
// others.
func TestIPv6ExtensionHeaders(t *testing.T) {
	link := Link{Peer: MAC{2, 0, 0, 0, 0, 1}, Own: MAC{2, 0, 0, 0, 0, 2}}
	from, to := netip.MustParseAddrPort("[fd00::2]:5000"), netip.MustParseAddrPort("[fd00::1]:9000")
	room := make([]byte, 200)
	whole := room[:PutUDP(room, &link, from, to, []byte("sixteen letters."), FillAll)]
	udp := whole[etherBytes+ip6Bytes:]
	const end = protoUDP
	for name, test := range map[string]struct {
		first uint8
		rest  []byte // the extension headers
		want  Reason
	}{
		"none":                                {end, nil, OK},
		"options of every hop":                {protoHopByHop, []byte{end, 0, 1, 4, 0, 0, 0, 0}, OK},
		"options for the destination, longer": {protoOptions, append([]byte{end, 1, 1, 12}, make([]byte, 12)...), OK},
		"two":                                 {protoHopByHop, []byte{protoOptions, 0, 1, 4, 0, 0, 0, 0, end, 0, 1, 4, 0, 0, 0, 0}, OK},
		"a route that has been gone":          {protoRouting, []byte{end, 0, 0, 0, 0, 0, 0, 0}, OK},
		"a route that is left to go":          {protoRouting, []byte{end, 0, 0, 1, 0, 0, 0, 0}, ForeignAddress},
		"authentication":                      {protoAH, append([]byte{end, 4, 0, 0}, make([]byte, 20)...), OK},
		"a fragment that is the whole":        {protoFragment, []byte{end, 0, 0, 0, 1, 2, 3, 4}, OK},
		"the first fragment":                  {protoFragment, []byte{end, 0, 0, 1, 1, 2, 3, 4}, Fragment},
		"a later fragment":                    {protoFragment, []byte{end, 0, 0, 8, 1, 2, 3, 4}, Fragment},
		"nothing follows":                     {59, nil, NotUDP},
		"TCP behind options":                  {protoHopByHop, []byte{6, 0, 1, 4, 0, 0, 0, 0}, NotUDP},
		"longer than the packet":              {protoHopByHop, []byte{end, 200, 1, 4, 0, 0, 0, 0}, BadHeader},
		"authentication longer than it":       {protoAH, []byte{end, 200, 0, 0, 0, 0, 0, 0}, BadHeader},
		"more than there are kinds": {protoOptions, func() (b []byte) {
			for range maxExtensions {
				b = append(b, protoOptions, 0, 1, 4, 0, 0, 0, 0)
			}
			return append(b, end, 0, 1, 4, 0, 0, 0, 0)
		}(), BadHeader},
	} {
		t.Run(name, func(t *testing.T) {
			b := append(append(append([]byte{}, whole[:etherBytes+ip6Bytes]...), test.rest...), udp...)
			b[etherBytes+6] = test.first
			binary.BigEndian.PutUint16(b[etherBytes+4:], uint16(len(test.rest)+len(udp)))
			var d Datagram
			if got := Parse(b, CheckIP|CheckUDP, &d); got != test.want {
				t.Fatalf("%v, want %v", got, test.want)
			}
			if test.want == OK && string(b[d.Payload.Offset:][:d.Payload.Length]) != "sixteen letters." {
				t.Errorf("the payload is %q", b[d.Payload.Offset:][:d.Payload.Length])
			}
			if test.want == OK {
				b = b[:len(b)-1]
				if got := Parse(b, 0, &d); got != Truncated {
					t.Errorf("a byte shorter it is %v, want %v", got, Truncated)
				}
			}
		})
	}
	// Packets that end inside an extension header.
	for _, kind := range []uint8{protoHopByHop, protoRouting, protoOptions, protoAH, protoFragment} {
		b := append(append([]byte{}, whole[:etherBytes+ip6Bytes]...), end, 0, 0, 0)
		b[etherBytes+6] = kind
		binary.BigEndian.PutUint16(b[etherBytes+4:], 4)
		var d Datagram
		if got := Parse(b, 0, &d); got != BadHeader {
			t.Errorf("header %d that ends after 4 bytes: %v, want %v", kind, got, BadHeader)
		}
	}
	// IPv6 requires a UDP checksum.
	none := append([]byte{}, whole...)
	none[etherBytes+ip6Bytes+6], none[etherBytes+ip6Bytes+7] = 0, 0
	var d Datagram
	if got := Parse(none, CheckUDP, &d); got != BadChecksum {
		t.Errorf("without a checksum: %v, want %v", got, BadChecksum)
	}
}

// Datagrams for us, for others by Ethernet or by IP address, and from senders that cannot be
// answered.
func TestWhoseADatagramIs(t *testing.T) {
	own4, own6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	host := Host{MAC: MAC{2, 0, 0, 0, 0, 1}, Addresses: []netip.Addr{own4, own6}}
	for name, test := range map[string]struct {
		mac      MAC
		from, to string
		want     Reason
	}{
		"ours":                        {host.MAC, "10.0.0.2:5000", "10.0.0.1:9000", OK},
		"ours, IPv6":                  {host.MAC, "[fd00::2]:5000", "[fd00::1]:9000", OK},
		"another Ethernet address":    {MAC{2, 0, 0, 0, 0, 9}, "10.0.0.2:5000", "10.0.0.1:9000", ForeignAddress},
		"to everybody by Ethernet":    {MAC{255, 255, 255, 255, 255, 255}, "10.0.0.2:5000", "10.0.0.1:9000", ForeignAddress},
		"to everybody":                {MAC{255, 255, 255, 255, 255, 255}, "10.0.0.2:5000", "255.255.255.255:9000", ForeignAddress},
		"to a group":                  {MAC{1, 0, 94, 1, 2, 3}, "10.0.0.2:5000", "224.1.2.3:9000", ForeignAddress},
		"to another, by our address":  {host.MAC, "10.0.0.2:5000", "10.0.0.3:9000", ForeignAddress},
		"to another, IPv6":            {host.MAC, "[fd00::2]:5000", "[fd00::3]:9000", ForeignAddress},
		"from us":                     {host.MAC, "10.0.0.1:5000", "10.0.0.1:9000", BadSource},
		"from a group":                {host.MAC, "224.0.0.1:5000", "10.0.0.1:9000", BadSource},
		"from everybody":              {host.MAC, "255.255.255.255:5000", "10.0.0.1:9000", BadSource},
		"from nobody":                 {host.MAC, "0.0.0.0:5000", "10.0.0.1:9000", BadSource},
		"from a loop":                 {host.MAC, "127.0.0.1:5000", "10.0.0.1:9000", BadSource},
		"from a loop, IPv6":           {host.MAC, "[::1]:5000", "[fd00::1]:9000", BadSource},
		"from port 0":                 {host.MAC, "10.0.0.2:0", "10.0.0.1:9000", BadSource},
		"from a group by its address": {host.MAC, "[ff02::5]:5000", "[fd00::1]:9000", BadSource},
	} {
		t.Run(name, func(t *testing.T) {
			link := Link{Peer: test.mac, Own: MAC{2, 0, 0, 0, 0, 2}}
			b := make([]byte, 200)
			b = b[:PutUDP(b, &link, netip.MustParseAddrPort(test.from), netip.MustParseAddrPort(test.to), []byte("x"), FillAll)]
			var d Datagram
			if got := host.Parse(b, 0, CheckIP|CheckUDP, &d); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}
