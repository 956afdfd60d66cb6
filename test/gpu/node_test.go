//go:build gpu

package gpu

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/shm"
)

const patience = wait.Patience

// usedBytes returns the GPU memory in use by all processes.
func usedBytes(t *testing.T) int64 {
	t.Helper()
	u, err := session.Usage(uuid)
	must.OK(t, err)
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
	o := node.Options{Config: "device: cuda\n" + config, Environment: environment}
	if dir != "" {
		o.Args = []string{"--runtime-dir", dir}
	}
	t.Cleanup(func() { // after the node has ended
		wait.For(t, "the GPU's memory to come back", func() bool { return usedBytes(t) <= before+slackBytes })
	})
	n := nodetest.Start(t, o)
	made := n.Dir
	if dir != "" {
		n.Dir = dir // the last --runtime-dir counts
	}
	t.Cleanup(func() {
		defer os.RemoveAll(made)
		if err := n.Stop(); err != nil {
			t.Errorf("the node did not drain: %v", err)
		}
	})
	return n
}

// stream sends pictures to a function at a steady rate until stop, and records every
// answer.
type stream struct {
	client *client.Client
	stop   func() *stream // waits for the last answers
	mu     sync.Mutex
	sent   int
	by     map[client.Status]int
	lost   []error
	okAt   []int64 // times of the ok answers, by shm.Now
}

// send starts a stream of pictures at that many per second.
func send(t *testing.T, n *node.Node, function string, perSecond float64) *stream {
	t.Helper()
	f, err := n.Function(function)
	must.OK(t, err)
	s := &stream{by: map[client.Status]int{}}
	var ended sync.WaitGroup
	s.client, err = client.Dial(t.Context(), fmt.Sprintf("127.0.0.1:%d", f.Port), client.Options{
		InFlight: 48, Timeout: 30 * time.Second,
		Deliver: func(r *client.Result) {
			s.mu.Lock()
			switch {
			case r.Err != nil:
				s.lost = append(s.lost, r.Err)
			default:
				s.by[r.Status]++
				if r.Status == client.StatusOK {
					s.okAt = append(s.okAt, shm.Nanos(r.Received))
				}
			}
			s.mu.Unlock()
			ended.Done()
		},
	})
	must.OK(t, err)
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
	now := shm.Now()
	wait.For(t, "ok answers", func() bool {
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
	ok, bad, lost, sent := s.by[client.StatusOK], s.by[client.StatusFailed], len(s.lost), s.sent
	if failed > 0 {
		ok += s.by[client.StatusBusy]
	}
	s.mu.Unlock()
	if lost > 0 || ok+bad != sent || bad > failed {
		t.Errorf("%s; want every request answered, at most %d failed", s, failed)
	}
}

func status(t *testing.T, n *node.Node) control.Status {
	t.Helper()
	s, err := n.Status()
	must.OK(t, err)
	return s
}
