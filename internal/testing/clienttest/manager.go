package clienttest

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/penstock/penstock/wire"
)

// Request is a complete picture that the manager received.
type Request struct {
	From      netip.AddrPort
	ID        uint32
	Picture   []byte // the handler may keep it
	Extension wire.Extension
	// Extended says that the request had an extension.
	Extended bool
}

// Handler answers a request. It runs on the manager's only goroutine and must
// not call the manager. The manager sets SentAt. To leave the request without an
// answer it returns ok false; Answer can answer it later.
type Handler func(q Request) (r wire.Result, payload []byte, ok bool)

// Echo returns a handler that answers with the picture itself, as raw, and with
// that credit.
func Echo(credit uint16) Handler {
	return func(q Request) (wire.Result, []byte, bool) {
		return wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1, Credit: credit}, q.Picture, true
	}
}

// Manager follows docs/wire.md as far as a client can observe it. It aggregates,
// sends NACKs for missing fragments, runs a request once, and repeats the same
// answer. It never forgets a request.
type Manager struct {
	conn    *net.UDPConn
	options ManagerOptions
	handler Handler
	loop    sync.WaitGroup

	mu       sync.Mutex // guards below
	token    uint64
	granted  int    // how often
	offered  uint64 // the latest challenge; 0: it was used
	requests map[key]*held
	bad      []error
	maxHeld  int
}

// ManagerOptions say how a Manager behaves.
type ManagerOptions struct {
	// NACKAfter is the silence after which it sends a NACK for missing
	// fragments, 5 ms by default; negative for never.
	NACKAfter time.Duration
	// FragmentBytes is the size of the fragments of results, wire.DefaultFragmentBytes
	// by default.
	FragmentBytes int
	// Cookie, if not 0, is in every answer. A request is then answered busy
	// until its fragment 0 has echoed the cookie.
	Cookie uint64
	// Key, if set, is that of the function: requests need a token.
	Key []byte
	// Listen is the address, by default a free port of 127.0.0.1.
	Listen netip.AddrPort
}

type key struct {
	from netip.AddrPort
	id   uint32
}

// held is a request that is aggregated, run or answered.
type held struct {
	total, size uint32
	count       uint16
	received    int
	present     []uint64
	picture     []byte
	extension   wire.Extension
	extended    bool
	receivedAt  time.Time
	proved      bool
	runs        int
	answers     [][]byte // the answer's datagrams
	moved       bool     // fragment 0 begins it again
}

// NewManager listens and answers with h. The caller closes it.
func NewManager(h Handler, o ManagerOptions) (*Manager, error) {
	if o.NACKAfter == 0 {
		o.NACKAfter = 5 * time.Millisecond
	}
	if o.FragmentBytes == 0 {
		o.FragmentBytes = wire.DefaultFragmentBytes
	}
	if !o.Listen.IsValid() {
		o.Listen = netip.MustParseAddrPort("127.0.0.1:0")
	}
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(o.Listen))
	if err != nil {
		return nil, fmt.Errorf("open fake manager: %w", err)
	}
	_ = conn.SetReadBuffer(4 << 20) // the kernel grants what it allows
	m := &Manager{conn: conn, options: o, handler: h, token: rand.Uint64() | 1, requests: make(map[key]*held)}
	m.loop.Add(1)
	go func() {
		defer m.loop.Done()
		m.serve()
	}()
	return m, nil
}

// Addr returns the address that clients send to.
func (m *Manager) Addr() netip.AddrPort { return m.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// Close stops the manager and returns when its goroutines have ended.
func (m *Manager) Close() {
	m.conn.Close()
	m.loop.Wait()
}

// Requests returns how many requests arrived completely, and the max number of
// runs of one request, which must not exceed one.
func (m *Manager) Requests() (complete, maxRuns int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, q := range m.requests {
		if q.runs > 0 {
			complete++
		}
		maxRuns = max(maxRuns, q.runs)
	}
	return complete, maxRuns
}

// MaxHeld returns the max number of requests that had begun and were not
// answered at the same time.
func (m *Manager) MaxHeld() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.maxHeld
}

