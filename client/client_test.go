package client_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/wire"
)

// patience bounds the wait of a test; only a hang reaches it.
const patience = 30 * time.Second

func startManager(t *testing.T, h clienttest.Handler, o clienttest.ManagerOptions) *clienttest.Manager {
	t.Helper()
	m, err := clienttest.NewManager(h, o)
	must.OK(t, err)
	t.Cleanup(func() {
		m.Close()
		if err := m.Faults(); err != nil {
			t.Errorf("the client sent what no client may: %v", err)
		}
		if _, runs := m.Requests(); runs > 1 {
			t.Errorf("a request was run %d times", runs)
		}
	})
	return m
}

func startRelay(t *testing.T, to netip.AddrPort, up, down clienttest.Faults) *clienttest.Relay {
	t.Helper()
	r, err := clienttest.NewRelay(to, up, down)
	must.OK(t, err)
	t.Cleanup(r.Close)
	return r
}

// silent is a handler that never answers.
func silent(clienttest.Request) (wire.Result, []byte, bool) { return wire.Result{}, nil, false }

// plain makes dial use the socket of other systems.
var plain bool

// TestPlainSocket runs the tests in which a socket matters on the socket of other systems.
func TestPlainSocket(t *testing.T) {
	plain = true
	defer func() { plain = false }()
	for name, test := range map[string]func(*testing.T){
		"Do": TestDo, "BadNetwork": TestBadNetwork, "NACK": TestNACK, "Question": TestQuestion, "RepeatedAnswers": TestRepeatedAnswers,
		"SendErrors": TestSendErrors, "Close": TestClose, "Unreachable": TestUnreachable, "ManagerRestart": TestManagerRestart,
		"Malformed": TestMalformed, "Extension": TestExtension,
	} {
		t.Run(name, test)
	}
}

