package frame

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// Frames that Linux 6.18 sent over a veth pair, from 02:00:00:00:00:01 with 10.0.0.1 and
// fd00::1 to 02:00:00:00:00:02. A packet socket captured them there.
const (
	linuxUDP4 = "02000000000202000000000108004500002426f240004011ffd40a0000010a0000029c4013890010854e70656e73746f636b"
	linuxUDP6 = "02000000000202000000000186dd600705c100101140fd000000000000000000000000000001fd000000000000000000000000000002" +
		"9c40138900109f4c70656e73746f636b"
	// With `ethtool -K tx on`, veth's default: the checksum stays unfilled.
	linuxUnfilled4 = "020000000002020000000001080045000024261c4000401100ab0a0000010a0000029c4013890010142470656e73746f636b"
	linuxUnfilled6 = "02000000000202000000000186dd600705c100101140fd000000000000000000000000000001fd000000000000000000000000000002" +
		"9c4013890010fa2570656e73746f636b"
	// IP_OPTIONS router alert; then SO_NO_CHECK; then IPV6_DSTOPTS.
	linuxOptions4 = "0200000000020200000000010800460000282b6c4000401166520a0000010a000002940400009c4113890010854d70656e73746f636b"
	linuxNoCheck4 = "0200000000020200000000010800460000282bb340004011660b0a0000010a000002940400009c4113890010000070656e73746f636b"
	linuxOptions6 = "02000000000202000000000186dd6006fdc300183c40fd000000000000000000000000000001fd000000000000000000000000000002" +
		"11000104000000009c41138900109f4b70656e73746f636b"
	// The last fragments of 1600 bytes, and the headers of the first.
	linuxFragment4 = "02000000000202000000000108004500002427ec00b94011" + "3e22" + "0a0000010a000002" + "70707070707070707070707070707070"
	linuxFragment6 = "02000000000202000000000186dd600705c100182c40fd000000000000000000000000000001fd000000000000000000000000000002" +
		"110005a85dbae7b070707070707070707070707070707070"
	linuxARP = "ffffffffffff020000000001080600010800060400010200000000010a0000010000000000000a000002"
	linuxNS  = "3333ff00000202000000000186dd6000000000203afffd000000000000000000000000000001ff0200000000000000000001ff000002" +
		"87007d9700000000fd0000000000000000000000000000020101020000000001"
	// A host that is about to take fd00::8 asks whether the address is in use (RFC 4862, with
	// the nonce of RFC 7527).
	linuxDAD = "3333ff00000802000000000186dd6000000000203aff00000000000000000000000000000000ff0200000000000000000001ff000008" +
		"8700b4bc00000000fd0000000000000000000000000000080e019eab8bda904b"
	linuxMLD = "33330000001602000000000186dd600000000024000100000000000000000000000000000000ff020000000000000000000000000016" +
		"3a000502000001008f006f890000000104000000ff0200000000000000000001ff000001"
	linuxEcho4 = "02000000000202000000000108004500002434e140004001f1f50a0000010a0000020800414a0001000170656e73746f636b"
	linuxEcho6 = "02000000000202000000000186dd600cea3500103a40fd000000000000000000000000000001fd000000000000000000000000000002" +
		"8000cefa0001000170656e73746f636b"
)

var (
	clientMAC = MAC{2, 0, 0, 0, 0, 1}
	ownMAC    = MAC{2, 0, 0, 0, 0, 2}
	client4   = netip.MustParseAddr("10.0.0.1")
	client6   = netip.MustParseAddr("fd00::1")
	own4      = netip.MustParseAddr("10.0.0.2")
	own6      = netip.MustParseAddr("fd00::2")
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	must.OK(t, err)
	return b
}

// parse parses a frame for any host.
func parse(b []byte, check Checks, d *Datagram) Reason {
	var p packet
	if reason := p.datagram(b, check, d); reason != OK {
		return reason
	}
	return p.verify(b, check)
}

// tagged inserts VLAN tags, type and control each, into a frame.
func tagged(frame string, tags string) string { return frame[:24] + tags + frame[24:] }

