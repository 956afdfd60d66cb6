package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/penstock/penstock/wire"
)

// captured writes a capture of n requests to a port, with two fragments each, two
// milliseconds apart. The last fragment of one more request is missing.
func captured(t *testing.T, port, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capture.pcap")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := pcapgo.NewWriter(file)
	if err := w.WriteFileHeader(1<<16, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0)
	for i := range n + 1 {
		at = at.Add(2 * time.Millisecond)
		for fragment := range 2 {
			if i == n && fragment == 1 {
				break
			}
			h := wire.FragmentHeader(wire.TypeData, uint32(i+1), small, small/2, fragment)
			datagram := make([]byte, wire.DatagramSize(&h))
			h.Put(datagram)
			copy(datagram[wire.PayloadOffset(&h):], picture(small, i)[h.Offset:][:h.Length])
			ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IPv4(10, 0, 0, 9), DstIP: net.IPv4(10, 0, 0, 1)}
			udp := &layers.UDP{SrcPort: 40000, DstPort: layers.UDPPort(port)}
			if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
				t.Fatal(err)
			}
			frame := gopacket.NewSerializeBuffer()
			if err := gopacket.SerializeLayers(frame, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
				&layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}, ip, udp, gopacket.Payload(datagram)); err != nil {
				t.Fatal(err)
			}
			b := frame.Bytes()
			if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(b), Length: len(b)}, b); err != nil {
				t.Fatal(err)
			}
		}
	}
	return path
}

func TestReplay(t *testing.T) {
	t.Parallel()
	const n, port = 200, 5001
	card := nullCard(t, "digest", small)
	nd := start(t, fmt.Sprintf(`
aggregate: {slots: 256, deadline: 1s} # room for all, should this machine stand still
functions:
  - {name: fn, model: %s, port: %d, slo: 20s, replay: {file: %s}}
  - {name: network, model: %s, port: 0}
`, card, port, captured(t, port, n), card))
	waitFor(t, "the capture to be played", func() bool {
		f, err := nd.Function("fn")
		return err == nil && f.ReplayEnded && f.HeldBytes == 0
	})
	f := settled(t, nd, "fn") // the incomplete request has expired and its memory is free
	if f.Accepted != n || f.Replied != n || !strings.HasSuffix(f.Replay, "capture.pcap") {
		t.Errorf("status says %+v", f)
	}
	for series, want := range map[string]float64{"ok": n, "incomplete": 1} {
		if got := metric(t, nd, fmt.Sprintf(`penstock_results_total{function="fn",result=%q}`, series)); got != want {
			t.Errorf("%v requests ended %s, want %v", got, series, want)
		}
	}
	if f, err := nd.Function("network"); err != nil || f.Replay != "" || f.ReplayEnded {
		t.Errorf("the function on the network: %+v, %v", f, err)
	}
	if out, err := run(t, nd.Dir, "if", "remove", "fn"); err != nil {
		t.Errorf("remove: %v\n%s", err, out)
	}
}

// There are three times as many requests as slots: with speed 0 they wait for room.
func TestReplayMaxSpeed(t *testing.T) {
	const n, port = 200, 5001
	nd := start(t, fmt.Sprintf(`
aggregate: {slots: 64, deadline: 1s}
functions:
  - {name: fn, model: %s, port: %d, slo: 20s, replay: {file: %s, speed: 0}}
`, nullCard(t, "digest", small), port, captured(t, port, n)))
	waitFor(t, "the capture to be played", func() bool {
		f, err := nd.Function("fn")
		return err == nil && f.ReplayEnded && f.HeldBytes == 0
	})
	if f := settled(t, nd, "fn"); f.Accepted != n || f.Replied != n {
		t.Errorf("status says %+v", f)
	}
	if got := metric(t, nd, `penstock_results_total{function="fn",result="ok"}`); got != n {
		t.Errorf("%v requests ended ok, want %v", got, n)
	}
}

func TestReplayMissing(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nullCard(t, "digest", small)))
	text, err := os.ReadFile(nd.Config)
	if err != nil {
		t.Fatal(err)
	}
	more := fmt.Sprintf("  - {name: second, model: %s, port: 7, replay: {file: nowhere.pcap}}\n", nullCard(t, "other", small))
	if err := os.WriteFile(nd.Config, append(text, more...), 0o600); err != nil {
		t.Fatal(err)
	}
	logged(t, nd, "nowhere.pcap: no such file")
}
