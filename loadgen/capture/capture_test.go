package capture

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/capturefile"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// node is a UDP port that answers each request with ok, except for those whose first byte is silent.
func node(t *testing.T) netip.AddrPort {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must.OK(t, err)
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			h, err := wire.DecodeHeader(buffer[:n])
			if err != nil || h.Type != wire.TypeData || buffer[wire.PayloadOffset(&h)] == silent {
				continue
			}
			conn.WriteToUDPAddrPort(wire.AppendResult(nil, h.RequestID, &wire.Result{}, nil, wire.DefaultFragmentBytes, 0, false), from)
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

const silent = 255

func request(id uint32, first byte) []byte {
	h := wire.FragmentHeader(wire.TypeData, id, 4, 4, 0)
	b := make([]byte, wire.DatagramSize(&h))
	h.Put(b)
	b[wire.PayloadOffset(&h)] = first
	return b
}

// played writes a capture and plays it to a function named fn at that address.
func played(t *testing.T, at netip.AddrPort, speed float64, datagrams ...capturefile.Datagram) (*Report, error) {
	t.Helper()
	var b bytes.Buffer
	capturefile.Write(t, &b, datagrams)
	file := filepath.Join(t.TempDir(), "a.pcap")
	must.OK(t, os.WriteFile(file, b.Bytes(), 0o600))
	return Play(context.Background(), Options{File: file, Functions: []Function{{"fn", at}}, Speed: speed, Grace: 200 * time.Millisecond})
}

func TestPlay(t *testing.T) {
	at := node(t)
	to := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), at.Port())
	one, two := netip.MustParseAddrPort("10.0.0.8:4000"), netip.MustParseAddrPort("10.0.0.9:4000")
	began := time.Now()
	r, err := played(t, at, 10,
		capturefile.Datagram{From: one, To: to, Payload: request(1, 0)},
		capturefile.Datagram{From: two, To: to, Payload: request(1, 0)}, // another client's
		capturefile.Datagram{From: one, To: to, Payload: request(1, 0)}, // a repetition
		capturefile.Datagram{From: to, To: one, Payload: []byte("an answer")},
		capturefile.Datagram{From: one, To: to, Payload: request(2, 0), Cut: 1},
		capturefile.Datagram{From: one, To: to, Payload: []byte("no request")},
		capturefile.Datagram{At: time.Second, From: one, To: to, Payload: request(3, silent)},
	)
	must.OK(t, err)
	want := &Report{Skipped: 2, Functions: []FunctionReport{{Name: "fn", Datagrams: 5, Requests: 3, Answers: map[string]uint64{"ok": 2}, Unanswered: 1}}}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("it reports %+v, want %+v", r, want)
	}
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("it took %v for a second at 10 times the speed", took)
	}
	var table strings.Builder
	r.WriteTable(&table)
	if want := "fn: sent 5 datagrams of 3 requests: 2 ok, 1 unanswered\nskipped 2 frames without a whole UDP datagram to these functions\n"; table.String() != want {
		t.Errorf("it prints %q, want %q", table.String(), want)
	}
}

func TestPlayRefuses(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:5001")
	from := netip.MustParseAddrPort("10.0.0.8:4000")
	_, err := played(t, at, 1, capturefile.Datagram{From: from, To: netip.MustParseAddrPort("10.0.0.1:9"), Payload: []byte("x")})
	if err == nil || !strings.Contains(err.Error(), "its datagrams went to ports 9; want a function of the node at one of them; the node has 5001 (fn)") {
		t.Errorf("a capture for another port: %v", err)
	}
	dir := t.TempDir()
	for name, test := range map[string]struct{ content, want string }{
		"text":  {"no capture at all, but long enough", "not a capture, want pcap or pcapng"},
		"empty": {"", "not a capture, want pcap or pcapng"},
		"ng":    {"\n\r\r\n", "read pcapng header"},
	} {
		file := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(file, []byte(test.content), 0o600))
		if _, err := Play(context.Background(), Options{File: file, Speed: 1}); err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want %q with the file's name", name, err, test.want)
		}
	}
	if _, err := Play(context.Background(), Options{File: filepath.Join(dir, "none")}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no file: %v", err)
	}
}

// A cut file ends with an error that names the frame; nothing hangs when the run is interrupted.
func TestPlayEnds(t *testing.T) {
	at := node(t)
	var b bytes.Buffer
	from, to := netip.MustParseAddrPort("10.0.0.8:4000"), netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), at.Port())
	capturefile.Write(t, &b, []capturefile.Datagram{{From: from, To: to, Payload: request(1, 0)}, {At: time.Hour, From: from, To: to, Payload: request(2, 0)}})
	file := filepath.Join(t.TempDir(), "a.pcap")
	o := Options{File: file, Functions: []Function{{"fn", at}}, Speed: 1, Grace: time.Hour}
	must.OK(t, os.WriteFile(file, b.Bytes()[:b.Len()-1], 0o600))
	if _, err := Play(context.Background(), o); err == nil || !strings.Contains(err.Error(), "frame 2: ") {
		t.Errorf("a cut file: %v, want one that names frame 2", err)
	}
	must.OK(t, os.WriteFile(file, b.Bytes(), 0o600))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if r, err := Play(ctx, o); err != nil || !r.Interrupted || r.Functions[0].Datagrams != 1 {
		t.Errorf("interrupted: %+v, %v", r, err)
	}
}
