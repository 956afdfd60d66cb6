package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// moving is a handler that sends clients that follow to another node, while it is set.
type moving struct {
	to       atomic.Pointer[netip.AddrPort]
	lifetime time.Duration
	always   bool // also clients that do not follow
	moves    atomic.Int64
}

func (m *moving) set(to netip.AddrPort) { m.to.Store(&to) }

func (m *moving) handle(q clienttest.Request) (wire.Result, []byte, bool) {
	if to := m.to.Load(); to != nil && (q.Extension.Follows || m.always) {
		m.moves.Add(1)
		return wire.Result{Status: wire.StatusMoved, Moved: *to, Lifetime: m.lifetime}, nil, true
	}
	return clienttest.Echo(8)(q)
}

func dialAll(t *testing.T, o client.Options, to ...netip.AddrPort) *client.Client {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = patience
	}
	var list []string
	for _, a := range to {
		list = append(list, a.String())
	}
	c := must.Get(client.Dial(t.Context(), strings.Join(list, ","), o))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// echoes fails the test unless a request of several fragments is answered with its picture.
func echoes(t *testing.T, c *client.Client, seed uint64) {
	t.Helper()
	sent := picture(5000, seed)
	r, err := c.Do(t.Context(), sent, client.RequestOptions{})
	if err != nil || string(r.Payload) != string(sent) {
		t.Fatalf("request %d: %v, %d bytes", seed, err, len(r.Payload))
	}
}

func complete(m *clienttest.Manager) int { n, _ := m.Requests(); return n }

func TestMoved(t *testing.T) {
	openfiles.CheckLeaks(t)
	from := &moving{lifetime: time.Second}
	a, b := startManager(t, from.handle, clienttest.ManagerOptions{}), startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	c := dialAll(t, client.Options{}, a.Addr(), b.Addr())
	echoes(t, c, 0)
	from.set(b.Addr())
	began := time.Now()
	for i := range uint64(20) {
		echoes(t, c, i)
	}
	if moves := from.moves.Load(); time.Since(began) < time.Second && moves != 1 || complete(b) != 20 {
		t.Errorf("moved %d times, %d requests at the other node; want 1, 20", moves, complete(b))
	}
	wait.For(t, "the client returns after the lifetime", func() bool { echoes(t, c, 1); return from.moves.Load() > 1 })
}

// A request in flight at the node that moves the client is answered there.
func TestMovedInFlight(t *testing.T) {
	openfiles.CheckLeaks(t)
	held := make(chan clienttest.Request, 1)
	from := &moving{}
	b := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	a := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		if from.to.Load() == nil {
			held <- q
			return wire.Result{}, nil, false
		}
		return from.handle(q)
	}, clienttest.ManagerOptions{})
	c := dialAll(t, client.Options{ResendAfter: time.Hour}, a.Addr(), b.Addr())
	first := make(chan error, 1)
	go func() {
		r, err := c.Do(context.Background(), picture(3000, 1), client.RequestOptions{})
		if err == nil && string(r.Payload) != "from the first node" {
			err = fmt.Errorf("payload %q", r.Payload)
		}
		first <- err
	}()
	q := <-held
	from.set(b.Addr())
	echoes(t, c, 2)
	a.Answer(q.From, q.ID, wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Credit: 8}, []byte("from the first node"))
	must.OK(t, <-first)
}

func TestMovedTrust(t *testing.T) {
	there := netip.MustParsePrefix("127.0.0.2/32")
	for _, c := range []struct {
		name    string
		given   int
		trusted []netip.Prefix
		follows bool
	}{
		{"one address follows nobody", 1, nil, false},
		{"a network is trusted", 1, []netip.Prefix{there}, true},
		{"another network is trusted", 1, []netip.Prefix{netip.MustParsePrefix("127.0.0.3/32")}, false},
		{"another address is given", 2, nil, false},
		{"another address is given, and the network", 2, []netip.Prefix{there}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			openfiles.CheckLeaks(t)
			from := &moving{lifetime: time.Minute}
			a, given := startManager(t, from.handle, clienttest.ManagerOptions{}), startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
			b := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{Listen: netip.MustParseAddrPort("127.0.0.2:0")})
			from.set(b.Addr())
			cl := dialAll(t, client.Options{Trusted: c.trusted}, []netip.AddrPort{a.Addr(), given.Addr()}[:c.given]...)
			for i := range uint64(5) {
				echoes(t, cl, i)
			}
			if got := complete(b); c.follows != (got == 5) || !c.follows && got > 0 {
				t.Errorf("%d requests at the node", got)
			}
			if n := from.moves.Load(); n > 1 || complete(given) > 0 {
				t.Errorf("moved %d times, and %d requests at the given node", n, complete(given))
			}
		})
	}
}

