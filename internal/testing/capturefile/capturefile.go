// Package capturefile writes captures of UDP datagrams.
package capturefile

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/penstock/penstock/internal/testing/must"
)

// Datagram is one frame of a capture.
type Datagram struct {
	At       time.Duration // from the capture's begin
	From, To netip.AddrPort
	Payload  []byte
	Cut      int // so many bytes of the frame's end were not recorded
}

// Write writes a pcap file of IPv4 over Ethernet.
func Write(t *testing.T, to io.Writer, datagrams []Datagram) {
	t.Helper()
	w := pcapgo.NewWriter(to)
	must.OK(t, w.WriteFileHeader(1<<16, layers.LinkTypeEthernet))
	for _, d := range datagrams {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: d.From.Addr().AsSlice(), DstIP: d.To.Addr().AsSlice()}
		udp := &layers.UDP{SrcPort: layers.UDPPort(d.From.Port()), DstPort: layers.UDPPort(d.To.Port())}
		must.OK(t, udp.SetNetworkLayerForChecksum(ip))
		frame := gopacket.NewSerializeBuffer()
		ethernet := &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}
		must.OK(t, gopacket.SerializeLayers(frame, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ethernet, ip, udp, gopacket.Payload(d.Payload)))
		b := frame.Bytes()
		recorded := b[:len(b)-d.Cut]
		info := gopacket.CaptureInfo{Timestamp: time.Unix(1_700_000_000, 0).Add(d.At), CaptureLength: len(recorded), Length: len(b)}
		must.OK(t, w.WritePacket(info, recorded))
	}
}