func TestFramesOfLinux(t *testing.T) {
	const all, lenient = CheckIP | CheckUDP, CheckIP | CheckUDP | AllowUnfilled
	for _, c := range []struct {
		name, frame string
		check       Checks
		want        Reason
	}{
		{"IPv4", linuxUDP4, all, OK},
		{"IPv6", linuxUDP6, all, OK},
		{"IPv4, unfilled", linuxUnfilled4, all, BadChecksum},
		{"IPv4, unfilled, allowed", linuxUnfilled4, lenient, OK},
		{"IPv4, unfilled, ignored", linuxUnfilled4, CheckIP, OK},
		{"IPv6, unfilled", linuxUnfilled6, all, BadChecksum},
		{"IPv6, unfilled, allowed", linuxUnfilled6, lenient, OK},
		{"IPv4 with options", linuxOptions4, all, OK},
		{"IPv4 without a checksum", linuxNoCheck4, all, OK},
		{"IPv6 with destination options", linuxOptions6, all, NotUDP},
		{"IPv4 fragment", linuxFragment4, 0, Fragment},
		{"IPv6 fragment", linuxFragment6, all, Fragment},
		{"ARP", linuxARP, all, ARP},
		{"neighbour solicitation", linuxNS, all, ICMP},
		{"listener report, behind an option", linuxMLD, all, NotUDP},
		{"echo", linuxEcho4, all, ICMP},
		{"echo, IPv6", linuxEcho6, all, ICMP},
		{"VLAN 7", tagged(linuxUDP4, "81000007"), all, OK},
		{"VLAN 7 in service 9", tagged(linuxUDP6, "88a8000981000007"), all, OK},
		{"priority without a VLAN", tagged(linuxUDP4, "8100e000"), all, OK},
		{"three tags", tagged(linuxUDP4, "88a80009810000078100000a"), all, NotIP},
		{"a tag and no more", linuxUDP4[:24] + "81000007", all, Truncated},
		{"LLDP", "0180c200000e02000000000188cc0207040200000000010403000000", all, NotIP},
		{"802.3", "0180c2000000020000000001002642420300000000008000020000000001000000008000", all, NotIP},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := unhex(t, c.frame)
			var d Datagram
			if got := parse(b, c.check, &d); got != c.want {
				t.Fatalf("it is %v, want %v", got, c.want)
			}
			if c.want != OK {
				return
			}
			from, to := client4, own4
			if strings.Contains(c.name, "IPv6") || strings.Contains(c.name, "service") {
				from, to = client6, own6
			}
			if d.From.Addr() != from || d.From.Port()&^1 != 40000 || d.To != netip.AddrPortFrom(to, 5001) {
				t.Errorf("from %v to %v, want %v to %v", d.From, d.To, from, to)
			}
			if got := string(b[d.Payload.Offset:][:d.Payload.Length]); got != "penstock" {
				t.Errorf("payload %q", got)
			}
			if d.Link.Peer != clientMAC || d.Link.Own != ownMAC {
				t.Errorf("link %v", d.Link)
			}
		})
	}
}

func TestVLANs(t *testing.T) {
	var inFrame, stripped, both Datagram
	parse(unhex(t, tagged(linuxUDP4, "81002007")), 0, &inFrame)
	parse(unhex(t, linuxUDP4), 0, &stripped)
	stripped.Link.Stripped(0x2007)
	parse(unhex(t, tagged(linuxUDP4, "81000007")), 0, &both)
	both.Link.Stripped(9)
	if inFrame.Link != stripped.Link || inFrame.Link.VLAN() != 7 {
		t.Errorf("the link is %v with the tag in the frame, %v with it stripped", inFrame.Link, stripped.Link)
	}
	if both.Link.VLAN() != 7 || both.Link.Tags[0].VLAN() != 9 {
		t.Errorf("VLAN 7 in 9 is %v", both.Link)
	}
	if both.Link.Stripped(11) {
		t.Error("a third tag is taken")
	}
	untagged := Datagram{}
	untagged.Link.Stripped(0)
	if untagged.Link.VLAN() != 0 || untagged.Link != (Link{}) {
		t.Errorf("no tag is %v", untagged.Link)
	}
}