// Nodes that send a client in a circle keep it after a few hops.
func TestMovedCircle(t *testing.T) {
	for n := 1; n <= 6; n++ {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			openfiles.CheckLeaks(t)
			handlers, addresses := make([]*moving, n), make([]netip.AddrPort, n)
			for i := range handlers {
				handlers[i] = &moving{lifetime: 30 * time.Second}
				addresses[i] = startManager(t, handlers[i].handle, clienttest.ManagerOptions{}).Addr()
			}
			for i, h := range handlers {
				h.set(addresses[(i+1)%n])
			}
			given := addresses
			if n == 1 {
				given = append(given, startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{}).Addr())
			}
			c := dialAll(t, client.Options{}, given...)
			for i := range uint64(10) {
				echoes(t, c, i)
			}
			moves := int64(0)
			for _, h := range handlers {
				moves += h.moves.Load()
			}
			if moves == 0 || moves > 4*10 || n <= 4 && moves > int64(n) {
				t.Errorf("10 requests were moved %d times", moves)
			}
		})
	}
}

// A node that moves clients that do not follow gets no further fragments.
func TestMovedAlways(t *testing.T) {
	openfiles.CheckLeaks(t)
	from := &moving{lifetime: 65535 * time.Second, always: true}
	a := startManager(t, from.handle, clienttest.ManagerOptions{})
	unused := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	from.set(netip.MustParseAddrPort("127.0.0.2:9"))
	c := dialAll(t, client.Options{Timeout: 300 * time.Millisecond, ResendAfter: time.Hour}, a.Addr(), unused.Addr())
	_, err := c.Do(t.Context(), picture(5000, 1), client.RequestOptions{})
	if s := c.Stats(); !errors.Is(err, client.ErrUnanswered) || from.moves.Load() != 2 || s.Datagrams != 10 || s.Foreign != 1 {
		t.Errorf("%v, moved %d times, stats %+v", err, from.moves.Load(), s)
	}
}

// A request can be moved only by its node.
func TestMovedForged(t *testing.T) {
	openfiles.CheckLeaks(t)
	held := make(chan clienttest.Request, 1)
	a := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) { held <- q; return wire.Result{}, nil, false }, clienttest.ManagerOptions{})
	b := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	forger := must.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer forger.Close()
	c := dialAll(t, client.Options{ResendAfter: time.Hour}, a.Addr(), b.Addr())
	done := make(chan error, 1)
	go func() {
		_, err := c.Do(context.Background(), picture(100, 1), client.RequestOptions{})
		done <- err
	}()
	q := <-held
	moved := wire.Result{Status: wire.StatusMoved, Moved: b.Addr(), Lifetime: time.Minute}
	must.Get(forger.WriteTo(wire.AppendResult(nil, q.ID, &moved, nil, 1024, 0, false), net.UDPAddrFromAddrPort(q.From)))(t)
	b.Inject(q.From, wire.AppendResult(nil, q.ID, &moved, nil, 1024, 0, false))
	for i := uint32(1); i < 100; i++ { // other requests
		a.Inject(q.From, wire.AppendResult(nil, q.ID+i, &moved, nil, 1024, 0, false))
	}
	a.Answer(q.From, q.ID, wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Credit: 8}, []byte("right"))
	must.OK(t, <-done)
	if n := complete(b); n != 0 {
		t.Errorf("%d requests followed a forged answer", n)
	}
}

// Each node has its own token.
func TestMovedKey(t *testing.T) {
	openfiles.CheckLeaks(t)
	key := []byte("a key of the function")
	file := keyFile(t, string(key))
	from := &moving{lifetime: time.Minute}
	a, b := startManager(t, from.handle, clienttest.ManagerOptions{Key: key}), startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{Key: key})
	c := dialAll(t, client.Options{KeyFile: file}, a.Addr(), b.Addr())
	echoes(t, c, 1)
	from.set(b.Addr())
	for i := range uint64(5) {
		echoes(t, c, i)
	}
	if complete(b) != 5 {
		t.Errorf("%d requests at the other node", complete(b))
	}
}

