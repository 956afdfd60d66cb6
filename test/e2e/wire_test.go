package e2e

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/wire"
)

const large = 100 << 10 // a hundred fragments

// datagrams returns all datagrams of a picture.
func datagrams(id uint32, p []byte) (out [][]byte) {
	const fragment = 1024
	for i := range wire.Fragments(len(p), fragment) {
		h := wire.FragmentHeader(wire.TypeData, id, len(p), fragment, i)
		b := make([]byte, wire.HeaderSize, wire.HeaderSize+fragment)
		h.Put(b)
		out = append(out, append(b, p[h.Offset:][:h.Length]...))
	}
	return out
}

func socket(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", address)
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// answer reads one answer. The results are nil if none arrives.
func answer(c net.Conn, patience time.Duration) (wire.Header, *wire.Result, []byte) {
	b := make([]byte, 65536)
	for {
		c.SetReadDeadline(time.Now().Add(patience))
		n, err := c.Read(b)
		if err != nil {
			return wire.Header{}, nil, nil
		}
		h, r, payload, err := wire.DecodeResult(b[:n])
		if err == nil {
			return h, &r, payload
		}
	}
}

func TestMalformedDatagrams(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	c := socket(t, nodetest.Address(t, nd, "fn"))
	good := datagrams(7, nodetest.Picture(small, 0))[0]
	with := func(change func(b []byte)) []byte {
		b := append([]byte(nil), good...)
		change(b)
		return b
	}
	wrong := map[string][]byte{
		"short":    good[:10],
		"magic":    with(func(b []byte) { b[0] = 'X' }),
		"version":  with(func(b []byte) { b[2] = 0xF0 | b[2]&0x0F }),
		"type":     with(func(b []byte) { b[2] = b[2]&0xF0 | 0x0E }),
		"flags":    with(func(b []byte) { b[3] |= 0x80 }),
		"count":    with(func(b []byte) { binary.LittleEndian.PutUint16(b[18:], 0) }),
		"index":    with(func(b []byte) { binary.LittleEndian.PutUint16(b[16:], 9) }),
		"length":   good[:500],
		"trailing": append(with(func([]byte) {}), 1, 2, 3),
		"offset":   with(func(b []byte) { binary.LittleEndian.PutUint32(b[8:], 5) }),
	}
	for reason, b := range wrong {
		for range 3 {
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		series := `penstock_source_drops_total{function="fn",reason="` + reason + `"}`
		wait.For(t, reason+" to be counted", func() bool { return nodetest.Metric(t, nd, series) == 3 })
	}
	seed := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b := make([]byte, seed.IntN(1500))
		for i := range b {
			b[i] = byte(seed.Uint32())
		}
		c.Write(b)
	}
	got := stream(t, nd, 100, func() {})
	if got.By[client.StatusOK] != 100 || got.Wrong > 0 {
		t.Errorf("%s; want 100 right answers beside the noise", got)
	}
	nodetest.Settled(t, nd, "fn")
}

func TestClientStops(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", large)))
	c := socket(t, nodetest.Address(t, nd, "fn"))
	all := datagrams(1, nodetest.Picture(large, 0))
	for _, b := range all[:60] {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	_, r, _ := answer(c, 10*time.Second) // after a lost datagram there is none
	if r == nil || r.Status != wire.StatusIncomplete || r.Missing != uint16(len(all)-60) {
		t.Fatalf("answer %+v, want incomplete with %d missing", r, len(all)-60)
	}
	nodetest.Settled(t, nd, "fn")
}

func TestEqualRequestIDs(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	var conns [2]net.Conn
	for i := range conns {
		conns[i] = socket(t, nodetest.Address(t, nd, "fn"))
	}
	for id := range uint32(50) {
		for i, c := range conns {
			for _, b := range datagrams(id, nodetest.Picture(small, i)) {
				if _, err := c.Write(b); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, c := range conns {
			h, r, payload := answer(c, 10*time.Second) // after a lost datagram there is none
			if r == nil || r.Status != wire.StatusOK || h.RequestID != id {
				t.Fatalf("client %d, request %d: answer %+v %+v", i, id, h, r)
			}
			if got := math.Float32frombits(binary.LittleEndian.Uint32(payload)); got != nodetest.Digest(nodetest.Picture(small, i)) {
				t.Fatalf("client %d, request %d: got the other client's answer", i, id)
			}
		}
	}
	nodetest.Settled(t, nd, "fn")
}

func TestRepeatedRequest(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	c := socket(t, nodetest.Address(t, nd, "fn"))
	all := datagrams(3, nodetest.Picture(small, 5))
	for _, b := range all {
		c.Write(b)
	}
	_, first, payload := answer(c, 10*time.Second) // after a lost datagram there is none
	if first == nil || first.Status != wire.StatusOK {
		t.Fatalf("answer %+v, want ok", first)
	}
	accepted := nodetest.Settled(t, nd, "fn").Accepted
	time.Sleep(5 * time.Millisecond) // repeated answers are rate-limited
	all[0][3] |= byte(wire.FlagRetransmitted)
	c.Write(all[0])
	_, again, same := answer(c, 10*time.Second) // after a lost datagram there is none
	if again == nil || again.Status != first.Status || string(same) != string(payload) {
		t.Fatalf("answer %+v %x, want the first again: %x", again, same, payload)
	}
	if f := nodetest.Settled(t, nd, "fn"); f.Accepted != accepted {
		t.Errorf("%d requests accepted, want %d: it was run twice", f.Accepted, accepted)
	}
}

func TestBusy(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=busy=20ms")
	c := socket(t, nodetest.Address(t, nd, "fn"))
	for id := range uint32(200) {
		for _, b := range datagrams(id, nodetest.Picture(small, 0)) {
			c.Write(b)
		}
	}
	busy, ok := 0, 0
	for busy+ok < 200 {
		_, r, _ := answer(c, 10*time.Second) // after a lost datagram there is none
		if r == nil {
			break
		}
		switch r.Status {
		case wire.StatusBusy:
			if busy++; r.Credit != 0 {
				t.Fatalf("busy with credit %d", r.Credit)
			}
		case wire.StatusOK:
			ok++
		}
	}
	const alone = 57 // of 64 slots; the rest is reserved for other clients
	if busy == 0 || ok < alone {
		t.Errorf("%d ok, %d busy; want at least %d answered and some busy", ok, busy, alone)
	}
	nodetest.Settled(t, nd, "fn")
}

// mangler forwards between a client and a node, and loses, repeats and reorders
// datagrams in both directions.
type mangler struct {
	front  *net.UDPConn
	mu     sync.Mutex
	random *rand.Rand
	held   []func()
}

func mangle(t *testing.T, to string, rate float64) string {
	t.Helper()
	front, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must.OK(t, err)
	front.SetReadBuffer(8 << 20)
	back, err := net.Dial("udp", to)
	must.OK(t, err)
	t.Cleanup(func() { front.Close(); back.Close() })
	m := &mangler{front: front, random: rand.New(rand.NewPCG(3, 4))}
	var clientAddress *net.UDPAddr
	go func() {
		b := make([]byte, 65536)
		for {
			n, from, err := front.ReadFromUDP(b)
			if err != nil {
				return
			}
			m.mu.Lock()
			clientAddress = from
			m.mu.Unlock()
			p := append([]byte(nil), b[:n]...)
			m.pass(rate, func() { back.Write(p) })
		}
	}()
	go func() {
		b := make([]byte, 65536)
		for {
			n, err := back.Read(b)
			if err != nil {
				return
			}
			p := append([]byte(nil), b[:n]...)
			m.pass(rate, func() {
				front.WriteToUDP(p, clientAddress)
			})
		}
	}()
	return front.LocalAddr().String()
}

func (m *mangler) pass(rate float64, forward func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch x := m.random.Float64(); {
	case x < rate: // lost
	case x < 2*rate: // repeated
		forward()
		forward()
	case x < 3*rate: // after the next ones
		m.held = append(m.held, forward)
	default:
		forward()
		for _, f := range m.held {
			f()
		}
		m.held = m.held[:0]
	}
}

func TestBadNetwork(t *testing.T) {
	nd := start(t, oneFunction(nodetest.Card(t, "digest", large)))
	got := nodetest.NewAnswers()
	c, err := client.Dial(t.Context(), mangle(t, nodetest.Address(t, nd, "fn"), 0.05), client.Options{
		Deliver: got.Deliver(large), Timeout: patience,
	})
	must.OK(t, err)
	defer c.Close()
	const n = 200
	nodetest.Send(t, c, large, 0, n, 10*time.Millisecond)
	got.Wait(n)
	if got.Wrong > 0 || got.Lost > 0 {
		t.Errorf("%s; want every request answered, none wrong", got)
	}
	if got.By[client.StatusOK] < n*9/10 {
		t.Errorf("%s; retransmission should bring nearly all home", got)
	}
	nodetest.Settled(t, nd, "fn")
}