func dial(t *testing.T, to netip.AddrPort, o client.Options) *client.Client {
	t.Helper()
	if plain {
		client.Plain(&o)
	}
	if o.Timeout == 0 {
		o.Timeout = patience
	}
	c, err := client.Dial(context.Background(), to.String(), o)
	must.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// picture returns n bytes that differ from any other picture.
func picture(n int, seed uint64) []byte {
	b := make([]byte, n)
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// ends collects what Deliver receives.
type ends struct {
	mu       sync.Mutex
	results  map[uint64]client.Result // by tag
	repeated []uint64
	ended    chan struct{}
}

func newEnds() *ends {
	return &ends{results: make(map[uint64]client.Result), ended: make(chan struct{}, 1<<16)}
}

func (e *ends) deliver(r *client.Result) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.results[r.Tag]; known {
		e.repeated = append(e.repeated, r.Tag)
	}
	copied := *r
	copied.Payload = bytes.Clone(r.Payload)
	e.results[r.Tag] = copied
	e.ended <- struct{}{}
}

// wait returns when n requests have ended, each once.
func (e *ends) wait(t *testing.T, n int) map[uint64]client.Result {
	t.Helper()
	deadline := time.After(patience)
	for i := range n {
		select {
		case <-e.ended:
		case <-deadline:
			t.Fatalf("%d of %d requests ended", i, n)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.repeated) > 0 {
		t.Fatalf("ended more than once: %v", e.repeated)
	}
	return e.results
}

func TestDo(t *testing.T) {
	for _, o := range []client.Options{
		{},
		{FragmentBytes: 1000},
		{FragmentBytes: 1},
		{FragmentBytes: 8192, PaceBytes: 200 << 20, BurstBytes: 64 << 10},
		{FragmentBytes: wire.MaxFragmentBytes},
		{FragmentBytes: 1, LocalFragmentBytes: 16 << 10},
	} {
		fragment := cmp.Or(o.LocalFragmentBytes, o.FragmentBytes, wire.DefaultFragmentBytes)
		for _, size := range []int{1, fragment, fragment + 1, 3*fragment - 1, 70*fragment + 5} {
			t.Run(fmt.Sprintf("%d bytes in fragments of %d", size, fragment), func(t *testing.T) {
				openfiles.CheckLeaks(t)
				m := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
				c := dial(t, m.Addr(), o)
				want := picture(size, 1)
				r, err := c.Do(context.Background(), want, client.RequestOptions{Tag: 77})
				must.OK(t, err)
				if !bytes.Equal(r.Payload, want) {
					t.Error("the answer is not the picture")
				}
				must.OK(t, c.Close()) // all datagrams are counted
				if s, want := c.Stats(), uint64((size+fragment-1)/fragment); s.Datagrams-s.Resends != want {
					t.Errorf("%d datagrams, %d of them again; want %d", s.Datagrams, s.Resends, want)
				}
				if r.Tag != 77 || r.Kind != wire.KindRaw || r.Batch != 1 || r.Credit != 8 {
					t.Errorf("got %+v", r)
				}
				if r.Intended.After(r.Queued) || r.Queued.After(r.Sent) || r.Sent.After(r.Received) || time.Since(r.Intended) > patience {
					t.Errorf("wrong times: intended %v, queued %v, sent %v, received %v", r.Intended, r.Queued, r.Sent, r.Received)
				}
			})
		}
	}
}

// TestBadNetwork checks that every request ends once, with the right answer.
func TestBadNetwork(t *testing.T) {
	openfiles.CheckLeaks(t)
	m := startManager(t, clienttest.Echo(16), clienttest.ManagerOptions{NACKAfter: 2 * time.Millisecond})
	bad := clienttest.Faults{Lose: 0.05, Repeat: 0.05, Delay: 0.05, MaxDelay: 3 * time.Millisecond, Seed: 1}
	relay := startRelay(t, m.Addr(), bad, bad)
	e := newEnds()
	c := dial(t, relay.Addr(), client.Options{Deliver: e.deliver, ResendAfter: 20 * time.Millisecond})
	sizes := []int{100, 784, 5000, 49152, 150528}
	const n = 100
	pictures := make([][]byte, n)
	for i := range pictures {
		pictures[i] = picture(sizes[i%len(sizes)], uint64(i))
		must.Get(c.Send(pictures[i], client.RequestOptions{Tag: uint64(i)}))(t)
	}
	for tag, r := range e.wait(t, n) {
		if r.Err != nil || r.Status != client.StatusOK || !bytes.Equal(r.Payload, pictures[tag]) {
			t.Errorf("request %d: %v, %v, %d bytes", tag, r.Err, r.Status, len(r.Payload))
		}
	}
	if relay.Lost.Load() == 0 || relay.Repeated.Load() == 0 || relay.Delayed.Load() == 0 {
		t.Error("the network was not bad")
	}
	if s := c.Stats(); s.Resends == 0 || s.NACKs == 0 || s.Duplicates == 0 || s.Answers != n {
		t.Errorf("stats %+v", s)
	}
}

func TestNACK(t *testing.T) {
	openfiles.CheckLeaks(t)
	m := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	// The test watches the traffic: on a slow machine the manager also sends NACKs for fragments
	// in flight.
	var mu sync.Mutex
	named, resent := map[int]int{}, map[int]int{}
	lose := clienttest.DropOnce(3)
	up := func(b []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if h, err := wire.DecodeHeader(b); err == nil && h.Flags&wire.FlagRetransmitted != 0 {
			resent[int(h.Index)]++
		}
		return lose(b)
	}
	down := func(b []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if w, err := wire.DecodeNACK(b); err == nil {
			for index := range w.Missing {
				named[index]++
			}
		}
		return false
	}
	relay := startRelay(t, m.Addr(), clienttest.Faults{Drop: up}, clienttest.Faults{Drop: down})
	c := dial(t, relay.Addr(), client.Options{ResendAfter: patience})
	want := picture(10*1024, 1)
	r, err := c.Do(context.Background(), want, client.RequestOptions{})
	if err != nil || !bytes.Equal(r.Payload, want) {
		t.Fatalf("%v, %d bytes", err, len(r.Payload))
	}
	_ = c.Close() // afterwards the sender has counted everything
	s := c.Stats()
	wait.For(t, "what was sent again has passed", func() bool {
		mu.Lock()
		defer mu.Unlock()
		passed := uint64(0)
		for _, n := range resent {
			passed += uint64(n)
		}
		return passed == s.Resends
	})
	if s.NACKs < 1 || s.Resends < 1 || s.Datagrams != 10+s.Resends {
		t.Errorf("stats %+v", s)
	}
	for index, n := range resent {
		if n > named[index] {
			t.Errorf("fragment %d was sent again %d times, and named in %d NACKs", index, n, named[index])
		}
	}
}

// TestQuestion checks that a silent manager is sent fragment 0 again.
func TestQuestion(t *testing.T) {
	first := func(b []byte) bool { h, _ := wire.DecodeHeader(b); return h.Flags&wire.FlagRetransmitted == 0 }
	for name, row := range map[string]struct {
		up, down  clienttest.Faults
		nackAfter time.Duration
	}{
		"when fragments were lost and the manager sends no NACK": {up: clienttest.Faults{Drop: clienttest.DropOnce(9)}, nackAfter: -1},
		"when all fragments were lost":                           {up: clienttest.Faults{Drop: first}, nackAfter: -1},
		"when the answer was lost":                               {down: clienttest.Faults{Drop: first}},
	} {
		t.Run(name, func(t *testing.T) {
			openfiles.CheckLeaks(t)
			m := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{NACKAfter: row.nackAfter})
			relay := startRelay(t, m.Addr(), row.up, row.down)
			c := dial(t, relay.Addr(), client.Options{ResendAfter: 5 * time.Millisecond})
			want := picture(10*1024, 1)
			if r, err := c.Do(context.Background(), want, client.RequestOptions{}); err != nil || !bytes.Equal(r.Payload, want) {
				t.Fatalf("%v, %d bytes", err, len(r.Payload))
			}
			if complete, runs := m.Requests(); complete != 1 || runs != 1 {
				t.Errorf("%d requests ran, one of them %d times", complete, runs)
			}
		})
	}
}

// TestQuestionsDuringAnswer loses the last fragment of the answer, and of 14 repetitions. Each
// repetition ends the silence, so the questions follow each other quickly.
func TestQuestionsDuringAnswer(t *testing.T) {
	openfiles.CheckLeaks(t)
	m := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	lost := 0
	last := func(b []byte) bool {
		h, _ := wire.DecodeHeader(b)
		lose := h.Index == h.Count-1 && lost < 15
		if lose {
			lost++
		}
		return lose
	}
	relay := startRelay(t, m.Addr(), clienttest.Faults{}, clienttest.Faults{Drop: last})
	c := dial(t, relay.Addr(), client.Options{ResendAfter: 5 * time.Millisecond, Timeout: patience})
	want := picture(3000, 1)
	if r, err := c.Do(context.Background(), want, client.RequestOptions{}); err != nil || !bytes.Equal(r.Payload, want) {
		t.Errorf("%v, %d bytes, after %d losses", err, len(r.Payload), lost)
	}
}

// TestLargeAnswer checks that the largest answer arrives if the receive buffer holds only a part of it, also on a network
// that loses datagrams. It takes longer than the timeout, which each fragment begins again.
func TestLargeAnswer(t *testing.T) {
	openfiles.CheckLeaks(t)
	const largest = wire.MaxFragments * wire.DefaultFragmentBytes
	for name, c := range map[string]struct {
		answers, bytes, socketBytes int
		lose                        float64
	}{
		"two largest":                 {2, largest, 0, 0},
		"1 % lost":                    {1, largest, 0, 0.01},
		"5 % lost":                    {1, largest, 0, 0.05},
		"5 % lost and a small buffer": {1, largest / 4, 32 << 10, 0.05},
	} {
		t.Run(name, func(t *testing.T) {
			large := picture(c.bytes, 1)
			m := startManager(t, func(clienttest.Request) (wire.Result, []byte, bool) {
				return wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1, Credit: 8}, large, true
			}, clienttest.ManagerOptions{})
			down := clienttest.Faults{Drop: clienttest.SmallBuffer(300), Lose: c.lose, Seed: 1}
			relay := startRelay(t, m.Addr(), clienttest.Faults{Lose: c.lose, Seed: 2}, down)
			e := newEnds()
			o := client.Options{Deliver: e.deliver}
			client.SocketBytes(&o, c.socketBytes)
			conn := dial(t, relay.Addr(), o)
			for i := range c.answers { // they share the buffer
				must.Get(conn.Send([]byte{byte(i)}, client.RequestOptions{Tag: uint64(i)}))(t)
			}
			for tag, r := range e.wait(t, c.answers) {
				if r.Err != nil || !bytes.Equal(r.Payload, large) {
					t.Errorf("request %d: %v, %d bytes", tag, r.Err, len(r.Payload))
				}
			}
			if _, runs := m.Requests(); runs != 1 {
				t.Errorf("a request ran %d times", runs)
			}
		})
	}
}

