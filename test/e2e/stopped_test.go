package e2e

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/nodetest"
)

// TestStoppedProcess stops the serving process under load. Its shadow takes over long before the hang timeout, and
// every request ends once, with the right answer.
func TestStoppedProcess(t *testing.T) {
	const (
		n   = 300
		gap = 10 * time.Millisecond
	)
	nd := start(t, "hang_timeout: 1m\n"+oneFunction(nodetest.Card(t, "digest", small), ", slo: 60ms"), "PENSTOCK_NULL=busy=1ms")
	active, shadow := nodetest.Serving(t, nd, "fn")

	var mu sync.Mutex
	var last time.Time
	var silence time.Duration // the longest between two answers with status ok
	ends := map[uint64]int{}
	got := nodetest.NewAnswers()
	deliver := got.Deliver(small)
	c := nodetest.Dial(t, nd, "fn", client.Options{Timeout: patience, Deliver: func(r *client.Result) {
		mu.Lock()
		ends[r.Tag]++
		if r.Status == client.StatusOK {
			if !last.IsZero() {
				silence = max(silence, r.Received.Sub(last))
			}
			last = r.Received
		}
		mu.Unlock()
		deliver(r)
	}})
	nodetest.Send(t, c, small, 0, n/3, gap)
	signalAll(t, []int{active.PID}, syscall.SIGSTOP)
	stoppedAt := time.Now()
	nodetest.Send(t, c, small, n/3, n-n/3, gap)
	got.Wait(n)
	nodetest.ShadowServes(t, nd, "fn", shadow)

	mu.Lock()
	defer mu.Unlock()
	t.Logf("longest silence %v; %v; %v in all", silence, got, time.Since(stoppedAt))
	for tag, times := range ends {
		if times != 1 {
			t.Errorf("request %d ended %d times", tag, times)
		}
	}
	if got.Wrong > 0 || got.Lost > n/3 {
		t.Errorf("answers %v", got)
	}
}
