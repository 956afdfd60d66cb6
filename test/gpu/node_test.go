//go:build gpu

package gpu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/wire"
)

// patience bounds every wait. It detects hangs and is long enough for slow machines.
const patience = 90 * time.Second

// usedBytes returns the GPU memory in use by all processes.
func usedBytes(t *testing.T) int64 {
	t.Helper()
	u, err := session.Usage(uuid)
	if err != nil {
		t.Fatal(err)
	}
	return u.UsedBytes
}

// slackBytes is memory that the driver keeps or releases later.
const slackBytes = 64 << 20

// start starts a node on the GPU. When the test ends, all its processes including the MPS
// daemon must have ended, and the GPU's memory in use must be as before.
func start(t *testing.T, config string, environment ...string) *node.Node {
	t.Helper()
	return startIn(t, "", config, environment...)
}

// startIn is start with an existing runtime folder; "" makes one.
func startIn(t *testing.T, dir, config string, environment ...string) *node.Node {
	t.Helper()
	before := usedBytes(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, fmt.Errorf("not ready within %s", patience))
	defer cancel()
	o := node.Options{Binary: penstock, Config: "device: cuda\n" + config, Environment: environment}
	if dir != "" {
		o.Args = []string{"--runtime-dir", dir}
	}
	n, err := node.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	made := n.Dir
	if dir != "" {
		n.Dir = dir // the last --runtime-dir counts
	}
	t.Cleanup(func() {
		defer os.RemoveAll(made)
		if err := n.Stop(); err != nil {
			t.Errorf("the node did not drain: %v", err)
		}
		n.Kill()
		if t.Failed() {
			t.Logf("node said:\n%s", n.Log())
		}
		waitFor(t, "the node's processes to end", func() bool { return len(processes(n.Dir)) == 0 })
		waitFor(t, "the GPU's memory to come back", func() bool { return usedBytes(t) <= before+slackBytes })
	})
	return n
}

// waitFor polls until done returns true.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// process is a process of a node. It is found by the runtime folder in its arguments or its
// environment.
type process struct {
	pid     int
	command string // up, manager, orchestrator, if, or the program's name
}

func processes(dir string) (found []process) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		arguments, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(arguments) == 0 {
			continue
		}
		environment, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if !strings.Contains(string(arguments), dir) && !strings.Contains(string(environment), dir) {
			continue
		}
		words := strings.Split(strings.TrimRight(string(arguments), "\x00"), "\x00")
		command := filepath.Base(words[0])
		if command == filepath.Base(penstock) && len(words) > 1 {
			command = words[1]
		}
		found = append(found, process{pid, command})
	}
	return found
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

// serving waits until a process with all its batch sizes holds the ring, and a shadow is
// ready.
func serving(t *testing.T, n *node.Node, function string) (active, shadow control.ProcessStatus) {
	t.Helper()
	waitFor(t, function+" to have an active process and a shadow", func() bool {
		f, err := n.Function(function)
		if err != nil || len(f.Instances) == 0 {
			return false
		}
		active, _ = f.Instances[0].Serving()
		shadow, _ = f.Instances[0].Standby()
		return active.PID != 0 && !active.WarmingUp && shadow.PID != 0
	})
	return active, shadow
}

// shadowServes waits until the shadow of a process that has ended serves in its place.
func shadowServes(t *testing.T, n *node.Node, function string, shadow control.ProcessStatus) {
	t.Helper()
	waitFor(t, "the shadow to serve", func() bool {
		now, _ := serving(t, n, function)
		return now.Generation == shadow.Generation
	})
}