func TestRepeatedAnswers(t *testing.T) {
	openfiles.CheckLeaks(t)
	// The test asks for nothing twice, even on a slow machine, because a manager repeats
	// answers.
	m := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{NACKAfter: -1})
	relay := startRelay(t, m.Addr(), clienttest.Faults{}, clienttest.Faults{Repeat: 1})
	e := newEnds()
	c := dial(t, relay.Addr(), client.Options{Deliver: e.deliver, ResendAfter: patience})
	const n = 50
	for i := range n {
		must.Get(c.Send(picture(100+100*i, uint64(i)), client.RequestOptions{Tag: uint64(i)}))(t)
	}
	e.wait(t, n)
	wait.For(t, "every repeated datagram is counted", func() bool {
		// A result of one fragment was repeated after its end. A result of several had all
		// fragments except the last repeated before its end.
		return c.Stats().Duplicates == relay.Repeated.Load() && relay.Repeated.Load() >= n
	})
	e.wait(t, 0)
}

func TestCreditLimit(t *testing.T) {
	openfiles.CheckLeaks(t)
	const maxInFlight = 5
	type asked struct {
		from netip.AddrPort
		id   uint32
	}
	waiting := make(chan asked, 1000)
	m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		waiting <- asked{q.From, q.ID}
		return wire.Result{}, nil, false
	}, clienttest.ManagerOptions{})
	e := newEnds()
	c := dial(t, m.Addr(), client.Options{Deliver: e.deliver, InFlight: maxInFlight, ResendAfter: patience})
	const n = 300
	for i := range n {
		must.Get(c.Send(picture(100, uint64(i)), client.RequestOptions{Tag: uint64(i)}))(t)
	}
	// Batches of all sizes are answered at once. Each answer frees the slot of its request.
	for done := 0; done < n; {
		batch := []asked{<-waiting}
		for len(batch) < 1+done%maxInFlight && len(waiting) > 0 {
			batch = append(batch, <-waiting)
		}
		for _, a := range batch {
			m.Answer(a.from, a.id, wire.Result{Status: wire.StatusOK, Credit: 1}, nil)
		}
		done += len(batch)
	}
	e.wait(t, n)
	if held := m.MaxHeld(); held > maxInFlight {
		t.Errorf("%d requests were in flight at once, %d were allowed", held, maxInFlight)
	}
}

