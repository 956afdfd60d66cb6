package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/internal/testing/wait"
)

// The floods together send about floodPerSecond datagrams, as a single socket did in
// the experiment that showed slots to be unfair.
const floodPerSecond = 20_000

// flood makes sockets send datagrams in turn, each made for an id, until stop is
// called. It does not read answers.
func flood(t *testing.T, sockets []net.Conn, make func(id uint32) []byte) (sent *atomic.Int64, stop func()) {
	t.Helper()
	sent = new(atomic.Int64)
	end, loops := new(atomic.Bool), sync.WaitGroup{}
	loops.Add(1)
	go func() {
		defer loops.Done()
		const step, maxBehind = time.Millisecond, 5 * time.Millisecond // after a stall, the rest is not sent
		last := time.Now()
		pace := time.NewTicker(step)
		defer pace.Stop()
		for id := uint32(1); !end.Load(); <-pace.C {
			if behind := time.Since(last); behind > maxBehind {
				last = last.Add(behind - maxBehind)
			}
			due := int(time.Since(last) * floodPerSecond / time.Second)
			last = last.Add(time.Duration(due) * time.Second / floodPerSecond)
			for range due {
				_, _ = sockets[int(id)%len(sockets)].Write(make(id)) // an ICMP error of an earlier datagram is not a failure
				sent.Add(1)
				id++
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		end.Store(true)
		loops.Wait()
	})
	t.Cleanup(stop)
	return sent, stop
}

// occupied waits until a flood has occupied all it can get.
func occupied(t *testing.T, sent *atomic.Int64) {
	t.Helper()
	wait.For(t, "the flood", func() bool { return sent.Load() > floodPerSecond/5 })
}

// local opens sockets to a function from several ports of several addresses of
// 127.0.0.0/8.
func local(t *testing.T, to string, addresses, ports int) (all []net.Conn) {
	t.Helper()
	for a := range addresses {
		for range ports {
			from := netip.AddrFrom4([4]byte{127, 0, 1, byte(1 + a)})
			dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
			c, err := dialer.Dial("udp", to)
			must.OK(t, err)
			t.Cleanup(func() { c.Close() })
			all = append(all, c)
		}
	}
	return all
}

// gap is the min time between two requests of a well-behaved client: 100 requests
// per second are within an equal share of the node's 4,000 in every flood here.
const gap = 10 * time.Millisecond

// bound is the min part of its requests that a well-behaved client must have
// answered.
const bound = 0.95

// behave sends n requests of a well-behaved client and returns the part that was
// answered ok. The client has one request in flight, which is within an equal share
// of the slots. If the node gets no CPU for a moment, the client waits. With a fixed
// schedule it would exceed its share and rightly be answered busy.
func behave(t *testing.T, c *client.Client, bytes, n int) (kept float64, ended *nodetest.Answers) {
	t.Helper()
	ended = nodetest.NewAnswers()
	deliver := ended.Deliver(bytes)
	for i := range n {
		next := time.Now().Add(gap)
		r, _ := c.Do(nodetest.Context(t), nodetest.Picture(bytes, i), client.RequestOptions{Tag: uint64(i)})
		deliver(&r)
		time.Sleep(time.Until(next))
	}
	if ended.Wrong > 0 {
		t.Errorf("client got wrong answers: %s", ended)
	}
	return float64(ended.By[client.StatusOK]) / float64(n), ended
}

// keepsBound measures until the client keeps bound. A machine that becomes busy during one or two
// attempts says nothing.
func keepsBound(t *testing.T, name string, measure func() (kept float64, ended *nodetest.Answers)) {
	t.Helper()
	const maxAttempts = 4
	for attempt := 1; ; attempt++ {
		kept, ended := measure()
		t.Logf("%s: the client keeps %.1f %%, bound %.0f %%", name, 100*kept, 100*bound)
		if kept >= bound {
			return
		}
		if attempt == maxAttempts {
			t.Errorf("%s: the client keeps %.1f %%, want at least %.0f %%; so in %d attempts: %s", name, 100*kept, 100*bound, attempt, ended)
			return
		}
	}
}

// fairNode returns the configuration of a node that answers 4,000 pictures per
// second in batches of 8.
func fairNode(t *testing.T, listen string) string {
	return fmt.Sprintf(`
listen: %s
shares: {policy: gslice, tune: false}
functions:
  - {name: fn, model: %s, port: 0, share_percent: 40, environment: {%s: sleep=2ms}}
  - {name: large, model: %s, port: 0, share_percent: 40}
`, listen, nodetest.Card(t, "small", small), null.Variable, nodetest.Card(t, "large", large))
}

// TestFairness floods a node from addresses of 127.0.0.0/8, which need no proof,
// while a client sends within its share.
func TestFairness(t *testing.T) {
	nd := start(t, fairNode(t, "127.0.0.1"))
	complete := func(id uint32) []byte { return datagram(id, small, small, 0, 0) }
	last := func(id uint32) []byte { return datagram(id, small, 1024, 1, 0) }
	first := func(id uint32) []byte { return datagram(id, large, 1024, 0, 0) }
	for _, row := range []struct {
		name, function   string
		bytes            int
		addresses, ports int
		make             func(id uint32) []byte
	}{
		{"last fragments", "fn", small, 1, 1, last},
		{"first fragments of large pictures", "large", large, 1, 1, first},
		{"complete requests", "fn", small, 1, 1, complete},
		{"last fragments, 200 ports of one address", "fn", small, 1, 200, last},
		{"complete requests, 200 ports of one address", "fn", small, 1, 200, complete},
		{"last fragments, 30 addresses", "fn", small, 30, 2, last},
		{"complete requests, 10 addresses", "fn", small, 10, 5, complete},
	} {
		if testing.Short() && row.ports > 5 {
			continue // 5 s per row; make test-all has all rows
		}

		keepsBound(t, row.name, func() (kept float64, ended *nodetest.Answers) {
			c := nodetest.Dial(t, nd, row.function, client.Options{Timeout: 20 * time.Second})
			defer c.Close()
			behave(t, c, row.bytes, 1) // the manager knows the client before the flood begins

			sent, stop := flood(t, local(t, nodetest.Address(t, nd, row.function), row.addresses, row.ports), row.make)
			defer stop()
			occupied(t, sent)
			began, before := time.Now(), sent.Load()
			kept, ended = behave(t, c, row.bytes, 200)
			t.Logf("%s: %.0f datagrams/s", row.name, float64(sent.Load()-before)/time.Since(began).Seconds())
			return kept, ended
		})
	}
}

// TestFairnessWithoutProof is the same with a flood from an address that never
// proves itself. One client on this machine and one outside prove theirs.
func TestFairnessWithoutProof(t *testing.T) {
	host := newOutside(t)
	nd := start(t, fairNode(t, "0.0.0.0"))
	f, err := nd.Function("fn")
	must.OK(t, err)
	var sockets []net.Conn
	for range 200 {
		sockets = append(sockets, host.socket(t, f.Port))
	}
	for _, row := range []struct {
		name string
		make func(id uint32) []byte
	}{
		{"last fragments", func(id uint32) []byte { return datagram(id, small, 1024, 1, 0) }},
		{"complete requests", func(id uint32) []byte { return datagram(id, small, small, 0, 0) }},
	} {
		sent, stop := flood(t, sockets, row.make)
		occupied(t, sent)
		for _, where := range []string{"this machine", "outside"} {
			keepsBound(t, row.name+" without proof, client on "+where, func() (kept float64, ended *nodetest.Answers) {
				options := client.Options{Timeout: 20 * time.Second}
				var c *client.Client
				if where == "outside" {
					c = host.dial(t, f.Port, options)
				} else {
					c = nodetest.Dial(t, nd, "fn", options)
				}
				defer c.Close()
				return behave(t, c, small, 200)
			})
		}
		stop()
	}
}
