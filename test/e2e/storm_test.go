package e2e

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/wire"
)

// A storm can be made longer, or different, by hand:
//
//	go test ./test/e2e -run Storm -timeout 1h -storm 10m -storm-seed 7
var (
	stormLength = flag.Duration("storm", 8*time.Second, "how long the storm lasts")
	stormSeed   = flag.Uint64("storm-seed", 1, "which storm it is")
)

// storm harms a node repeatedly, without waiting for the effects of the previous harm.
type storm struct {
	*testing.T
	*node.Node
	random   *rand.Rand
	cards    [2]string
	followed time.Time // when the orchestrator was last killed
}

// harms must work in any state of the node, and tolerate every error.
var harms = []struct {
	name string
	do   func(s *storm)
}{
	{"kill who serves", func(s *storm) { s.signal(syscall.SIGKILL, (*control.InstanceStatus).Serving) }},
	{"kill who stands by", func(s *storm) { s.signal(syscall.SIGKILL, (*control.InstanceStatus).Standby) }},
	{"stop who serves", func(s *storm) { s.signal(syscall.SIGSTOP, (*control.InstanceStatus).Serving) }},
	{"kill both", func(s *storm) {
		s.signal(syscall.SIGKILL, (*control.InstanceStatus).Serving)
		s.signal(syscall.SIGKILL, (*control.InstanceStatus).Standby)
	}},
	{"kill the orchestrator", func(s *storm) {
		// up gives up if a child repeatedly dies immediately.
		if time.Since(s.followed) < 3*time.Second {
			return
		}
		for _, p := range nodetest.Processes(s.Dir) {
			if p.Command == "orchestrator" {
				syscall.Kill(p.PID, syscall.SIGKILL)
				s.followed = time.Now()
			}
		}
	}},
	{"share", func(s *storm) { s.run("share", "fn", fmt.Sprint(10+s.random.IntN(60))) }},
	{"replace", func(s *storm) { s.run("replace", "fn", s.cards[s.random.IntN(2)]) }},
	{"roll back", func(s *storm) { s.run("rollback", "fn") }},
	{"add", func(s *storm) { s.run("add", "second", "--model", s.cards[0], "--share", "10") }},
	{"remove", func(s *storm) { s.run("remove", "second") }},
	{"nonsense", (*storm).nonsense},
	{"beginnings", (*storm).beginnings},
}

func (s *storm) signal(signal syscall.Signal, find func(*control.InstanceStatus) (control.ProcessStatus, bool)) {
	f, err := s.Function("fn")
	if err != nil || len(f.Instances) == 0 {
		return
	}
	if p, ok := find(&f.Instances[s.random.IntN(len(f.Instances))]); ok && p.PID != 0 {
		syscall.Kill(p.PID, signal)
	}
}

// run runs `penstock if`, which may be refused, but only with one line.
func (s *storm) run(arguments ...string) {
	if out, err := run(s.T, s.Dir, append([]string{"if"}, arguments...)...); err != nil && strings.Count(strings.TrimSpace(out), "\n") != 0 {
		s.Errorf("if %s: %v, said more than a line:\n%s", strings.Join(arguments, " "), err, out)
	}
}

