package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// TestReturnFromIdle sends requests to a function that was idle next to an overloaded one. The
// idle function has kept its guarantee, so its first requests run at its level. The test only
// reports how many of them are late, because other programs use this machine, too.
func TestReturnFromIdle(t *testing.T) {
	const (
		n    = 41
		goal = 2 // late requests, of n
		idle = 3 * time.Second
	)
	card := nodetest.Card(t, "digest", small)
	nd := start(t, fmt.Sprintf(`
shares: {interval: 100ms}
functions:
  - {name: busy, model: %s, port: 0, slo: 50ms, environment: {PENSTOCK_NULL: "busy=4ms,busy_per_image=4ms"}}
  - {name: idle, model: %s, port: 0, slo: 60ms, environment: {PENSTOCK_NULL: "busy=10ms"}}
`, card, card))
	nodetest.Serving(t, nd, "busy")
	nodetest.Serving(t, nd, "idle")

	load := nodetest.Dial(t, nd, "busy", client.Options{})
	defer sendEvery(8*time.Millisecond, load)()
	time.Sleep(idle)
	// A function of unknown cost gets an equal part.
	wait.For(t, "the idle function to have half of 90 %", func() bool {
		f, err := nd.Function("idle")
		return err == nil && f.Guarantee != nil && f.Guarantee.Percent >= 44
	})

	var mu sync.Mutex
	onTime := make([]bool, n)
	got := nodetest.NewAnswers()
	deliver := got.Deliver(small)
	c := nodetest.Dial(t, nd, "idle", client.Options{Timeout: 10 * time.Second, Deliver: func(r *client.Result) {
		mu.Lock()
		onTime[r.Tag] = r.Err == nil && r.Status == client.StatusOK && r.Received.Sub(r.Sent) <= 60*time.Millisecond
		mu.Unlock()
		deliver(r)
	}})
	nodetest.Send(t, c, small, 0, n, 100*time.Millisecond)
	got.Wait(n)

	mu.Lock()
	defer mu.Unlock()
	late := 0
	for _, ok := range onTime {
		if !ok {
			late++
		}
	}
	t.Logf("%d of %d requests late after the return, goal %d", late, n, goal)
	if got.Lost > 0 || got.Wrong > 0 {
		t.Errorf("%s; want every request answered, and right", got)
	}
}

// sendEvery sends requests until stop is called, whatever becomes of them.
func sendEvery(interval time.Duration, load *client.Client) (stop func()) {
	done := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(interval):
			}
			_, _ = load.Send(nodetest.Picture(small, i), client.RequestOptions{})
		}
	})
	return func() {
		close(done)
		sender.Wait()
	}
}