// Many requests are in flight while the nodes send the client to one another.
func TestMovedStorm(t *testing.T) {
	openfiles.CheckLeaks(t)
	const nodes, requests = 4, 2000
	handlers, addresses := make([]*moving, nodes), make([]netip.AddrPort, nodes)
	for i := range handlers {
		handlers[i] = &moving{}
		addresses[i] = startManager(t, handlers[i].handle, clienttest.ManagerOptions{}).Addr()
	}
	e := newEnds()
	c := dialAll(t, client.Options{Deliver: e.deliver}, addresses...)
	for i := range requests {
		handlers[i%nodes].set(addresses[(i*7+i/nodes)%nodes])
		must.Get(c.Send(picture(100+i%3000, uint64(i)), client.RequestOptions{Tag: uint64(i)}))(t)
	}
	for range requests {
		select {
		case <-e.ended:
		case <-time.After(patience):
			t.Fatalf("%d requests ended; %+v", len(e.results), c.Stats())
		}
	}
	for tag, r := range e.results {
		if r.Err != nil || r.Status != client.StatusOK || string(r.Payload) != string(picture(100+int(tag)%3000, tag)) {
			t.Fatalf("request %d: %v, %v", tag, r.Status, r.Err)
		}
	}
	if len(e.repeated) > 0 {
		t.Errorf("requests %v ended twice", e.repeated)
	}
}

// The client keeps few sockets of nodes to which it was moved.
func TestMovedPaths(t *testing.T) {
	openfiles.CheckLeaks(t)
	const nodes = 30
	var last []*moving
	first := &moving{}
	a := startManager(t, first.handle, clienttest.ManagerOptions{})
	before := openfiles.Count(t)
	last = append(last, first)
	c := dialAll(t, client.Options{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.1.0/24")}}, a.Addr())
	for i := range nodes {
		next := &moving{}
		b := startManager(t, next.handle, clienttest.ManagerOptions{Listen: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 1, byte(i + 1)}), 0)})
		for _, m := range last {
			m.set(b.Addr())
		}
		last = append(last, next)
		echoes(t, c, uint64(i))
		if complete(b) != 1 {
			t.Fatalf("node %d was not used", i)
		}
	}
	if open := openfiles.Count(t) - before - nodes; open > 10 {
		t.Errorf("the client has %d sockets", open)
	}
}

func TestSilent(t *testing.T) {
	openfiles.CheckLeaks(t)
	quiet := startManager(t, silent, clienttest.ManagerOptions{})
	b := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	for _, c := range []struct {
		name string
		dead netip.AddrPort
	}{{"no answer", quiet.Addr()}, {"no process", must.Get(freeport.Find())(t)}} {
		t.Run(c.name, func(t *testing.T) {
			before := complete(b)
			cl := dialAll(t, client.Options{ResendAfter: 20 * time.Millisecond}, c.dead, b.Addr())
			var all sync.WaitGroup
			for i := range uint64(20) {
				all.Go(func() { echoes(t, cl, i) })
			}
			all.Wait()
			echoes(t, cl, 99)
			if got := complete(b) - before; got != 21 {
				t.Errorf("%d requests at the other node, want 21", got)
			}
		})
	}
	if n := complete(quiet); n > 8 {
		t.Errorf("%d requests at the silent node, want the first credit", n)
	}
}

func TestAllUnreachable(t *testing.T) {
	openfiles.CheckLeaks(t)
	c := dialAll(t, client.Options{}, must.Get(freeport.Find())(t), must.Get(freeport.Find())(t), must.Get(freeport.Find())(t))
	began := time.Now()
	if _, err := c.Do(t.Context(), picture(5000, 1), client.RequestOptions{}); !errors.Is(err, client.ErrUnreachable) || time.Since(began) > patience/2 {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// An answer of the node before still counts, also if all nodes were silent.
func TestSilentThenAnswer(t *testing.T) {
	openfiles.CheckLeaks(t)
	held := make(chan clienttest.Request, 1)
	a := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) { held <- q; return wire.Result{}, nil, false }, clienttest.ManagerOptions{})
	b := startManager(t, silent, clienttest.ManagerOptions{})
	c := dialAll(t, client.Options{ResendAfter: 10 * time.Millisecond}, a.Addr(), b.Addr())
	done := make(chan error, 1)
	go func() {
		r, err := c.Do(context.Background(), picture(5000, 1), client.RequestOptions{})
		if err == nil && string(r.Payload) != "late" {
			err = fmt.Errorf("payload %q", r.Payload)
		}
		done <- err
	}()
	q := <-held
	wait.For(t, "the other node has the request", func() bool { return complete(b) == 1 })
	a.Answer(q.From, q.ID, wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Credit: 8}, []byte("late"))
	must.OK(t, <-done)
}