// Frames of Linux with one error each.
func TestInconsistentFrames(t *testing.T) {
	put := func(frame string, at int, with ...byte) []byte {
		b := unhex(t, frame)
		copy(b[at:], with)
		return b
	}
	const ip4, ip6 = 14, 14
	const udp4, udp6 = ip4 + 20, ip6 + 40
	for name, c := range map[string]struct {
		frame []byte
		want  Reason
	}{
		"empty":                              {nil, Truncated},
		"no payload of Ethernet":             {unhex(t, linuxUDP4)[:14], Truncated},
		"version 5":                          {put(linuxUDP4, ip4, 0x55), BadHeader},
		"version 4 as IPv6":                  {put(linuxUDP6, ip6, 0x40), BadHeader},
		"IPv4 header of 16 bytes":            {put(linuxUDP4, ip4, 0x44), BadHeader},
		"IPv4 header longer than the packet": {put(linuxUDP4, ip4, 0x4f), BadHeader},
		"IPv4 longer than the frame":         {put(linuxUDP4, ip4+2, 1), Truncated},
		"IPv6 longer than the frame":         {put(linuxUDP6, ip6+4, 1), Truncated},
		"IPv4 without room for UDP":          {put(linuxUDP4, ip4+2, 0, 27), BadHeader},
		"IPv6 without room for UDP":          {put(linuxUDP6, ip6+4, 0, 7), BadHeader},
		"UDP longer than IP":                 {put(linuxUDP4, udp4+4, 0, 17), BadHeader},
		"UDP shorter than its header":        {put(linuxUDP4, udp4+4, 0, 7), BadHeader},
		"UDP of a jumbogram":                 {put(linuxUDP6, udp6+4, 0, 0), BadHeader},
		"TCP":                                {put(linuxUDP4, ip4+9, 6), NotUDP},
		"ICMPv6 in IPv4":                     {put(linuxUDP4, ip4+9, 58), NotUDP},
		"nothing in IPv6":                    {put(linuxUDP6, ip6+6, 59), NotUDP},
		"encrypted":                          {put(linuxUDP6, ip6+6, 50), NotUDP},
		"more fragments":                     {put(linuxUDP4, ip4+6, 0x20), Fragment},
		"the reserved flag":                  {put(linuxUDP4, ip4+6, 0x80), OK},
		"from everybody":                     {put(linuxUDP4, ip4+12, 255, 255, 255, 255), BadSource},
		"from a group":                       {put(linuxUDP4, ip4+12, 224, 0, 0, 1), BadSource},
		"from nobody":                        {put(linuxUDP4, ip4+12, 0, 0, 0, 0), BadSource},
		"from loopback":                      {put(linuxUDP4, ip4+12, 127), BadSource},
		"from port 0":                        {put(linuxUDP4, udp4, 0, 0), BadSource},
		"from an IPv6 group":                 {put(linuxUDP6, ip6+8, 0xff), BadSource},
		"from IPv6's nobody":                 {put(linuxUDP6, ip6+8, make([]byte, 16)...), BadSource},
		"from an IPv4 address in IPv6":       {put(linuxUDP6, ip6+8, append(make([]byte, 10), 0xff, 0xff, 10, 0, 0, 1)...), BadSource},
		"from a group of Ethernet's":         {put(linuxUDP4, 6, 3), BadSource},
		"IPv6 without a checksum":            {put(linuxUDP6, udp6+6, 0, 0), BadChecksum},
	} {
		var d Datagram
		check := Checks(0)
		if c.want == BadChecksum {
			check = CheckUDP
		}
		if got := parse(c.frame, check, &d); got != c.want {
			t.Errorf("%s is %v, want %v", name, got, c.want)
		}
	}
}

// Every truncation of a good frame is detected, and Ethernet's padding does no harm.
func TestCutFramesAreTruncated(t *testing.T) {
	for _, text := range []string{linuxUDP4, linuxUDP6, linuxOptions4, tagged(linuxUDP6, "88a8000981000007")} {
		b := unhex(t, text)
		var d Datagram
		for n := range b {
			if got := parse(b[:n:n], 0, &d); got != Truncated {
				t.Errorf("%d of %d bytes are %v, want truncated", n, len(b), got)
			}
		}
		if got := parse(append(b, make([]byte, 32)...), CheckIP|CheckUDP, &d); got != OK || d.Payload.Length != 8 {
			t.Errorf("with padding it is %v with %d bytes, want ok with 8", got, d.Payload.Length)
		}
	}
}

// A frame for another host is reported as such even if it is damaged, but only if its headers
// are valid.
func TestAHostParsesWhatIsForIt(t *testing.T) {
	host := Host{MAC: ownMAC, Addresses: []netip.Addr{own4}}
	other := Host{MAC: ownMAC, Addresses: []netip.Addr{client4}}
	for name, c := range map[string]struct {
		host     *Host
		frame    string
		stripped uint16
		want     Reason
	}{
		"good":                           {&host, linuxUDP4, 0, OK},
		"damaged":                        {&host, linuxUnfilled4, 0, BadChecksum},
		"somebody else's, damaged":       {&other, linuxUnfilled4, 0, ForeignAddress},
		"IPv6, where there is only IPv4": {&host, linuxUDP6, 0, ForeignAddress},
		"ARP":                            {&other, linuxARP, 0, ARP},
		"a stripped tag":                 {&host, linuxUDP4, 7, OK},
		"a third tag":                    {&host, tagged(linuxUDP4, "88a8000981000007"), 7, NotIP},
	} {
		var d Datagram
		if got := c.host.Parse(unhex(t, c.frame), c.stripped, CheckIP|CheckUDP, &d); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		} else if got == OK && d.Link.VLAN() != c.stripped {
			t.Errorf("%s: VLAN %d, want %d", name, d.Link.VLAN(), c.stripped)
		}
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range Reasons {
		if name := r.String(); name == "" || seen[name] || name == Reasons.String() {
			t.Errorf("reason %d is called %q", r, name)
		} else {
			seen[name] = true
		}
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