func TestProbe(t *testing.T) {
	openfiles.CheckLeaks(t)
	asked := 0
	m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		if asked++; asked <= 5 {
			return wire.Result{Status: wire.StatusBusy}, nil, true
		}
		return wire.Result{Status: wire.StatusOK, Credit: 4}, nil, true
	}, clienttest.ManagerOptions{})
	e := newEnds()
	c := dial(t, m.Addr(), client.Options{Deliver: e.deliver, InFlight: 1})
	const n = 20
	for i := range n {
		must.Get(c.Send(picture(10, uint64(i)), client.RequestOptions{Tag: uint64(i)}))(t)
	}
	for tag, r := range e.wait(t, n) {
		want := client.StatusOK
		if tag < 5 {
			want = client.StatusBusy
		}
		if r.Err != nil || r.Status != want {
			t.Errorf("request %d: %v, %v; want %v", tag, r.Err, r.Status, want)
		}
	}
}

func TestProof(t *testing.T) {
	const cookie = 0xa7a6a5a4a3a2a1a0
	t.Run("one per cookie", func(t *testing.T) {
		openfiles.CheckLeaks(t)
		m := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{Cookie: cookie})
		c := dial(t, m.Addr(), client.Options{ResendAfter: patience})
		for i := range uint64(5) {
			sent := picture(5000, i)
			r, err := c.Do(context.Background(), sent, client.RequestOptions{})
			if err != nil || !bytes.Equal(r.Payload, sent) {
				t.Fatalf("request %d: %v", i, err)
			}
		}
		if n := c.Stats().Proofs; n != 1 {
			t.Errorf("%d proofs, want 1", n)
		}
		if whole, runs := m.Requests(); whole != 5 || runs != 1 {
			t.Errorf("%d requests ran, one of them %d times; want 5, once each", whole, runs)
		}
	})
	t.Run("earlier questions are answered busy", func(t *testing.T) {
		openfiles.CheckLeaks(t)
		requests := make(chan clienttest.Request, 1)
		m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
			requests <- q
			return wire.Result{}, nil, false
		}, clienttest.ManagerOptions{})
		c := dial(t, m.Addr(), client.Options{ResendAfter: time.Millisecond})
		done := make(chan error, 1)
		go func() {
			_, err := c.Do(context.Background(), []byte{1}, client.RequestOptions{})
			done <- err
		}()
		q := <-requests
		wait.For(t, "the client asks", func() bool { return c.Stats().Resends > 0 })
		busy := wire.Result{Status: wire.StatusBusy, Cookie: cookie}
		for range 2 {
			m.Inject(q.From, wire.AppendResult(nil, q.ID, &busy, nil, wire.DefaultFragmentBytes, 0, true))
		}
		m.Answer(q.From, q.ID, wire.Result{Status: wire.StatusOK}, nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("a question has the cookie of another answer", func(t *testing.T) {
		openfiles.CheckLeaks(t)
		requests := make(chan clienttest.Request, 2)
		m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
			requests <- q
			return wire.Result{}, nil, false
		}, clienttest.ManagerOptions{Cookie: cookie})
		e := newEnds()
		c := dial(t, m.Addr(), client.Options{Deliver: e.deliver, ResendAfter: 20 * time.Millisecond})
		for i := range uint64(2) {
			must.Get(c.Send(picture(10, i), client.RequestOptions{Tag: i}))(t)
		}
		first, second := <-requests, <-requests
		ok := wire.Result{Status: wire.StatusOK, Cookie: cookie}
		m.Inject(first.From, wire.AppendResult(nil, first.ID, &ok, nil, wire.DefaultFragmentBytes, 0, false))
		e.wait(t, 1)
		wait.For(t, "the client asks with the cookie", func() bool { return c.Stats().Resends > 0 })
		busy := wire.Result{Status: wire.StatusBusy, Cookie: cookie} // for the first fragment 0, which had no cookie
		m.Inject(second.From, wire.AppendResult(nil, second.ID, &busy, nil, wire.DefaultFragmentBytes, 0, false))
		m.Inject(second.From, wire.AppendResult(nil, second.ID, &ok, nil, wire.DefaultFragmentBytes, 0, true))
		if r := e.wait(t, 1)[1]; r.Err != nil || r.Status != client.StatusOK {
			t.Errorf("second request: %v, %v", r.Err, r.Status)
		}
	})
	t.Run("busy after the proof is final", func(t *testing.T) {
		openfiles.CheckLeaks(t)
		m := startManager(t, func(clienttest.Request) (wire.Result, []byte, bool) {
			return wire.Result{Status: wire.StatusBusy}, nil, true
		}, clienttest.ManagerOptions{Cookie: cookie})
		c := dial(t, m.Addr(), client.Options{ResendAfter: patience})
		var got client.StatusError
		if _, err := c.Do(context.Background(), []byte{1}, client.RequestOptions{}); !errors.As(err, &got) || got != client.StatusError(client.StatusBusy) {
			t.Errorf("got %v, want busy", err)
		}
		if n := c.Stats().Proofs; n != 1 {
			t.Errorf("%d proofs, want 1", n)
		}
	})
}