// socket returns a client's socket that follows no rules.
func (s *storm) socket() net.Conn {
	f, err := s.Function("fn")
	if err != nil {
		s.Fatal(err)
	}
	c, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", f.Port))
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// nonsense sends datagrams of random bytes, half of them with a valid header.
func (s *storm) nonsense() {
	c := s.socket()
	defer c.Close()
	for range 200 {
		b := make([]byte, s.random.IntN(1400))
		for i := range b {
			b[i] = byte(s.random.Uint32())
		}
		if s.random.IntN(2) == 0 {
			b = append(s.header(), b...)
		}
		c.Write(b)
	}
}

// beginnings sends first fragments of requests that never become complete.
func (s *storm) beginnings() {
	for range 4 {
		c := s.socket()
		for range 50 {
			c.Write(append(s.header(), make([]byte, small/2)...))
		}
		c.Close()
	}
}

// header returns a valid header of a request's first fragment.
func (s *storm) header() []byte {
	h := wire.Header{Type: wire.TypeData, RequestID: s.random.Uint32(), Total: small, Count: 2, Length: small / 2}
	b := make([]byte, wire.HeaderSize)
	h.Put(b)
	return b
}

// The test does everything to a node except kill its manager. The node answers every
// request, correctly if the status is ok. Afterwards it is as before.
func TestStorm(t *testing.T) {
	t.Parallel()
	cards := [2]string{nodetest.Card(t, "digest", small), nodetest.Card(t, "digest", small, "# the other")}
	nd := start(t, fmt.Sprintf(`
hang_timeout: 400ms
shares: {policy: gslice, tune: false}
functions:
  - {name: fn, model: %s, port: 0, share_percent: 30, instances: 2}
`, cards[0]), "PENSTOCK_NULL=busy=1ms")
	s := &storm{T: t, Node: nd, random: rand.New(rand.NewPCG(*stormSeed, 0)), cards: cards, followed: time.Now()}
	s.waitComplete()
	before := s.steadyResources()

	got, sent, end := nodetest.NewAnswers(), 0, time.Now().Add(*stormLength)
	c := nodetest.Dial(t, nd, "fn", client.Options{Deliver: got.Deliver(small), Timeout: 30 * time.Second, QueueLimit: 1 << 16})
	var traffic sync.WaitGroup
	traffic.Go(func() {
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for ; time.Now().Before(end); sent++ {
			if _, err := c.Send(nodetest.Picture(small, sent), client.RequestOptions{Tag: uint64(sent)}); err != nil {
				t.Errorf("send request %d: %v", sent, err)
				return
			}
			<-pace.C
		}
	})
	var done []string
	for time.Now().Before(end) && !t.Failed() {
		h := harms[s.random.IntN(len(harms))]
		done = append(done, h.name)
		h.do(s)
		time.Sleep(time.Duration(s.random.IntN(400)) * time.Millisecond)
	}
	traffic.Wait()
	got.Wait(sent)
	s.run("remove", "second")
	s.waitComplete()
	f := nodetest.Settled(t, nd, "fn")
	t.Logf("storm %d: %s; %d requests, %s; %d hand-overs", *stormSeed, strings.Join(done, ", "), sent, got, f.Swaps)
	if got.Lost > 0 || got.Wrong > 0 {
		t.Errorf("%s; want every request answered, and right", got)
	}
	if got.By[client.StatusOK] == 0 {
		t.Errorf("%s; want some of it ok", got)
	}
	// Closing may take a moment.
	var after map[string]int
	giveUp := time.Now().Add(patience / 2)
	wait.For(t, "the node to be what it was", func() bool {
		after = s.resources()
		return maps.Equal(after, before) || time.Now().After(giveUp)
	})
	if !maps.Equal(after, before) {
		t.Errorf("the node has %v, had %v", after, before)
	}
}

// waitComplete waits until both instances have exactly one serving process and one shadow.
func (s *storm) waitComplete() {
	s.Helper()
	wait.For(s.T, "every process", func() bool {
		status, err := s.Status()
		if err != nil || len(status.Functions) != 1 {
			return false
		}
		for i := range status.Functions[0].Instances {
			in := &status.Functions[0].Instances[i]
			_, serves := in.Serving()
			_, stands := in.Standby()
			if !serves || !stands || len(in.Processes) != 2 {
				return false
			}
		}
		return true
	})
}

// steadyResources waits until resources does not change any more. While a process starts, its parent
// has more descriptors.
func (s *storm) steadyResources() map[string]int {
	s.Helper()
	now, same := s.resources(), 0
	wait.For(s.T, "the node's resources to stay the same", func() bool {
		last := now
		now = s.resources()
		if same++; !maps.Equal(now, last) {
			same = 0
		}
		return same == 100
	})
	return now
}

// resources returns the number of processes of each kind, and the open descriptors of
// the two permanent processes.
func (s *storm) resources() map[string]int {
	all := map[string]int{}
	for _, p := range nodetest.Processes(s.Dir) {
		all[p.Command]++
		if p.Command == "manager" || p.Command == "orchestrator" {
			open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID))
			all[p.Command+"'s descriptors"] = len(open)
		}
	}
	return all
}
