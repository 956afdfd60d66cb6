package replay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/ingesttest"
	"github.com/penstock/penstock/shm"
)

const port = 9000

var (
	from4 = netip.MustParseAddrPort("192.0.2.5:4000")
	from6 = netip.MustParseAddrPort("[2001:db8::5]:4000")
	began = time.Unix(1700000000, 123456000)
)

// layer is one layer of a frame.
type layer = gopacket.SerializableLayer

func serialize(t testing.TB, stack ...layer) []byte {
	t.Helper()
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, stack...); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(buffer.Bytes())
}

func ethernet(kind layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: kind}
}

// udp4 and udp6 return the layers from IP on.
func udp4(to uint16, payload []byte) []layer {
	ip := &layers.IPv4{Version: 4, TTL: 9, Protocol: layers.IPProtocolUDP, SrcIP: from4.Addr().AsSlice(), DstIP: net.IP{192, 0, 2, 9}}
	udp := &layers.UDP{SrcPort: layers.UDPPort(from4.Port()), DstPort: layers.UDPPort(to)}
	udp.SetNetworkLayerForChecksum(ip)
	return []layer{ip, udp, gopacket.Payload(payload)}
}

func udp6(to uint16, payload []byte) []layer {
	ip := &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: layers.IPProtocolUDP, SrcIP: from6.Addr().AsSlice(), DstIP: net.ParseIP("2001:db8::9")}
	udp := &layers.UDP{SrcPort: layers.UDPPort(from6.Port()), DstPort: layers.UDPPort(to)}
	udp.SetNetworkLayerForChecksum(ip)
	return []layer{ip, udp, gopacket.Payload(payload)}
}

func frame4(t testing.TB, to uint16, payload []byte) []byte {
	return serialize(t, append([]layer{ethernet(layers.EthernetTypeIPv4)}, udp4(to, payload)...)...)
}

// recorded is a frame of a capture; length is its length on the wire if more
// than was recorded.
type recorded struct {
	after  time.Duration
	data   []byte
	length int
}

