package replay

import (
	"fmt"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// verdict says whether a frame is played, or why not.
type verdict int

const (
	played verdict = iota
	foreign
	fragment
	cut
	malformed
)

// decoder parses frames; its layers are reused from frame to frame.
type decoder struct {
	// parser begins with the capture's link layer. In a bare IP capture each
	// frame states its version: parser begins with IPv4 and parser6 with IPv6.
	parser, parser6 *gopacket.DecodingLayerParser

	found    []gopacket.LayerType
	ethernet layers.Ethernet
	vlan     layers.Dot1Q
	cooked   layers.LinuxSLL
	loopback layers.Loopback
	ip4      layers.IPv4
	ip6      layers.IPv6
	udp      layers.UDP
}

// Bare IP has several numbers (pcap-linktype(7): LINKTYPE_RAW, and DLT_RAW of
// the BSDs).
const (
	rawBSD     layers.LinkType = 12
	rawOpenBSD layers.LinkType = 14
)

// newDecoder supports the link types on which cameras and instruments are
// recorded.
func newDecoder(link layers.LinkType) (*decoder, error) {
	d := &decoder{}
	switch link {
	case layers.LinkTypeEthernet:
		d.parser = d.newParser(layers.LayerTypeEthernet)
	case layers.LinkTypeLinuxSLL:
		d.parser = d.newParser(layers.LayerTypeLinuxSLL)
	case layers.LinkTypeNull, layers.LinkTypeLoop:
		d.parser = d.newParser(layers.LayerTypeLoopback)
	case layers.LinkTypeIPv4:
		d.parser = d.newParser(layers.LayerTypeIPv4)
	case layers.LinkTypeIPv6:
		d.parser = d.newParser(layers.LayerTypeIPv6)
	case layers.LinkTypeRaw, rawBSD, rawOpenBSD:
		d.parser = d.newParser(layers.LayerTypeIPv4)
		d.parser6 = d.newParser(layers.LayerTypeIPv6)
	default:
		return nil, fmt.Errorf("link type %v: want Ethernet, Linux cooked, loopback or IP", link)
	}
	return d, nil
}

func (d *decoder) newParser(first gopacket.LayerType) *gopacket.DecodingLayerParser {
	p := gopacket.NewDecodingLayerParser(first,
		&d.ethernet, &d.vlan, &d.cooked, &d.loopback, &d.ip4, &d.ip6, &d.udp)
	p.IgnoreUnsupported = true
	return p
}

// decode finds the UDP payload of a frame. The payload is a part of frame, not
// a copy.
func (d *decoder) decode(frame []byte) (from netip.AddrPort, port uint16, payload []byte, _ verdict) {
	parser := d.parser
	if d.parser6 != nil && len(frame) > 0 && frame[0]>>4 == 6 {
		parser = d.parser6
	}
	if err := parser.DecodeLayers(frame, &d.found); err != nil {
		if parser.Truncated {
			return from, 0, nil, cut
		}
		return from, 0, nil, malformed
	}
	var addr netip.Addr
	for _, layer := range d.found {
		switch layer {
		case layers.LayerTypeIPv4:
			if d.ip4.Flags&layers.IPv4MoreFragments != 0 || d.ip4.FragOffset != 0 {
				return from, 0, nil, fragment
			}
			addr, _ = netip.AddrFromSlice(d.ip4.SrcIP)
		case layers.LayerTypeIPv6:
			if d.ip6.NextHeader == layers.IPProtocolIPv6Fragment {
				return from, 0, nil, fragment
			}
			addr, _ = netip.AddrFromSlice(d.ip6.SrcIP)
		case layers.LayerTypeUDP:
			if parser.Truncated {
				return from, 0, nil, cut
			}
			return netip.AddrPortFrom(addr, uint16(d.udp.SrcPort)), uint16(d.udp.DstPort), d.udp.Payload, played
		}
	}
	return from, 0, nil, foreign
}