// A node may be quiet for the objective.
func TestSlowIsNotSilent(t *testing.T) {
	openfiles.CheckLeaks(t)
	held := make(chan clienttest.Request, 100)
	a := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		held <- q
		return wire.Result{}, nil, false
	}, clienttest.ManagerOptions{})
	b := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	c := dialAll(t, client.Options{ResendAfter: time.Millisecond}, a.Addr(), b.Addr())
	slow := wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Credit: 8, Objective: time.Hour}
	for i := range 2 {
		done := make(chan error, 1)
		go func() {
			_, err := c.Do(context.Background(), picture(100, 1), client.RequestOptions{})
			done <- err
		}()
		q := <-held
		if i == 1 {
			// Several questions without an answer.
			wait.For(t, "the client asks", func() bool { return c.Stats().Resends >= 6 })
		}
		a.Answer(q.From, q.ID, slow, []byte("slow"))
		must.OK(t, <-done)
	}
	if n := complete(b); n > 0 {
		t.Errorf("%d requests at the other node", n)
	}
}

// A node is killed while requests arrive at it. Each is answered, by the other node.
func TestKilled(t *testing.T) {
	for name, kill := range map[string]bool{"no process listens": true, "the path is cut": false} {
		t.Run(name, func(t *testing.T) {
			openfiles.CheckLeaks(t)
			a, b := startManager(t, clienttest.Echo(64), clienttest.ManagerOptions{}), startManager(t, clienttest.Echo(64), clienttest.ManagerOptions{})
			var cut atomic.Bool
			drop := clienttest.Faults{Drop: func([]byte) bool { return cut.Load() }}
			relay := startRelay(t, a.Addr(), drop, drop)
			first := relay.Addr()
			if kill {
				first = a.Addr()
			}
			e := newEnds()
			c := dialAll(t, client.Options{Deliver: e.deliver, ResendAfter: 30 * time.Millisecond}, first, b.Addr())
			const requests = 400
			for i := range requests {
				if i == requests/2 {
					wait.For(t, "the node has answered", func() bool { return c.Stats().Answers > 0 })
					if cut.Store(true); kill {
						a.Close()
					}
				}
				must.Get(c.Send(picture(2000, uint64(i)), client.RequestOptions{Tag: uint64(i)}))(t)
			}
			for range requests {
				select {
				case <-e.ended:
				case <-time.After(patience):
					t.Fatalf("%d requests ended; %+v", len(e.results), c.Stats())
				}
			}
			for tag, r := range e.results {
				if r.Err != nil || r.Status != client.StatusOK || string(r.Payload) != string(picture(2000, tag)) {
					t.Errorf("request %d: %v, %v", tag, r.Status, r.Err)
				}
			}
			if len(e.repeated) > 0 {
				t.Errorf("requests %v ended twice", e.repeated)
			}
		})
	}
}

func TestDialList(t *testing.T) {
	openfiles.CheckLeaks(t)
	for list, want := range map[string]string{
		"127.0.0.1:1,127.0.0.1": "missing port",
		"127.0.0.1:1,":          "missing port",
		"127.0.0.1:x":           "unknown port",
		"127.0.0.1:70000":       "invalid port",
	} {
		if _, err := client.Dial(t.Context(), list, client.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", list, err, want)
		}
	}
	m := startManager(t, clienttest.Echo(8), clienttest.ManagerOptions{})
	c := must.Get(client.Dial(t.Context(), fmt.Sprintf("localhost:%d,127.0.0.1:%d", m.Addr().Port(), m.Addr().Port()), client.Options{Timeout: patience}))(t)
	defer c.Close()
	echoes(t, c, 1)
}