// nullCard writes a card for a model that computes nothing: it answers with a digest
// of the picture.
func nullCard(t *testing.T, name string) string {
	t.Helper()
	text := fmt.Sprintf(`name: %s
version: 1
framework: "null"
input:
  size: [2, 1024, 1]
  wire: {type: u8, layout: hwc}
  tensor: {type: u8, layout: hwc}
outputs: [{name: digest, shape: [1]}]
batches: [1, 2, 4, 8]
slo: 5s
decoder: {name: raw}
`, name)
	path := filepath.Join(t.TempDir(), name+".yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// stream sends pictures to a function at a steady rate until stop, and records every
// answer.
type stream struct {
	client *client.Client
	stop   func() *stream // waits for the last answers
	mu     sync.Mutex
	sent   int
	by     map[wire.Status]int
	lost   []error
	okAt   []int64 // times of the ok answers, by client.Now
}

// send starts a stream of pictures at that many per second.
func send(t *testing.T, n *node.Node, function string, perSecond float64) *stream {
	t.Helper()
	f, err := n.Function(function)
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{by: map[wire.Status]int{}}
	var ended sync.WaitGroup
	s.client, err = client.Dial(t.Context(), fmt.Sprintf("127.0.0.1:%d", f.Port), client.Options{
		InFlight: 48, Timeout: 30 * time.Second,
		Deliver: func(r *client.Result) {
			s.mu.Lock()
			switch {
			case r.Err != nil:
				s.lost = append(s.lost, r.Err)
			default:
				s.by[r.Result.Status]++
				if r.Status == client.StatusOK {
					s.okAt = append(s.okAt, r.Received)
				}
			}
			s.mu.Unlock()
			ended.Done()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	stopping, stopped := make(chan struct{}), make(chan struct{})
	picture := make([]byte, f.Input.Bytes)
	for i := range picture {
		picture[i] = byte(i * 7)
	}
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(time.Duration(float64(time.Second) / perSecond))
		defer ticker.Stop()
		for {
			select {
			case <-stopping:
				return
			case <-ticker.C:
			}
			ended.Add(1)
			if _, err := s.client.Send(picture, client.RequestOptions{}); err != nil {
				ended.Done()
				continue // the queue is full: not sent, so not lost
			}
			s.mu.Lock()
			s.sent++
			s.mu.Unlock()
		}
	}()
	var once sync.Once
	s.stop = func() *stream {
		once.Do(func() {
			close(stopping)
			<-stopped
			ended.Wait()
			s.client.Close()
		})
		return s
	}
	t.Cleanup(func() { s.stop() })
	return s
}

// flows waits until the stream gets ok answers, again or for the first time.
func (s *stream) flows(t *testing.T) {
	t.Helper()
	now := client.Now()
	waitFor(t, "ok answers", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.okAt) > 0 && s.okAt[len(s.okAt)-1] > now
	})
}

// longestPause returns the longest time between two ok answers.
func (s *stream) longestPause() (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Sorted(slices.Values(s.okAt))
	for i := 1; i < len(at); i++ {
		longest = max(longest, time.Duration(at[i]-at[i-1]))
	}
	return longest
}

func (s *stream) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := error(nil)
	if len(s.lost) > 0 {
		first = s.lost[0]
	}
	return fmt.Sprintf("%d sent, %v, %d without an answer (%v)", s.sent, s.by, len(s.lost), first)
}

// answeredAll checks that every request of a stopped stream was answered, and all but
// `failed` of them ok. If some may fail, no process served for a while, so requests without
// room may then also have been refused.
func (s *stream) answeredAll(t *testing.T, failed int) {
	t.Helper()
	s.mu.Lock()
	ok, bad, lost, sent := s.by[wire.StatusOK], s.by[wire.StatusFailed], len(s.lost), s.sent
	if failed > 0 {
		ok += s.by[wire.StatusBusy]
	}
	s.mu.Unlock()
	if lost > 0 || ok+bad != sent || bad > failed {
		t.Errorf("%s; want every request answered, at most %d failed", s, failed)
	}
}

// settled waits until nothing is in flight and checks that no accepted request was lost.
func settled(t *testing.T, n *node.Node, function string) control.FunctionStatus {
	t.Helper()
	var f control.FunctionStatus
	waitFor(t, "memory of "+function+" to come back", func() bool {
		var err error
		f, err = n.Function(function)
		return err == nil && f.Accepted == f.Replied && f.HeldBytes == 0
	})
	if f.Lost != 0 {
		t.Errorf("%s: %d accepted requests were lost", function, f.Lost)
	}
	return f
}

func status(t *testing.T, n *node.Node) control.Status {
	t.Helper()
	s, err := n.Status()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// share orders a share.
func share(t *testing.T, n *node.Node, function string, percent float64) {
	t.Helper()
	if err := n.Order(control.SharePath, control.ShareOrder{Name: function, SharePercent: percent}); err != nil {
		t.Fatal(err)
	}
}
