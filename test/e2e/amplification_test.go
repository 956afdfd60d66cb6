package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/wire"
)

// headersBytes is the size of a datagram's IPv4 and UDP headers.
const headersBytes = 20 + 8

// meter is a socket that counts the bytes it sends and receives, including
// headers. It never echoes a cookie, like a sender with a forged address.
type meter struct {
	net.Conn
	sent, received int
	types          map[wire.Type]int
}

func (m *meter) send(t *testing.T, b []byte) {
	t.Helper()
	if _, err := m.Write(b); err != nil {
		t.Fatal(err)
	}
	m.sent += headersBytes + len(b)
}

// listen counts received bytes until want has arrived, and then nothing for that long.
func (m *meter) listen(t *testing.T, want wire.Type, silence time.Duration) {
	t.Helper()
	b := make([]byte, 65536)
	for {
		wait := silence
		if m.types[want] == 0 {
			wait = patience
		}
		m.SetReadDeadline(time.Now().Add(wait))
		n, err := m.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		must.OK(t, err)
		m.received += headersBytes + n
		if h, err := wire.DecodeHeader(b[:n]); err == nil {
			m.types[h.Type]++
		}
	}
}

// datagram returns fragment index of a picture of zeros.
func datagram(id uint32, total, fragmentBytes, index int, flags wire.Flags) []byte {
	h := wire.FragmentHeader(wire.TypeData, id, total, fragmentBytes, index)
	h.Flags |= flags
	b := make([]byte, wire.DatagramSize(&h))
	h.Put(b)
	return b
}

// TestAmplification measures how much a node sends to a client that never proves
// its address. The address is not a loopback address.
func TestAmplification(t *testing.T) {
	const (
		bound         = 3.0
		pictureBytes  = 416 * 416 * 3
		fragmentBytes = 526 // 987 fragments, and one of 6 bytes
		fragments     = 988
	)
	card := func(name, size string, outputs int) string {
		path := filepath.Join(t.TempDir(), name+".yaml")
		text := fmt.Sprintf(`name: %s
version: 1
framework: "null"
input:
  size: %s
  wire: {type: u8, layout: hwc}
  tensor: {type: u8, layout: hwc}
outputs:
  - {name: digest, shape: [%d]}
batches: [1, 2, 4, 8]
slo: 2s
decoder: {name: raw}
`, name, size, outputs)
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	host := newOutside(t)
	nd := start(t, fmt.Sprintf(`
listen: 0.0.0.0
shares: {policy: gslice, tune: false}
functions:
  - {name: picture, model: %s, port: 0, share_percent: 30}
  - {name: small, model: %s, port: 0, share_percent: 30}
  - {name: boxes, model: %s, port: 0, share_percent: 30}
`, card("picture", "[416, 416, 3]", 1), card("small", "[1, 1, 1]", 1), card("boxes", "[1, 1, 1]", 550)))
	port := func(function string) int {
		f, err := nd.Function(function)
		must.OK(t, err)
		return f.Port
	}
	const quiet = 700 * time.Millisecond // longer than all deadlines

	for _, row := range []struct {
		name, function string
		attack         func(m *meter)
		want           wire.Type // one of these must arrive
	}{
		{"one datagram of 28 bytes, unsolicited", "picture", func(m *meter) {
			d := datagram(1, pictureBytes, fragmentBytes, fragments-1, 0)
			if len(d) != 28 {
				t.Fatalf("datagram has %d bytes, want 28", len(d))
			}
			m.send(t, d)
		}, wire.TypeResult},
		{"a picture of 1 byte, small result", "small", func(m *meter) { m.send(t, datagram(1, 1, 1, 0, 0)) }, wire.TypeResult},
		{"a picture of 1 byte, large result", "boxes", func(m *meter) { m.send(t, datagram(1, 1, 1, 0, 0)) }, wire.TypeBusy},
		{"the same, asked for 50 times", "boxes", func(m *meter) {
			m.send(t, datagram(1, 1, 1, 0, 0))
			for range 50 {
				time.Sleep(2 * time.Millisecond)
				m.send(t, datagram(1, 1, 1, 0, wire.FlagRetransmitted))
			}
		}, wire.TypeBusy},
		{"NACKs for 987 fragments, asked for 10 times", "picture", func(m *meter) {
			for range 10 {
				m.send(t, datagram(1, pictureBytes, fragmentBytes, 0, wire.FlagRetransmitted))
				time.Sleep(10 * time.Millisecond)
			}
		}, wire.TypeNACK},
		{"a picture of another size", "picture", func(m *meter) { m.send(t, datagram(1, 1, 1, 0, 0)) }, wire.TypeResult},
	} {
		m := &meter{Conn: host.socket(t, port(row.function)), types: map[wire.Type]int{}}
		row.attack(m)
		m.listen(t, row.want, quiet)
		factor := float64(m.received) / float64(m.sent)
		t.Logf("%-42s %6d bytes sent, %6d received: factor %.2f, bound %.1f", row.name, m.sent, m.received, factor, bound)
		if factor > bound {
			t.Errorf("%s: factor %.2f, want at most %.1f", row.name, factor, bound)
		}
		if m.types[row.want] == 0 {
			t.Errorf("%s: came %v, want a %v", row.name, m.types, row.want)
		}
	}

	// A client that proves its address gets all answers, and nothing runs twice.
	before := nodetest.Settled(t, nd, "boxes").Accepted
	c := host.dial(t, port("boxes"), client.Options{Timeout: patience})
	for i := range 20 {
		r, err := c.Do(nodetest.Context(t), []byte{byte(i)}, client.RequestOptions{})
		if err != nil || len(r.Payload) != 4*550 {
			t.Fatalf("request %d of a client with proof: %d bytes, %v", i, len(r.Payload), err)
		}
	}
	if n := c.Stats().Proofs; n < 1 || n > 2 { // the next minute may begin in between
		t.Errorf("the client was asked for %d proofs, want 1", n)
	}
	if n := nodetest.Settled(t, nd, "boxes").Accepted - before; n != 20 {
		t.Errorf("%d requests ran, want 20", n)
	}
	if text, err := nd.Metrics(); err != nil || !strings.Contains(text, `penstock_answers_withheld_total{function="boxes"}`) {
		t.Errorf("no penstock_answers_withheld_total in /metrics, %v", err)
	}
}