func TestDoStatus(t *testing.T) {
	openfiles.CheckLeaks(t)
	for status := wire.StatusLate; status < wire.StatusMoved; status++ {
		m := startManager(t, func(clienttest.Request) (wire.Result, []byte, bool) {
			return wire.Result{Status: status, Credit: 1}, nil, true
		}, clienttest.ManagerOptions{})
		c := dial(t, m.Addr(), client.Options{})
		_, err := c.Do(context.Background(), []byte{1}, client.RequestOptions{})
		var got client.StatusError
		if !errors.As(err, &got) || client.Status(got) != client.Status(status+1) {
			t.Errorf("%v: got %v", status, err)
		}
	}
}

func TestExtension(t *testing.T) {
	openfiles.CheckLeaks(t)
	seen := make(chan clienttest.Request, 1)
	m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		seen <- q
		return wire.Result{Status: wire.StatusOK}, nil, true
	}, clienttest.ManagerOptions{})
	c := dial(t, m.Addr(), client.Options{})
	const day = 24 * time.Hour
	for _, c2 := range []struct {
		o        client.RequestOptions
		extended bool
		check    func(d time.Duration) bool
	}{
		{client.RequestOptions{}, false, func(d time.Duration) bool { return d == 0 }},
		{client.RequestOptions{Priority: 9}, true, func(d time.Duration) bool { return d == 0 }},
		{client.RequestOptions{Deadline: time.Hour}, true, func(d time.Duration) bool { return d > 0 && d <= time.Hour }},
		// The wait is subtracted.
		{client.RequestOptions{Deadline: day, Intended: time.Now().Add(time.Hour - day)}, true, func(d time.Duration) bool { return d > 0 && d <= time.Hour }},
	} {
		must.Get(c.Do(context.Background(), picture(3000, 1), c2.o))(t)
		q := <-seen
		if q.Extended != c2.extended || q.Extension.Priority != c2.o.Priority || !c2.check(q.Extension.Deadline) {
			t.Errorf("%+v: the manager saw %+v, extended %v", c2.o, q.Extension, q.Extended)
		}
	}
}

func TestTimeout(t *testing.T) {
	openfiles.CheckLeaks(t)
	m := startManager(t, silent, clienttest.ManagerOptions{})
	// The first two must be sent before their timeout, even on a slow machine. Of several
	// timeouts, one is enough for that.
	for timeout := 50 * time.Millisecond; ; timeout *= 4 {
		e := newEnds()
		c := dial(t, m.Addr(), client.Options{Deliver: e.deliver, InFlight: 2, Timeout: timeout, ResendAfter: patience})
		for i := range 5 {
			must.Get(c.Send(picture(2000, uint64(i)), client.RequestOptions{Tag: uint64(i)}))(t)
		}
		slow := false
		for tag, r := range e.wait(t, 5) {
			want := client.ErrUnsent
			if !r.Sent.IsZero() {
				want = client.ErrUnanswered
			}
			if r.Err != want {
				t.Errorf("request %d, sent at %v: got %v, want %v", tag, r.Sent, r.Err, want)
			}
			slow = slow || tag < 2 && r.Sent.IsZero()
		}
		if !slow {
			return
		}
		if timeout > patience {
			t.Fatalf("with room for two requests, they were not sent within %v", timeout)
		}
	}
}

func TestSendErrors(t *testing.T) {
	openfiles.CheckLeaks(t)
	m := startManager(t, silent, clienttest.ManagerOptions{})
	c := dial(t, m.Addr(), client.Options{InFlight: 1, QueueLimit: 2, FragmentBytes: 2, ResendAfter: patience})
	for _, size := range []int{0, 2*wire.MaxFragments + 1} {
		if _, err := c.Send(make([]byte, size), client.RequestOptions{}); err != client.ErrPictureSize {
			t.Errorf("%d bytes: got %v", size, err)
		}
	}
	must.Get(c.Send([]byte{1}, client.RequestOptions{}))(t)
	wait.For(t, "the first is in flight", func() bool { return c.Stats().Datagrams == 1 })
	for i := range 3 {
		want := error(nil)
		if i == 2 {
			want = client.ErrQueueFull
		}
		if _, err := c.Send([]byte{1}, client.RequestOptions{}); err != want {
			t.Errorf("request %d in the queue: got %v, want %v", i, err, want)
		}
	}
	must.OK(t, c.Close())
	if _, err := c.Send([]byte{1}, client.RequestOptions{}); err != client.ErrClosed {
		t.Errorf("after Close: got %v", err)
	}
}

