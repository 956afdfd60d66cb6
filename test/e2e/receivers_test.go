package e2e

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// A function with several sockets on its port answers several clients, each with the
// results of its own pictures, and counts every request once. A function that is added has
// its own number of sockets, and all are closed with it.
func TestReceivers(t *testing.T) {
	const receivers, clients, each = 3, 8, 150
	config := strings.Replace(oneFunction(nodetest.Card(t, "digest", small)), "port: 0,", fmt.Sprintf("port: %d,", freePort(t).Port()), 1)
	nd := start(t, "receivers: 3\n"+config)
	got := nodetest.NewAnswers()
	var senders sync.WaitGroup
	for k := range clients {
		c := nodetest.Dial(t, nd, "fn", client.Options{Deliver: got.Deliver(small), Timeout: patience, InFlight: 4})
		senders.Go(func() { nodetest.Send(t, c, small, k*each, each, time.Millisecond) })
	}
	senders.Wait()
	got.Wait(clients * each)
	nodetest.Settled(t, nd, "fn")
	f, err := nd.Function("fn")
	must.OK(t, err)
	ok, busy, wrong, lost := got.By[client.StatusOK], got.By[client.StatusBusy], got.Wrong, got.Lost
	if ok+busy != clients*each || ok < clients*each/2 || wrong != 0 || lost != 0 {
		t.Errorf("%s; want %d answers, right ones", got, clients*each)
	}
	if f.Receivers != receivers || f.Accepted != uint64(ok) || f.Lost != 0 {
		t.Errorf("%d receivers accepted %d requests and lost %d; want %d, %d, none", f.Receivers, f.Accepted, f.Lost, receivers, ok)
	}
	if out, err := run(t, nd.Dir, "if", "add", "second", "--model", nodetest.Card(t, "other", small), "--receivers", "2"); err != nil {
		t.Fatalf("add: %v\n%s", err, out)
	}
	if second, err := nd.Function("second"); err != nil || second.Receivers != 2 {
		t.Errorf("the added function has %d receivers, %v; want 2", second.Receivers, err)
	}
	at := nodetest.Address(t, nd, "fn")
	if conn, err := net.ListenPacket("udp", at); err == nil {
		conn.Close()
		t.Errorf("%s is open to another process", at)
	}
	if out, err := run(t, nd.Dir, "if", "remove", "fn"); err != nil {
		t.Fatalf("remove: %v\n%s", err, out)
	}
	conn, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatalf("the removed function's port: %v", err)
	}
	conn.Close()
}

// At SIGTERM under load, requests from all sockets are answered.
func TestTerminateReceivers(t *testing.T) {
	const clients, each = 6, 100
	config := strings.Replace(oneFunction(nodetest.Card(t, "digest", small)), "port: 0,", "port: 0, receivers: 3,", 1)
	nd := start(t, config, "PENSTOCK_NULL=busy=5ms")
	got := nodetest.NewAnswers()
	var all []*client.Client
	var senders sync.WaitGroup
	for k := range clients {
		c := nodetest.Dial(t, nd, "fn", client.Options{Deliver: got.Deliver(small), Timeout: patience, InFlight: 8})
		all = append(all, c)
		senders.Go(func() { nodetest.Send(t, c, small, k*each, each, time.Millisecond) })
	}
	senders.Wait()
	f, err := nd.Function("fn")
	must.OK(t, err)
	if f.Receivers != 3 || f.Accepted == 0 {
		t.Errorf("%d receivers accepted %d, want 3, and some", f.Receivers, f.Accepted)
	}
	if err := nd.Stop(); err != nil {
		t.Fatalf("want exit status 0: %v", err)
	}
	wait.For(t, fmt.Sprintf("answers to the %d requests that were accepted before the end", f.Accepted), func() bool { return got.Accepted() >= f.Accepted })
	for _, c := range all {
		c.Close()
	}
	if got.Wrong != 0 {
		t.Errorf("%s; want no wrong answer", got)
	}
}

// A second node, with one or several sockets per function, gets an error for the port of a
// function with several sockets.
func TestReceiversPortInUse(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	nd := start(t, "receivers: 3\n"+oneFunction(card))
	_, port, _ := strings.Cut(nodetest.Address(t, nd, "fn"), ":")
	for _, n := range []string{"1", "3"} {
		other := start(t, "receivers: "+n+"\n"+oneFunction(nodetest.Card(t, "another", small)))
		out, err := run(t, other.Dir, "if", "add", "second", "--model", card, "--port", port)
		if err == nil || !strings.Contains(out, "is in use by another process") {
			t.Errorf("a node with %s receivers: %v\n%s; want that port %s is taken", n, err, out, port)
		}
	}
}
