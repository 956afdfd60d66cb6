//go:build gpu

package gpu

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// TestLaneGap compares the time between two batches of a lane: with requests for one member at all times,
// and for two. The second member's batch is queued behind the first one's.
func TestLaneGap(t *testing.T) {
	const goal = 1.5
	n := start(t, fmt.Sprintf(`
workers: [{name: cold, share_percent: 90, lanes: 1}]
functions:
  - {name: first, model: %s, port: 0, slo: 5s, worker: cold}
  - {name: second, model: %[1]s, port: 0, slo: 5s, worker: cold}
`, exported(t, "resnet50")), configs.Lab{Batching: control.Batching{Rule: control.BatchOne}}.Environment())
	for _, name := range []string{"first", "second"} {
		wait.For(t, name+" to serve", func() bool {
			f, err := n.Function(name)
			if err != nil || len(f.Instances) == 0 {
				return false
			}
			active, ok := f.Instances[0].Serving()
			return ok && !active.WarmingUp
		})
	}
	laneGap(t, n, "first", "second") // the first batches take longer
	one, two := laneGap(t, n, "first"), laneGap(t, n, "first", "second")
	t.Logf("gap between batches of one member %v, of two %v: %.2f times", one, two, two.Seconds()/one.Seconds())
	if two.Seconds() > goal*one.Seconds() {
		t.Errorf("the gap between batches of two members is %v, of one %v; want at most %v times", two, one, goal)
	}
}

// laneGap keeps requests waiting for each of these functions for some seconds. It returns the mean time
// in which the lane ran none of their batches, per batch.
func laneGap(t *testing.T, n *node.Node, functions ...string) time.Duration {
	t.Helper()
	const lasts, waiting = 3 * time.Second, 8
	var mu sync.Mutex
	var infer time.Duration
	var batches int
	var bad error
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for _, name := range functions {
		f, err := n.Function(name)
		must.OK(t, err)
		places := make(chan struct{}, waiting)
		c, err := client.Dial(t.Context(), fmt.Sprintf("127.0.0.1:%d", f.Port), client.Options{
			InFlight: 2 * waiting, Timeout: patience,
			Deliver: func(r *client.Result) {
				mu.Lock()
				defer mu.Unlock()
				<-places
				batches++
				infer += r.Stages.Infer
				if r.Err != nil || r.Status != client.StatusOK {
					bad = errors.Join(r.Err, fmt.Errorf("%s answers %v", name, r.Status))
				}
			},
		})
		must.OK(t, err)
		picture := make([]byte, f.Input.Bytes)
		clients.Go(func() {
			defer c.Close()
			for {
				select {
				case <-stop:
					return
				case places <- struct{}{}:
				}
				if _, err := c.Send(picture, client.RequestOptions{}); err != nil {
					mu.Lock()
					bad = err
					mu.Unlock()
					return
				}
			}
		})
	}
	counted := func() (int, time.Duration, error) {
		mu.Lock()
		defer mu.Unlock()
		return batches, infer, bad
	}
	wait.For(t, "answers", func() bool { answers, _, _ := counted(); return answers > 0 })
	beganBatches, beganInfer, _ := counted()
	began := time.Now()
	time.Sleep(lasts)
	endedBatches, endedInfer, failed := counted()
	took := time.Since(began)
	close(stop)
	clients.Wait()

	ran := endedBatches - beganBatches
	if ran == 0 || failed != nil {
		t.Fatalf("%v: %d batches, %v", functions, ran, failed)
	}
	each := (endedInfer - beganInfer) / time.Duration(ran)
	gap := took/time.Duration(ran) - each
	t.Logf("%v: %d batches in %v, inference of %v each, gap of %v", functions, ran, took, each, gap)
	return gap
}
