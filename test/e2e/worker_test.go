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
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// members are two functions in one worker, and one outside.
func members(card string) string {
	return fmt.Sprintf(`
workers: [{name: cold, share_percent: 40}]
functions:
  - {name: fn, model: %[1]q, port: 0, slo: 10s, worker: cold}
  - {name: other, model: %[1]q, port: 0, slo: 10s, worker: cold}
  - {name: own, model: %[1]q, port: 0, slo: 10s}
`, card)
}

// serves returns the process that serves for a function, once its worker is the given one.
func serves(t *testing.T, nd *node.Node, function, worker string) (active control.ProcessStatus) {
	t.Helper()
	wait.For(t, fmt.Sprintf("%s to serve in worker %q", function, worker), func() bool {
		f, err := nd.Function(function)
		if err != nil || len(f.Instances) == 0 || f.Worker != worker {
			return false
		}
		active, _ = f.Instances[0].Serving()
		return active.PID != 0
	})
	return active
}

// TestWorkerKilled kills a worker with batches in flight. Every request is answered, and all its
// members serve again, in one process.
func TestWorkerKilled(t *testing.T) {
	t.Parallel()
	nd := start(t, members(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=busy=1ms")
	fn, other, own := serves(t, nd, "fn", "cold"), serves(t, nd, "other", "cold"), serves(t, nd, "own", "")
	if fn.PID != other.PID || fn.PID == own.PID {
		t.Fatalf("fn has process %d and other %d, want one; own has %d, want another", fn.PID, other.PID, own.PID)
	}
	got := stream(t, nd, 1000, func() { nodetest.Kill(t, fn.PID) })
	if got.Lost > 0 || got.Wrong > 0 || got.By[client.StatusFailed] > 8 {
		t.Errorf("%s; want every request answered right, a batch failed at most", got)
	}
	for _, name := range []string{"fn", "other"} {
		var last *control.ProcessFailure
		wait.For(t, "a failure of "+name, func() bool {
			last = nodetest.Settled(t, nd, name).Instances[0].LastFailure
			return last != nil
		})
		if last.PID != fn.PID || last.Reason != "killed by signal 9 (not by Penstock)" {
			t.Errorf("last failure of %s is %+v, want how process %d was killed", name, last, fn.PID)
		}
	}
	if a, b := serves(t, nd, "fn", "cold"), serves(t, nd, "other", "cold"); a.PID != b.PID || a.PID == fn.PID {
		t.Errorf("fn has process %d and other %d, want one other than %d", a.PID, b.PID, fn.PID)
	}
	if now := serves(t, nd, "own", ""); now.PID != own.PID {
		t.Errorf("own has process %d, want %d still", now.PID, own.PID)
	}
}

// TestWorkerMoves moves a function into the worker and out of it under load.
func TestWorkerMoves(t *testing.T) {
	t.Parallel()
	nd := start(t, members(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=busy=1ms")
	before := serves(t, nd, "fn", "cold")
	for _, to := range []string{"", "cold"} {
		got := stream(t, nd, 1000, func() {
			arguments := []string{"if", "move", "fn", "--own"}
			if to != "" {
				arguments = []string{"if", "move", "fn", "--worker", to}
			}
			if out, err := run(t, nd.Dir, arguments...); err != nil {
				t.Errorf("move: %v: %s", err, out)
			}
		})
		if got.By[client.StatusOK] != 1000 || got.Lost > 0 || got.Wrong > 0 {
			t.Errorf("%s during the move to %q; want all answered right", got, to)
		}
		if now := serves(t, nd, "fn", to); (now.PID == serves(t, nd, "other", "cold").PID) != (to == "cold") {
			t.Errorf("fn has process %d after the move to %q", now.PID, to)
		}
	}
	if now := serves(t, nd, "fn", "cold"); now.PID != before.PID {
		t.Errorf("fn came back to process %d, want the worker's %d", now.PID, before.PID)
	}
	failsInOneLine(t, nd, []string{"fn", "cold"}, "if", "move", "fn", "--worker", "cold")
	failsInOneLine(t, nd, []string{"warm", "cold"}, "if", "move", "fn", "--worker", "warm")
}

// TestWorkerTakesTurns saturates one member. The other's requests are answered in between.
func TestWorkerTakesTurns(t *testing.T) {
	t.Parallel()
	nd := start(t, members(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=busy=1ms")
	serves(t, nd, "fn", "cold")
	serves(t, nd, "other", "cold")
	busy := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "other", client.Options{Timeout: 20 * time.Second, Deliver: busy.Deliver(small)})
	nodetest.Send(t, c, small, 0, 2000, 0)
	got := stream(t, nd, 200, func() {})
	if got.By[client.StatusOK] != 200 || got.Wrong > 0 {
		t.Errorf("%s; want all answered right next to a busy member", got)
	}
	busy.Wait(2000)
	if busy.Lost > 0 || busy.Wrong > 0 || busy.By[client.StatusFailed] > 0 {
		t.Errorf("busy member: %s; want every request answered right", busy)
	}
}

// TestWorkerOutlivesOrchestrator kills the orchestrator. The next one takes over the worker with its
// members, and more members can come and go.
func TestWorkerOutlivesOrchestrator(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	nd := start(t, members(card), "PENSTOCK_NULL=busy=1ms")
	worker := serves(t, nd, "fn", "cold").PID
	serves(t, nd, "other", "cold")
	got := stream(t, nd, 400, func() { killOrchestrator(t, nd) })
	if got.By[client.StatusOK] != 400 || got.Wrong > 0 {
		t.Errorf("%s; want 400 right answers", got)
	}
	for _, arguments := range [][]string{
		{"if", "add", "third", "--model", card, "--worker", "cold"},
		{"if", "move", "fn", "--own"},
	} {
		if out, err := run(t, nd.Dir, arguments...); err != nil {
			t.Errorf("%s: %v\n%s", strings.Join(arguments, " "), err, out)
		}
	}
	serves(t, nd, "third", "cold")
	serves(t, nd, "fn", "")
	if now := serves(t, nd, "other", "cold"); now.PID != worker {
		t.Errorf("other has process %d, want the worker's %d all the time", now.PID, worker)
	}
	for _, name := range []string{"fn", "other", "third"} {
		nodetest.Settled(t, nd, name)
	}
}

// TestWorkerSuperseded adds a member whose model the worker's process may not read. All members move to
// one process that may, and no request is lost.
func TestWorkerSuperseded(t *testing.T) {
	t.Parallel()
	nd := start(t, members(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=busy=1ms")
	old := serves(t, nd, "fn", "cold").PID
	got := stream(t, nd, 1000, func() {
		if out, err := run(t, nd.Dir, "if", "add", "third", "--model", nodetest.Card(t, "third", small), "--worker", "cold"); err != nil {
			t.Errorf("add: %v: %s", err, out)
		}
	})
	if got.By[client.StatusOK] != 1000 || got.Lost > 0 || got.Wrong > 0 {
		t.Errorf("%s; want all answered right", got)
	}
	third := serves(t, nd, "third", "cold").PID
	wait.For(t, "all members to be in one process", func() bool {
		for _, name := range []string{"fn", "other"} {
			if serves(t, nd, name, "cold").PID != third {
				return false
			}
		}
		return true
	})
	if third == old {
		t.Errorf("process %d hosts all members, want one that was started for the new member", old)
	}
	for _, name := range []string{"fn", "other", "third"} {
		if f := nodetest.Settled(t, nd, name); f.Failed > 0 {
			t.Errorf("%s: %d requests failed", name, f.Failed)
		}
	}
}

// TestWorkerKilledTwice kills a worker during batches of one member. After the second time the member
// moves out, and the other stays.
func TestWorkerKilledTwice(t *testing.T) {
	t.Parallel()
	nd := start(t, members(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=busy=5ms")
	c := nodetest.Dial(t, nd, "fn", client.Options{Timeout: 30 * time.Second})
	ctx, stop := context.WithCancel(nodetest.Context(t))
	var load sync.WaitGroup
	load.Go(func() {
		for ctx.Err() == nil {
			_, _ = c.Do(ctx, nodetest.Picture(small, 1), client.RequestOptions{}) // failed, if its batch ran
		}
	})
	defer load.Wait()
	defer stop()

	moved := func() bool {
		f, err := nd.Function("fn")
		return err == nil && f.Worker == ""
	}
	for kills := 0; !moved(); kills++ { // the second nearly always moves it: a batch of fn runs nearly all the time
		if kills == 10 {
			t.Fatal("fn is in its worker after ten kills")
		}
		worker := serves(t, nd, "other", "cold").PID
		nodetest.Kill(t, worker)
		for _, name := range []string{"fn", "other"} {
			wait.For(t, name+" to serve in another process", func() bool {
				f, err := nd.Function(name)
				if err != nil {
					return false
				}
				active, _ := f.Instances[0].Serving()
				return active.PID != 0 && active.PID != worker && active.State == control.Active
			})
		}
		if kills == 0 && moved() {
			t.Error("fn moved after a single kill")
		}
	}
	if own, other := serves(t, nd, "fn", ""), serves(t, nd, "other", "cold"); own.PID == other.PID {
		t.Errorf("fn still shares process %d with the other member", own.PID)
	}
	nodetest.Logged(t, nd, "worker died twice within a minute")
}

// TestWorkerOnGPU runs a worker as one client of MPS, moves a member, and kills the worker. All its members
// serve again.
func TestWorkerOnGPU(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	nd := start(t, "device: cuda\n"+members(card), withGPU(t, true)...)
	fn, other := serves(t, nd, "fn", "cold"), serves(t, nd, "other", "cold")
	if fn.PID != other.PID {
		t.Fatalf("fn has process %d and other %d, want one", fn.PID, other.PID)
	}
	got := stream(t, nd, 400, func() {
		if out, err := run(t, nd.Dir, "if", "move", "fn", "--own"); err != nil {
			t.Errorf("move out: %v: %s", err, out)
		}
	})
	if got.By[client.StatusOK] != 400 || got.Wrong > 0 {
		t.Errorf("%s during the move; want all answered right", got)
	}
	if out, err := run(t, nd.Dir, "if", "move", "fn", "--worker", "cold"); err != nil {
		t.Errorf("move in: %v: %s", err, out)
	}
	got = stream(t, nd, 400, func() { nodetest.Kill(t, serves(t, nd, "other", "cold").PID) })
	if got.Lost > 0 || got.Wrong > 0 || got.By[client.StatusFailed] > 16 {
		t.Errorf("%s; want every request answered right, the batches in flight failed at most", got)
	}
	for _, name := range []string{"fn", "other"} {
		serves(t, nd, name, "cold")
		nodetest.Settled(t, nd, name)
	}
}
