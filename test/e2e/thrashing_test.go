package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// TestWorkerThrashing asks the members of a worker for more than loading can serve. The node says so, and
// with how much memory it would end. It no longer says so when the demand has gone.
func TestWorkerThrashing(t *testing.T) {
	t.Parallel()
	var functions strings.Builder
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		fmt.Fprintf(&functions, "  - {name: %s, model: fashion, port: 0, slo: 100ms, worker: cold}\n", name)
	}
	nd := start(t, "workers: [{name: cold, share_percent: 80, memory: 1MiB, lanes: 1}]\nfunctions:\n"+functions.String())
	status := func() control.WorkerStatus {
		s, err := nd.Status()
		must.OK(t, err)
		if len(s.Workers) != 1 {
			t.Fatalf("workers %+v, want one", s.Workers)
		}
		return s.Workers[0]
	}

	ctx, stop := context.WithCancel(nodetest.Context(t))
	var load sync.WaitGroup
	for _, name := range names {
		c := nodetest.Dial(t, nd, name, client.Options{Deliver: func(*client.Result) {}})
		load.Go(func() {
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			for ctx.Err() == nil {
				_, _ = c.Send(nodetest.Picture(28*28, 1), client.RequestOptions{}) // the queue is full on a busy machine
				<-pace.C
			}
		})
	}
	defer load.Wait()
	defer stop()
	wait.For(t, "the worker to thrash", func() bool { return status().Thrashing })
	if s := status(); s.Thrashing && s.NeededBytes <= s.MemoryBytes {
		t.Errorf("worker %+v, want that it needs more than it has", s)
	}
	wait.For(t, "if list to name the worker", func() bool {
		out, err := run(t, nd.Dir, "if", "list")
		return err == nil && strings.Contains(out, "worker cold: thrashing")
	})
	stop()
	load.Wait()
	wait.For(t, "the worker not to thrash", func() bool { return !status().Thrashing })
	for _, name := range names {
		nodetest.Settled(t, nd, name)
	}
}