func TestClose(t *testing.T) {
	openfiles.CheckLeaks(t)
	m := startManager(t, silent, clienttest.ManagerOptions{})
	e := newEnds()
	c := dial(t, m.Addr(), client.Options{Deliver: e.deliver, InFlight: 3})
	const n = 20
	for i := range n {
		must.Get(c.Send(picture(50_000, uint64(i)), client.RequestOptions{Tag: uint64(i)}))(t)
	}
	waiting := make(chan error)
	go func() {
		_, err := c.Do(context.Background(), picture(10, 1), client.RequestOptions{})
		waiting <- err
	}()
	wait.For(t, "some are in flight", func() bool { return c.Stats().Datagrams > 10 })
	must.OK(t, c.Close())
	for tag, r := range e.wait(t, n) {
		if r.Err != client.ErrClosed {
			t.Errorf("request %d: %v", tag, r.Err)
		}
	}
	if err := <-waiting; !errors.Is(err, client.ErrClosed) {
		t.Errorf("Do: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// TestUnreachable checks that a request to a closed port ends at once, and without success.
func TestUnreachable(t *testing.T) {
	openfiles.CheckLeaks(t)
	at, err := freeport.Find()
	must.OK(t, err)
	c := dial(t, at, client.Options{Timeout: time.Hour, ResendAfter: time.Hour})
	for _, size := range []int{1, 500_000} { // the receiver and the sender notice
		r, err := c.Do(context.Background(), picture(size, 1), client.RequestOptions{})
		if !errors.Is(err, client.ErrUnreachable) || r.Status != client.StatusUnanswered {
			t.Errorf("%d bytes: %v, status %v", size, err, r.Status)
		}
	}
}

// TestZeroResult checks that no result without an answer looks like a success.
func TestZeroResult(t *testing.T) {
	openfiles.CheckLeaks(t)
	m := startManager(t, silent, clienttest.ManagerOptions{})
	c := dial(t, m.Addr(), client.Options{Timeout: 10 * time.Millisecond})
	for name, picture := range map[string][]byte{"unanswered": {1}, "not sent": nil} {
		if r, err := c.Do(context.Background(), picture, client.RequestOptions{}); err == nil || r.Status == client.StatusOK {
			t.Errorf("%s: status %v, %v", name, r.Status, err)
		}
	}
	for status := range wire.Status(wire.NumStatuses) {
		if got := client.Status(status + 1).String(); got != status.String() {
			t.Errorf("status %v is %s", status, got)
		}
	}
}

// TestManagerRestart checks that a client survives a restart of the manager. A request ends with
// ErrUnreachable only after its timeout.
func TestManagerRestart(t *testing.T) {
	openfiles.CheckLeaks(t)
	m := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	at := m.Addr()
	c := dial(t, at, client.Options{ResendAfter: 2 * time.Millisecond})
	must.Get(c.Do(context.Background(), picture(1, 1), client.RequestOptions{}))(t)
	m.Close()
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Do(context.Background(), picture(5000, 1), client.RequestOptions{})
		waiting <- err
	}()
	wait.For(t, "the kernel reports that no process listens", func() bool { return c.Stats().Unreachable > 0 })
	startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{Listen: at})
	if err := <-waiting; err != nil {
		t.Error(err)
	}
}

// TestDoContext checks that Do returns the picture to its caller when the context ends.
func TestDoContext(t *testing.T) {
	openfiles.CheckLeaks(t)
	ids := make(chan clienttest.Request, 10)
	m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		ids <- q
		return wire.Result{}, nil, false
	}, clienttest.ManagerOptions{})
	c := dial(t, m.Addr(), client.Options{InFlight: 1})
	ctx, cancel := context.WithCancel(context.Background())
	p := picture(5000, 1)
	done := make(chan error)
	go func() {
		_, err := c.Do(ctx, p, client.RequestOptions{})
		done <- err
	}()
	q := <-ids
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	clear(p) // the test owns it again: the race detector checks that
	m.Answer(q.From, q.ID, wire.Result{Status: wire.StatusOK}, nil)
	wait.For(t, "the late answer counts as a duplicate", func() bool { return c.Stats().Duplicates == 1 })
}