// Faults returns an error for the datagrams that a client must not send.
func (m *Manager) Faults() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.bad...)
}

// Answer answers a request that the handler left unanswered, or answers one
// again with another result.
func (m *Manager) Answer(from netip.AddrPort, id uint32, r wire.Result, payload []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.requests[key{from, id}]
	if q == nil {
		q = &held{}
		m.requests[key{from, id}] = q
	}
	m.answerLocked(key{from, id}, q, r, payload)
}

// Inject sends arbitrary bytes to a client.
func (m *Manager) Inject(to netip.AddrPort, b []byte) { _, _ = m.conn.WriteToUDPAddrPort(b, to) }

func (m *Manager) serve() {
	b := make([]byte, 64<<10)
	var deadline time.Time // time of the next check for missing fragments
	for {
		if nackAfter := m.options.NACKAfter; nackAfter > 0 && !time.Now().Before(deadline) {
			m.sendNACKs()
			deadline = time.Now().Add(nackAfter)
			_ = m.conn.SetReadDeadline(deadline)
		}
		n, from, err := m.conn.ReadFromUDPAddrPort(b)
		switch {
		case err == nil:
			m.take(from, b[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, net.ErrClosed):
			return
		}
	}
}

// take processes one datagram.
func (m *Manager) take(from netip.AddrPort, b []byte) {
	h, err := wire.DecodeHeader(b)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && h.Type != wire.TypeData {
		if err = m.greetLocked(from, b); err == nil {
			return
		}
	}
	if err != nil {
		m.bad = append(m.bad, fmt.Errorf("from %v: %w: % x", from, err, b[:min(len(b), wire.HeaderSize)]))
		return
	}
	k := key{from, h.RequestID}
	q := m.requests[k]
	if q != nil && q.moved {
		if h.Index != 0 {
			return
		}
		q = nil
	}
	if m.options.Key != nil && (q == nil || h.Index == 0) && !m.admitsLocked(&h, b) {
		if h.Index == 0 {
			refused := wire.Result{Status: wire.StatusRefused, NeedsToken: true, LargestPicture: 1 << 31}
			m.Inject(from, wire.AppendResult(nil, k.id, &refused, nil, m.options.FragmentBytes, 0, false))
		}
		return
	}
	if q == nil {
		q = &held{
			total: h.Total, size: wire.FragmentSize(&h), count: h.Count,
			present: make([]uint64, (int(h.Count)+63)/64), picture: make([]byte, h.Total),
		}
		m.requests[k] = q
		m.maxHeld = max(m.maxHeld, m.heldLocked())
	}
	if h.Total != q.total || h.Count != q.count || wire.FragmentSize(&h) != q.size {
		m.bad = append(m.bad, fmt.Errorf("request %d: contradictory fragment %+v", h.RequestID, h))
		return
	}
	q.receivedAt = time.Now()
	bit := uint64(1) << (h.Index % 64)
	fresh := q.present[h.Index/64]&bit == 0
	if fresh {
		q.present[h.Index/64] |= bit
		q.received++
		copy(q.picture[h.Offset:], b[wire.PayloadOffset(&h):][:h.Length])
		if h.Flags&wire.FlagExtension != 0 && h.Index == 0 {
			q.extension, _ = wire.DecodeExtension(b[wire.HeaderSize:])
			q.extended = true
		}
	}
	if h.Flags&wire.FlagExtension != 0 && h.Index == 0 && !q.proved {
		e, _ := wire.DecodeExtension(b[wire.HeaderSize:])
		q.proved = e.Cookie != 0 && e.Cookie == m.options.Cookie
	}
	switch {
	case fresh && q.received == int(q.count):
		q.runs++
		r, payload, ok := m.handler(Request{From: from, ID: h.RequestID, Picture: q.picture, Extension: q.extension, Extended: q.extended})
		if ok {
			m.answerLocked(k, q, r, payload)
		}
	case h.Flags&wire.FlagRetransmitted == 0 || h.Index != 0:
	case q.answers != nil:
		var e wire.Extension
		if h.Flags&wire.FlagExtension != 0 {
			e, _ = wire.DecodeExtension(b[wire.HeaderSize:])
		}
		m.sendLocked(k, q, &e.Missing, true)
	case q.received < int(q.count) && !(fresh && q.received == 1): // one that just began
		m.sendNACKLocked(k, q)
	}
}

// ExpireToken makes all tokens invalid. It returns how often one was given.
func (m *Manager) ExpireToken() (granted int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.token = rand.Uint64() | 1
	return m.granted
}

// admitsLocked reports whether a fragment has the token.
func (m *Manager) admitsLocked(h *wire.Header, b []byte) bool {
	if h.Index != 0 || h.Flags&wire.FlagExtension == 0 {
		return false
	}
	e, _ := wire.DecodeExtension(b[wire.HeaderSize:])
	return e.Cookie == m.token
}

// greetLocked answers a hello or a proof. A challenge is good for one proof.
func (m *Manager) greetLocked(from netip.AddrPort, b []byte) error {
	kind, h, err := wire.DecodeHello(b)
	if err != nil || m.options.Key == nil {
		return cmp.Or(err, wire.ErrType)
	}
	answer := wire.Hello{Nonce: h.Nonce}
	switch {
	case kind == wire.TypeHello:
		m.offered = rand.Uint64() | 1
		answer.Value = m.offered
	case h.Value != m.offered:
		return nil
	case h.Signed(m.options.Key):
		m.granted++
		m.offered, answer.Value = 0, m.token
	}
	m.Inject(from, answer.Append(nil, kind))
	return nil
}

func (m *Manager) heldLocked() int {
	n := 0
	for _, q := range m.requests {
		if q.answers == nil {
			n++
		}
	}
	return n
}

func (m *Manager) answerLocked(k key, q *held, r wire.Result, payload []byte) {
	r.SentAt, r.Cookie = q.extension.SentAt, m.options.Cookie
	q.answers, q.moved = nil, r.Status == wire.StatusMoved
	for i := range wire.Fragments(len(payload), m.options.FragmentBytes) {
		q.answers = append(q.answers, wire.AppendResult(nil, k.id, &r, payload, m.options.FragmentBytes, i, false))
	}
	m.sendLocked(k, q, &wire.Missing{}, false)
}

func (m *Manager) sendLocked(k key, q *held, missing *wire.Missing, again bool) {
	if m.options.Cookie != 0 && !q.proved {
		busy := wire.Result{Status: wire.StatusBusy, SentAt: q.extension.SentAt, Cookie: m.options.Cookie}
		m.Inject(k.from, wire.AppendResult(nil, k.id, &busy, nil, m.options.FragmentBytes, 0, again))
		return
	}
	first := 0
	if again {
		first = rand.IntN(len(q.answers)) // as the manager's outbox
	}
	for i := range q.answers {
		index := (first + i) % len(q.answers)
		if !missing.Empty() && !missing.Has(index) {
			continue
		}
		d := q.answers[index]
		if again {
			d[3] |= byte(wire.FlagRetransmitted)
		}
		m.Inject(k.from, d)
	}
}

func (m *Manager) sendNACKs() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, q := range m.requests {
		if q.answers == nil && q.received < int(q.count) && time.Since(q.receivedAt) >= m.options.NACKAfter {
			m.sendNACKLocked(k, q)
		}
	}
}

func (m *Manager) sendNACKLocked(k key, q *held) {
	q.receivedAt = time.Now()
	for next := 0; ; {
		var d []byte
		if d, next = wire.AppendNACK(nil, k.id, q.total, q.count, q.present, next); d == nil {
			return
		}
		m.Inject(k.from, d)
	}
}
