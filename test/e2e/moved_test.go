package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// Clients of two nodes: each sends a burst every burstEvery, half of what a node can answer. All together send more at once
// than a port has room for at first.
const (
	movers       = 16
	moverBurst   = 5
	burstEvery   = 100 * time.Millisecond
	moverSeconds = 2
	moversSend   = movers * moverBurst * int(moverSeconds*time.Second/burstEvery)
)

// moving are two nodes with the same function, and clients that begin at the first.
type moving struct {
	nodes     [2]*node.Node
	addresses []string
	clients   []*client.Client
	sent      int

	mu     sync.Mutex // guards below
	ends   map[string]int
	ended  int
	latest time.Duration // the longest time from a send to its answer
	broken time.Time     // when the first node broke
	back   []time.Time   // of each client, the first ok answer to a request sent after that
}

func startMoving(t *testing.T, objective time.Duration) *moving {
	t.Helper()
	m := &moving{ends: map[string]int{}, back: make([]time.Time, movers)}
	for i := range m.nodes {
		m.nodes[i] = start(t, fmt.Sprintf("shares: {tune: false}\nfunctions: [{name: fn, model: %s, port: 0, slo: %v, environment: {%s: sleep=5ms}}]\n",
			nodetest.Card(t, "digest", small), objective, null.Variable))
		m.addresses = append(m.addresses, nodetest.Address(t, m.nodes[i], "fn"))
	}
	for i := range movers {
		deliver := func(r *client.Result) { m.deliver(i, r) }
		c := must.Get(client.Dial(t.Context(), strings.Join(m.addresses, ","), client.Options{Deliver: deliver}))(t)
		t.Cleanup(func() { c.Close() })
		m.clients = append(m.clients, c)
	}
	for i := range 2 * movers { // then each knows how much room it has, next to the others
		m.send(t, i%movers)
		m.wait(t)
	}
	return m
}

func (m *moving) deliver(i int, r *client.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended++
	switch {
	case r.Err != nil:
		m.ends[r.Err.Error()]++
		return
	case r.Status == client.StatusOK && !nodetest.Right(r, small):
		m.ends["wrong"]++
	default:
		m.ends[r.Status.String()]++
	}
	m.latest = max(m.latest, r.Received.Sub(r.Intended))
	if r.Status == client.StatusOK && !m.broken.IsZero() && r.Intended.After(m.broken) && m.back[i].IsZero() {
		m.back[i] = r.Received
	}
}

func (m *moving) send(t *testing.T, i int) {
	t.Helper()
	_, err := m.clients[i].Send(nodetest.Picture(small, m.sent), client.RequestOptions{Tag: uint64(m.sent)})
	must.OK(t, err)
	m.sent++
}

// load sends bursts. It calls then after half of them.
func (m *moving) load(t *testing.T, then func()) {
	t.Helper()
	const bursts = moversSend / movers / moverBurst
	due := time.NewTicker(burstEvery)
	defer due.Stop()
	for burst := range bursts {
		for i := range movers * moverBurst {
			m.send(t, i/moverBurst)
		}
		if burst == bursts/2 {
			then() // the burst is in flight
		}
		<-due.C
	}
	m.wait(t)
}

func (m *moving) wait(t *testing.T) {
	t.Helper()
	wait.For(t, "all requests to end", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.ended == m.sent
	})
}

// breaks notes that the first node breaks now. It returns how many requests were answered before.
func (m *moving) breaks() (answered int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = time.Now()
	return m.ended
}

func (m *moving) results(t *testing.T, i int, result string) int {
	t.Helper()
	return int(nodetest.Metric(t, m.nodes[i], fmt.Sprintf(`penstock_results_total{function="fn",result="%s"}`, result)))
}

// TestDrainMovesClients drains a node under load. Each request is answered in time, by one of the nodes.
func TestDrainMovesClients(t *testing.T) {
	const objective = time.Second // a busy machine delays answers, too
	m := startMoving(t, objective)
	m.load(t, func() {
		_, err := control.SendOrder(nodetest.Context(t), m.nodes[0].Dir, control.PeersPath, control.PeersOrder{
			Function: "fn", Self: netip.MustParseAddrPort(m.addresses[0]), Drain: true,
			Peers: []control.Peer{{Address: netip.MustParseAddrPort(m.addresses[1]), Weight: 100}},
		})
		must.OK(t, err)
	})
	moved, there := m.results(t, 0, "moved"), m.results(t, 1, "ok")
	t.Logf("%v, the latest after %v; %d answers moved, %d requests answered by the other node", m.ends, m.latest, moved, there)
	if m.ends["ok"] != m.sent || m.latest > objective {
		t.Errorf("%v, the latest after %v; want %d ok within %v", m.ends, m.latest, m.sent, objective)
	}
	if moved < movers || there < m.sent/4 {
		t.Errorf("%d answers moved, %d requests answered by the other node", moved, there)
	}
}

// TestNodeBreaks kills or stops a node under load: all clients go on to the other one.
func TestNodeBreaks(t *testing.T) {
	for name, breaks := range map[string]func(m *moving){
		"killed": func(m *moving) {
			nodetest.Kill(t, nodetest.Child(t, m.nodes[0], "manager"))
			for _, p := range nodetest.Processes(m.nodes[0].Dir) {
				_ = syscall.Kill(p.PID, syscall.SIGKILL) // some end with the manager
			}
		},
		"silent": func(m *moving) { must.OK(t, syscall.Kill(nodetest.Child(t, m.nodes[0], "manager"), syscall.SIGSTOP)) },
	} {
		t.Run(name, func(t *testing.T) {
			m := startMoving(t, 400*time.Millisecond)
			before := 0
			m.load(t, func() {
				before = m.breaks()
				breaks(m)
			})
			longest := time.Duration(0)
			for i, at := range m.back {
				if at.IsZero() {
					t.Fatalf("client %d got no answer: %v", i, m.ends)
				}
				longest = max(longest, at.Sub(m.broken))
			}
			begun := int(nodetest.Metric(t, m.nodes[1], `penstock_requests_accepted_total{function="fn"}`))
			t.Logf("%v of %d, answered again within %v; %d requests begun at the other node", m.ends, m.sent, longest, begun)
			if longest > time.Second {
				t.Errorf("a client was answered again after %v, want at most 1 s", longest)
			}
			if begun > m.sent-before {
				t.Errorf("the other node began %d requests, and %d were not answered: some ran twice there", begun, m.sent-before)
			}
			if m.ends["wrong"] > 0 || m.ends["ok"] < m.sent/2 {
				t.Errorf("%v of %d", m.ends, m.sent)
			}
		})
	}
}