// TestMalformed checks that datagrams that are no answers are counted and have no other effect.
func TestMalformed(t *testing.T) {
	openfiles.CheckLeaks(t)
	asked := make(chan clienttest.Request, 1)
	m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		asked <- q
		return wire.Result{}, nil, false
	}, clienttest.ManagerOptions{NACKAfter: -1}) // the manager sends only the NACKs below
	e := newEnds()
	c := dial(t, m.Addr(), client.Options{Deliver: e.deliver, ResendAfter: patience})
	id, err := c.Send(picture(5000, 1), client.RequestOptions{})
	must.OK(t, err)
	q := <-asked

	ok := wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw}
	data := wire.FragmentHeader(wire.TypeData, id, 1, 1024, 0)
	mirrored := make([]byte, wire.HeaderSize+1)
	data.Put(mirrored)
	nack := func(total uint32, count uint16) []byte {
		b, _ := wire.AppendNACK(nil, id, total, count, nil, 0)
		return b
	}
	for _, b := range [][]byte{
		[]byte("x"),
		bytes.Repeat([]byte{0}, 100),
		mirrored,
		nack(5001, 5), // another total
		nack(5000, 4), // another count
		wire.AppendResult(nil, id+1000, &ok, nil, 1024, 0, false), // an id not given out
		wire.AppendResult(nil, id-1, &ok, nil, 1024, 0, false),    // one before the first: looks like an ended request
		wire.AppendResult(nil, id, &ok, make([]byte, 150), 50, 0, false),
		wire.AppendResult(nil, id, &ok, make([]byte, 151), 50, 1, false), // another total than that of the fragment before
		wire.AppendResult(nil, id, &ok, make([]byte, 150), 60, 1, false), // another fragment size
		wire.AppendResult(nil, id, &ok, make([]byte, 150), 50, 0, false), // again
		wire.AppendResult(nil, id, &ok, make([]byte, 150), 50, 1, false),
		wire.AppendResult(nil, id, &ok, make([]byte, 100), 50, 1, false), // another total, of as many fragments as have arrived
	} {
		m.Inject(q.From, b)
	}
	m.Answer(q.From, id, ok, []byte{1, 2, 3, 4})
	r := e.wait(t, 1)[0]
	if r.Err != nil || !bytes.Equal(r.Payload, []byte{1, 2, 3, 4}) {
		t.Errorf("got %v, %v", r.Err, r.Payload)
	}
	s := c.Stats()
	if want := map[string]uint64{"short": 1, "magic": 1, "type": 1}; !maps.Equal(s.Malformed, want) {
		t.Errorf("malformed %v", s.Malformed)
	}
	if s.Foreign != 6 || s.Duplicates != 2 || s.NACKs != 0 || s.Answers != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestResultTooLarge(t *testing.T) {
	openfiles.CheckLeaks(t)
	m := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	c := dial(t, m.Addr(), client.Options{MaxResultBytes: 2000})
	if _, err := c.Do(context.Background(), picture(2001, 1), client.RequestOptions{}); !errors.Is(err, client.ErrResultSize) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Do(context.Background(), picture(2000, 1), client.RequestOptions{}); err != nil {
		t.Errorf("a result of the size allowed: %v", err)
	}
}

func TestDeliverMaySend(t *testing.T) {
	openfiles.CheckLeaks(t)
	m := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	const n = 100
	done := make(chan struct{})
	var c *client.Client
	ready := make(chan struct{})
	c = dial(t, m.Addr(), client.Options{Deliver: func(r *client.Result) {
		<-ready
		if r.Tag == n {
			close(done)
			return
		}
		if _, err := c.Send([]byte{1}, client.RequestOptions{Tag: r.Tag + 1}); err != nil {
			t.Errorf("send from Deliver: %v", err)
		}
	}})
	close(ready)
	must.Get(c.Send([]byte{1}, client.RequestOptions{Tag: 1}))(t)
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the chain of requests broke")
	}
}

func TestDialOptions(t *testing.T) {
	for _, o := range []client.Options{{FragmentBytes: -1}, {FragmentBytes: wire.MaxDatagram}, {Timeout: -1}, {PaceBytes: -1}, {QueueLimit: -1}} {
		if c, err := client.Dial(context.Background(), "127.0.0.1:9", o); err == nil {
			_ = c.Close()
			t.Errorf("%+v was accepted", o)
		}
	}
	if c, err := client.Dial(context.Background(), "no port", client.Options{}); err == nil {
		_ = c.Close()
		t.Error("an address without a port was accepted")
	}
}