// capture writes a file of frames.
func capture(t testing.TB, ng bool, link layers.LinkType, frames ...recorded) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capture.pcap")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var write func(gopacket.CaptureInfo, []byte) error
	if ng {
		w, err := pcapgo.NewNgWriter(file, link)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Flush()
		write = w.WritePacket
	} else {
		w := pcapgo.NewWriter(file)
		if err := w.WriteFileHeader(1<<16, link); err != nil {
			t.Fatal(err)
		}
		write = w.WritePacket
	}
	for _, f := range frames {
		info := gopacket.CaptureInfo{Timestamp: began.Add(f.after), CaptureLength: len(f.data), Length: max(f.length, len(f.data))}
		if err := write(info, f.data); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func open(t testing.TB, o Options) *Source {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), s.CloseSlab()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSourcePassesTheSuite(t *testing.T) {
	for name, ng := range map[string]bool{"pcap": false, "pcapng": true} {
		t.Run(name, func(t *testing.T) {
			twin := func(t *testing.T, o Options, frames []recorded) ingesttest.Twin {
				o.Path = capture(t, ng, layers.LinkTypeEthernet, frames...)
				var sent [][]byte
				o.Reply = func(packets []ingest.Packet) {
					for _, p := range packets {
						sent = append(sent, bytes.Clone(p.Data))
					}
				}
				s, err := Open(o)
				if err != nil {
					t.Fatal(err)
				}
				return ingesttest.CloseAtEnd(t, ingesttest.Twin{
					Source: s, CloseSlab: s.CloseSlab, From: from4,
					Sent: func(t *testing.T, n int) [][]byte {
						got := sent
						sent = nil
						if len(got) != n {
							t.Errorf("%d packets were sent, want %d", len(got), n)
						}
						return got
					},
				})
			}
			ingesttest.Run(t, ingesttest.Kind{
				Open: func(t *testing.T, slabBytes int, payloads [][]byte) ingesttest.Twin {
					var frames []recorded
					for _, p := range payloads {
						frames = append(frames, recorded{data: frame4(t, port, p)})
					}
					return twin(t, Options{SlabBytes: slabBytes}, frames)
				},
				OpenQuiet: func(t *testing.T) ingesttest.Twin {
					// The first frame, to another port, begins the replay; the
					// next frame follows an hour later.
					return twin(t, Options{SlabBytes: 1 << 20, Speed: 1, Port: port}, []recorded{
						{data: frame4(t, port+1, []byte("begins"))},
						{data: frame4(t, port, []byte("late")), after: time.Hour},
					})
				},
			})
		})
	}
}

// playAll receives until the end.
func playAll(t *testing.T, s *Source) (payloads []string, froms []netip.AddrPort) {
	t.Helper()
	batch := make([]ingest.Datagram, 3)
	for {
		n, err := s.Receive(batch, shm.Now()+int64(ingesttest.Patience))
		for _, d := range batch[:n] {
			payloads = append(payloads, string(ingesttest.Payload(s, d)))
			froms = append(froms, d.From)
			ingesttest.Release(s, d)
		}
		if errors.Is(err, io.EOF) {
			if _, again := s.Receive(batch, 0); !errors.Is(again, io.EOF) {
				t.Errorf("after the end: %v, want io.EOF", again)
			}
			return payloads, froms
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestLinksAndIPVersions(t *testing.T) {
	payload := []byte("a datagram")
	bare4, bare6 := serialize(t, udp4(port, payload)...), serialize(t, udp6(port, payload)...)
	with := func(header []byte, rest []byte) []byte { return append(bytes.Clone(header), rest...) }
	cooked := []byte{0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0}
	for _, test := range []struct {
		name  string
		link  layers.LinkType
		frame []byte
		from  netip.AddrPort
	}{
		{"Ethernet IPv4", layers.LinkTypeEthernet, frame4(t, port, payload), from4},
		{"Ethernet IPv6", layers.LinkTypeEthernet, serialize(t, append([]layer{ethernet(layers.EthernetTypeIPv6)}, udp6(port, payload)...)...), from6},
		{"VLAN", layers.LinkTypeEthernet, serialize(t, append([]layer{
			ethernet(layers.EthernetTypeDot1Q), &layers.Dot1Q{VLANIdentifier: 7, Type: layers.EthernetTypeIPv4}}, udp4(port, payload)...)...), from4},
		{"two VLAN tags", layers.LinkTypeEthernet, serialize(t, append([]layer{
			ethernet(layers.EthernetTypeDot1Q), &layers.Dot1Q{VLANIdentifier: 7, Type: layers.EthernetTypeDot1Q},
			&layers.Dot1Q{VLANIdentifier: 8, Type: layers.EthernetTypeIPv4}}, udp4(port, payload)...)...), from4},
		{"Linux cooked", layers.LinkTypeLinuxSLL, with(cooked, bare4), from4},
		{"loopback", layers.LinkTypeNull, with([]byte{2, 0, 0, 0}, bare4), from4},
		{"bare IPv4", layers.LinkTypeRaw, bare4, from4},
		{"bare IPv6", layers.LinkTypeRaw, bare6, from6},
		{"IPv4 link", layers.LinkTypeIPv4, bare4, from4},
		{"IPv6 link", layers.LinkTypeIPv6, bare6, from6},
		{"Ethernet padding", layers.LinkTypeEthernet, with(frame4(t, port, payload), make([]byte, 8)), from4},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, Options{Path: capture(t, false, test.link, recorded{data: test.frame}), Port: port})
			payloads, froms := playAll(t, s)
			if len(payloads) != 1 || payloads[0] != string(payload) || froms[0] != test.from {
				t.Errorf("played %q from %v, skipped %+v", payloads, froms, s.Skipped())
			}
		})
	}
}

func TestSkippedFrames(t *testing.T) {
	good := frame4(t, port, []byte("good"))
	fragment := udp4(port, []byte("half"))
	fragment[0].(*layers.IPv4).Flags = layers.IPv4MoreFragments
	late := &layers.IPv4{Version: 4, TTL: 9, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{192, 0, 2, 5}, DstIP: net.IP{192, 0, 2, 9}, FragOffset: 100}
	fragment6 := &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: layers.IPProtocolIPv6Fragment, SrcIP: net.ParseIP("2001:db8::5"), DstIP: net.ParseIP("2001:db8::9")}
	tcp := &layers.IPv4{Version: 4, TTL: 9, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{192, 0, 2, 5}, DstIP: net.IP{192, 0, 2, 9}}
	badLength := frame4(t, port, []byte("xxxx"))
	badLength[14+20+4], badLength[14+20+5] = 0, 5 // a UDP length below its header's
	s := open(t, Options{Port: port, Path: capture(t, false, layers.LinkTypeEthernet,
		recorded{data: good},
		recorded{data: frame4(t, port+1, []byte("another port"))},
		recorded{data: serialize(t, ethernet(layers.EthernetTypeARP), gopacket.Payload(make([]byte, 28)))},
		recorded{data: serialize(t, ethernet(layers.EthernetTypeIPv4), tcp, gopacket.Payload(make([]byte, 20)))},
		recorded{data: serialize(t, append([]layer{ethernet(layers.EthernetTypeIPv4)}, fragment...)...)},
		recorded{data: serialize(t, ethernet(layers.EthernetTypeIPv4), late, gopacket.Payload("half"))},
		recorded{data: serialize(t, ethernet(layers.EthernetTypeIPv6), fragment6, gopacket.Payload(make([]byte, 16)))},
		recorded{data: good[:14+20+8+2], length: len(good)},
		recorded{data: good[:14+20+3], length: len(good)},
		recorded{data: good[:5], length: len(good)},
		recorded{data: badLength},
		recorded{data: []byte{}},
		recorded{data: good},
	)})
	payloads, _ := playAll(t, s)
	if len(payloads) != 2 || payloads[0] != "good" || payloads[1] != "good" {
		t.Errorf("played %q", payloads)
	}
	got := s.Skipped()
	if got.Foreign != 3 || got.Fragments != 3 || got.Cut+got.Malformed != 5 || got.Cut < 2 || got.Malformed < 1 {
		t.Errorf("skipped %+v", got)
	}
	if stats := s.Stats(); stats.Datagrams != 2 || stats.Bytes != 8 || stats.Truncated != got.Cut {
		t.Errorf("counted %+v", stats)
	}
}

func TestSpeedKeepsTheRecordedTimes(t *testing.T) {
	path := capture(t, true, layers.LinkTypeEthernet,
		recorded{data: frame4(t, port, []byte("0"))},
		recorded{data: frame4(t, port, []byte("1")), after: 40 * time.Millisecond},
		recorded{data: frame4(t, port, []byte("2")), after: 80 * time.Millisecond},
	)
	for _, test := range []struct {
		speed    float64
		earliest time.Duration // of the last datagram, from when the replay was opened
	}{{0, 0}, {1, 80 * time.Millisecond}, {4, 20 * time.Millisecond}} {
		start := shm.Now()
		s := open(t, Options{Path: path, Speed: test.speed})
		all := ingesttest.Receive(t, s, 3, 4)
		if took := time.Duration(shm.Now() - start); took < test.earliest {
			t.Errorf("speed %v: the last datagram came after %v, want at least %v", test.speed, took, test.earliest)
		}
		for _, d := range all {
			ingesttest.Release(s, d)
		}
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	write := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct {
		o    Options
		want []string
	}{
		"missing":     {Options{Path: "/nonexistent/x.pcap"}, []string{"/nonexistent/x.pcap"}},
		"empty":       {Options{Path: write("empty.pcap", "")}, []string{"empty.pcap", "want pcap or pcapng", "header"}},
		"a text":      {Options{Path: write("text.pcap", strings.Repeat("hello ", 20))}, []string{"text.pcap", "want pcap or pcapng", "header"}},
		"cut pcapng":  {Options{Path: write("cut.pcapng", "\n\r\r\n\x1c\x00")}, []string{"cut.pcapng", "header"}},
		"odd link":    {Options{Path: capture(t, false, layers.LinkTypeIEEE802_11)}, []string{"link type", "want Ethernet"}},
		"backwards":   {Options{Path: "x", Speed: -1}, []string{"speed", "negative"}},
		"a tiny slab": {Options{Path: capture(t, false, layers.LinkTypeEthernet), SlabBytes: 10}, []string{"slab", "at least"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(test.o)
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

func TestBrokenCapture(t *testing.T) {
	path := capture(t, false, layers.LinkTypeEthernet,
		recorded{data: frame4(t, port, []byte("one"))}, recorded{data: frame4(t, port, []byte("two"))})
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole[:len(whole)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{Path: path})
	d := ingesttest.Receive(t, s, 1, 4)[0]
	ingesttest.Release(s, d)
	if _, err := s.Receive(make([]ingest.Datagram, 4), 0); err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "frame 2") {
		t.Errorf("%v, want an error at frame 2", err)
	}
}

// Captures come from other machines: none may make the replay panic or hang.
func FuzzReplay(f *testing.F) {
	for _, ng := range []bool{false, true} {
		file, err := os.ReadFile(capture(f, ng, layers.LinkTypeEthernet,
			recorded{data: frame4(f, port, []byte("seed"))}, recorded{data: frame4(f, port, nil)}))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(file)
	}
	path := filepath.Join(f.TempDir(), "fuzzed")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Options{Path: path, SlabBytes: 512 << 10})
		if err != nil {
			return
		}
		defer s.CloseSlab()
		defer s.Close()
		batch := make([]ingest.Datagram, 8)
		for {
			n, err := s.Receive(batch, shm.Now()+int64(ingesttest.Patience))
			for _, d := range batch[:n] {
				ingesttest.Release(s, d)
			}
			if err != nil {
				return
			}
		}
	})
}