// A request that gets no credit within the objective ends late and unsent. A request with a
// longer deadline continues to wait.
func TestClientDropsLateRequests(t *testing.T) {
	openfiles.CheckLeaks(t)
	const objective = 20 * time.Millisecond
	m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		switch len(q.Picture) {
		case 1: // leaves credit for one
			return wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1, Credit: 1, Objective: objective}, nil, true
		case 2: // holds the credit
			return wire.Result{}, nil, false
		}
		return wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1, Credit: 1, Objective: objective}, nil, true
	}, clienttest.ManagerOptions{})
	ends := make(chan client.Result, 10)
	c := dial(t, m.Addr(), client.Options{Timeout: 10 * time.Second, Deliver: func(r *client.Result) { ends <- *r }})
	must.Get(c.Do(t.Context(), make([]byte, 1), client.RequestOptions{}))(t)
	send := func(bytes int, o client.RequestOptions) uint32 {
		t.Helper()
		id, err := c.Send(make([]byte, bytes), o)
		must.OK(t, err)
		return id
	}
	holder := send(2, client.RequestOptions{Deadline: time.Minute})
	wait.For(t, "two requests arrive", func() bool { whole, _ := m.Requests(); return whole == 2 })
	began := time.Now()
	stale := send(5, client.RequestOptions{Intended: began.Add(-time.Second)})
	late, patient := send(3, client.RequestOptions{}), send(4, client.RequestOptions{Deadline: time.Minute})
	for _, want := range []uint32{stale, late} {
		r := <-ends
		if r.ID != want || !errors.Is(r.Err, client.ErrLate) || !r.Sent.IsZero() {
			t.Fatalf("request %d ended with %v, sent at %v; want %d with client.ErrLate, unsent", r.ID, r.Err, r.Sent, want)
		}
		if after := r.Received.Sub(began); want == late && after < objective/2 {
			t.Errorf("dropped after %v, want about %v", after, objective)
		}
	}
	if got := c.Stats().Late; got != 2 {
		t.Errorf("Stats.Late is %d, want 2", got)
	}
	if whole, _ := m.Requests(); whole != 2 {
		t.Errorf("%d requests arrived, want the first two", whole)
	}
	m.Answer(c.LocalAddr(), holder, wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1, Credit: 1, Objective: objective}, nil)
	for _, want := range []uint32{holder, patient} {
		if r := <-ends; r.ID != want || r.Err != nil {
			t.Fatalf("request %d ended with %v, want %d answered", r.ID, r.Err, want)
		}
	}
}

func TestWanted(t *testing.T) {
	openfiles.CheckLeaks(t)
	got := make(chan wire.Extension, 1)
	m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		got <- q.Extension
		return wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1, Credit: 8}, nil, true
	}, clienttest.ManagerOptions{})
	c := dial(t, m.Addr(), client.Options{})
	for _, row := range []struct {
		score float64
		want  uint16
	}{{0, 0}, {-1, 0}, {math.NaN(), 0}, {1e-9, 1}, {0.5, 0x7fff}, {1, 0xffff}, {math.Inf(1), 0xffff}} {
		must.Get(c.Do(t.Context(), []byte{1}, client.RequestOptions{Stream: 7, LowestScore: row.score}))(t)
		if e := <-got; e.Stream != 7 || e.LowestScore != row.want {
			t.Errorf("score %v: got %+v, want stream 7 and score %d", row.score, e, row.want)
		}
	}
}

// A request without a deadline has the objective as its deadline.
func TestObjectiveIsTheDeadline(t *testing.T) {
	openfiles.CheckLeaks(t)
	const objective = time.Hour
	got := make(chan wire.Extension, 3)
	m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		got <- q.Extension
		return wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1, Credit: 8, Objective: objective}, nil, true
	}, clienttest.ManagerOptions{})
	c := dial(t, m.Addr(), client.Options{})
	for _, row := range []struct {
		name     string
		options  client.RequestOptions
		from, to time.Duration
	}{
		{"objective unknown", client.RequestOptions{}, 0, 0},
		{"objective", client.RequestOptions{Intended: time.Now().Add(-time.Minute)}, objective - 2*time.Minute, objective - time.Minute},
	} {
		must.Get(c.Do(t.Context(), []byte{1}, row.options))(t)
		if e := <-got; e.Deadline < row.from || e.Deadline > row.to {
			t.Errorf("%s: the manager received a deadline of %v, want %v to %v", row.name, e.Deadline, row.from, row.to)
		}
	}
}

func TestPictureFormats(t *testing.T) {
	nv12 := client.RequestOptions{Picture: wire.Picture{Format: wire.FormatNV12, Width: 40, Height: 30}}
	pixels := make([]byte, 1800)
	for name, row := range map[string]struct {
		status        wire.Status
		largest       uint32
		first, second string // parts of the errors of two requests; empty for none
	}{
		"read":      {wire.StatusOK, 1800, "", ""},
		"too large": {wire.StatusRefused, 1799, "has 1800 bytes, and the function takes at most 1799", "takes at most 1799"},
		"not taken": {wire.StatusRefused, 0, "set its max_picture", "set its max_picture"},
		"not read":  {wire.StatusOK, 0, client.ErrPictureFormat.Error(), "set its max_picture"},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
				if requests.Add(1); q.Extension.Picture != nv12.Picture {
					t.Errorf("picture is %+v, want %+v", q.Extension.Picture, nv12.Picture)
				}
				return wire.Result{Status: row.status, Credit: 8, LargestPicture: row.largest}, nil, true
			}, clienttest.ManagerOptions{})
			c := dial(t, m.Addr(), client.Options{})
			for i, want := range []string{row.first, row.second} {
				_, err := c.Do(t.Context(), pixels, nv12)
				if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("request %d: error is %v, want %q", i, err, want)
				}
			}
			if _, err := c.Do(t.Context(), pixels[1:], nv12); !errors.Is(err, client.ErrPictureFormat) {
				t.Errorf("error is %v, want %v", err, client.ErrPictureFormat)
			}
			if want := map[bool]int32{true: 2, false: 1}[row.first == ""]; requests.Load() != want {
				t.Errorf("%d requests were sent, want %d", requests.Load(), want)
			}
		})
	}
}
