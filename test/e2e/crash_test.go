package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

const small = 2048 // bytes of a small picture: two fragments

// stream sends n pictures at 500 per second, and sends those again that were answered busy. It
// calls harm in the middle.
func stream(t *testing.T, nd *node.Node, n int, harm func()) *nodetest.Answers {
	t.Helper()
	got := nodetest.NewAnswers()
	deliver := got.Deliver(small)
	var c *client.Client
	c = nodetest.Dial(t, nd, "fn", client.Options{Timeout: 20 * time.Second, Deliver: func(r *client.Result) {
		// A client computes its credit from an older report, which lacks requests that the
		// manager had not seen. After a pause of the machine it may send a request too many.
		if r.Err == nil && r.Status == client.StatusBusy {
			if _, err := c.Send(nodetest.Picture(small, int(r.Tag)), client.RequestOptions{Tag: r.Tag}); err == nil {
				return
			}
		}
		deliver(r)
	}})
	nodetest.Send(t, c, small, 0, n/2, 2*time.Millisecond)
	harm()
	nodetest.Send(t, c, small, n/2, n-n/2, 2*time.Millisecond)
	got.Wait(n)
	return got
}

func TestActiveKilled(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=busy=1ms")
	active, shadow := nodetest.Serving(t, nd, "fn")
	got := stream(t, nd, 1000, func() { nodetest.Kill(t, active.PID) })
	if got.Lost > 0 || got.Wrong > 0 {
		t.Errorf("%s; want every request answered, and right", got)
	}
	// Only the batch that the dead process had started may have failed.
	if failed := got.By[client.StatusFailed]; failed > 8 {
		t.Errorf("%s; want at most a batch failed", got)
	}
	nodetest.Settled(t, nd, "fn")
	now, _ := nodetest.Serving(t, nd, "fn")
	if now.Generation != shadow.Generation {
		t.Errorf("generation %d serves, want the shadow's, %d", now.Generation, shadow.Generation)
	}
	f, err := nd.Function("fn")
	must.OK(t, err)
	last := f.Instances[0].LastFailure
	if last == nil || last.PID != active.PID || last.Reason != "killed by signal 9 (not by Penstock)" {
		t.Errorf("last failure %+v, want how process %d was killed", last, active.PID)
	}
	for name, want := range map[string]float64{"process_failures_total": 1, "requests_lost_total": 0, "function_serving": 1, "objective_seconds": 10} {
		if got := nodetest.Metric(t, nd, "penstock_"+name+`{function="fn"}`); got != want {
			t.Errorf("penstock_%s is %v, want %v", name, got, want)
		}
	}
}

// badBatchesCostThemselvesOnly sends pictures to a program that fails every fifth batch. The
// same process must answer the others, and the node's log must have the reason.
func badBatchesCostThemselvesOnly(t *testing.T, card, says string, environment ...string) {
	t.Helper()
	const n = 400
	nd := start(t, oneFunction(card), environment...)
	before, _ := nodetest.Serving(t, nd, "fn")
	got := stream(t, nd, n, func() {})
	if got.Lost > 0 || got.Wrong > 0 || got.By[client.StatusFailed] < n/10 || got.By[client.StatusOK] < n/2 {
		t.Errorf("%s; want every fifth batch failed and the others right", got)
	}
	if now, _ := nodetest.Serving(t, nd, "fn"); now.PID != before.PID {
		t.Errorf("process %d serves, want %d still", now.PID, before.PID)
	}
	nodetest.Logged(t, nd, says)
	nodetest.Settled(t, nd, "fn")
}

func TestInstances(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small), ", instances: 2"), "PENSTOCK_NULL=busy=1ms")
	active, _ := nodetest.Serving(t, nd, "fn")
	got := stream(t, nd, 600, func() { nodetest.Kill(t, active.PID) })
	if got.Lost > 0 || got.Wrong > 0 || got.By[client.StatusFailed] > 8 {
		t.Errorf("%s; want every request answered right, a batch failed at most", got)
	}
	f := nodetest.Settled(t, nd, "fn")
	if len(f.Instances) != 2 {
		t.Fatalf("%d instances, want 2", len(f.Instances))
	}
	for i, in := range f.Instances {
		if in.SharePercent != 50 {
			t.Errorf("instance %d has %v %%, want 50", i, in.SharePercent)
		}
	}
}

func TestShadowKilled(t *testing.T) {
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	active, shadow := nodetest.Serving(t, nd, "fn")
	got := stream(t, nd, 500, func() { nodetest.Kill(t, shadow.PID) })
	if got.By[client.StatusOK] != 500 || got.Wrong > 0 {
		t.Errorf("%s; want 500 right answers", got)
	}
	nodetest.Settled(t, nd, "fn")
	now, other := nodetest.Serving(t, nd, "fn")
	if now.PID != active.PID || other.PID == shadow.PID {
		t.Errorf("active %+v, shadow %+v; want the same active process and another shadow", now, other)
	}
}

func TestManagerKilled(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	nd := start(t, fmt.Sprintf(`
shares: {policy: gslice, tune: false}
functions:
  - {name: fn, model: %s, port: %d, share_percent: 50}
`, card, freePort(t).Port()))
	active, shadow := nodetest.Serving(t, nd, "fn")
	nodetest.Kill(t, oldChild(t, nd, "manager"))
	wait.For(t, "the old processes to end", func() bool {
		return !nodetest.Alive(active.PID) && !nodetest.Alive(shadow.PID)
	})
	must.OK(t, nd.WaitReady(nodetest.Context(t)))
	got := stream(t, nd, 200, func() {})
	if got.By[client.StatusOK] != 200 || got.Wrong > 0 {
		t.Errorf("%s; want 200 right answers from the new manager", got)
	}
}

// oldChild is nodetest.Child, and waits until the child is so old that its death does not count as a failure to start.
func oldChild(t *testing.T, nd *node.Node, verb string) int {
	t.Helper()
	pid := nodetest.Child(t, nd, verb)
	wait.For(t, verb+" to get old", func() bool { return nodetest.Age(pid) > 2500*time.Millisecond })
	return pid
}

// newManager kills the manager and waits until the functions of the next one serve.
func newManager(t *testing.T, nd *node.Node) {
	t.Helper()
	old := oldChild(t, nd, "manager")
	nodetest.Kill(t, old)
	wait.For(t, "another manager", func() bool {
		for _, p := range nodetest.Processes(nd.Dir) {
			if p.Command == "manager" && p.PID != old && !nodetest.Alive(old) {
				return true
			}
		}
		return false
	})
	must.OK(t, nd.WaitReady(nodetest.Context(t)))
}

// An error in the configuration is one line in the log, also if a crash follows.
func TestEditUnreadable(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	nd := start(t, oneFunction(card))
	edit := func(text string) {
		t.Helper()
		must.OK(t, os.WriteFile(nd.Config, []byte(fmt.Sprintf("http: %s\ngateway: off\n%s", nd.HTTP, text)), 0o600))
	}
	has := func(name string) func() bool {
		return func() bool { _, err := nd.Function(name); return err == nil }
	}
	edit(oneFunction(card) + fmt.Sprintf("  - {name: edited, model: %s, port: 0}\n", card))
	wait.For(t, "the edit to be followed", has("edited"))
	must.OK(t, nd.WaitReady(nodetest.Context(t)))
	if out, err := run(t, nd.Dir, "if", "add", "told", "--model", nodetest.Card(t, "other", small)); err != nil {
		t.Fatalf("add: %v\n%s", err, out)
	}
	edit("functions: [{name: fn\n")
	nodetest.Logged(t, nd, "configuration rejected; keeping the last one")
	if status, err := control.ReadStatus(nodetest.Context(t), nd.Dir); err != nil || status.Configuration.Followed || status.Configuration.Error == "" {
		t.Errorf("status %+v, %v; want that the file is not followed, and why", status.Configuration, err)
	}

	nodetest.Kill(t, oldChild(t, nd, "orchestrator"))
	nodetest.Logged(t, nd, "using the last one that was accepted")
	newManager(t, nd)
	for _, name := range []string{"fn", "edited", "told"} {
		if !has(name)() {
			t.Errorf("function %s is gone", name)
		}
	}
	if status, err := control.ReadStatus(nodetest.Context(t), nd.Dir); err != nil || status.Configuration.Error == "" {
		t.Errorf("status %+v, %v; want that of the next manager to say so, too", status.Configuration, err)
	}
	if got := stream(t, nd, 50, func() {}); got.By[client.StatusOK] != 50 {
		t.Errorf("%s; want 50 right answers", got)
	}
	edit(oneFunction(card))
	wait.For(t, "the mended file to be followed", func() bool { return !has("edited")() && has("fn")() })
	if !has("told")() {
		t.Error("an edit that does not name it has removed the function that `penstock if add` made")
	}
}

// Changes by an operator must survive a crash of the manager. The next manager keeps them
// until the configuration file changes.
func TestChangesOutliveManager(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	// No other program takes these ports between two managers. The manager's own tests have ports
	// that the kernel chose.
	first, second := freePort(t).Port(), freePort(t).Port()
	config := strings.Replace(oneFunction(card), "port: 0", fmt.Sprintf("port: %d", first), 1)
	nd := start(t, config+fmt.Sprintf("  - {name: gone, model: %s, port: 0}\n", card))
	for _, told := range [][]string{
		{"add", "second", "--model", nodetest.Card(t, "other", small), "--port", fmt.Sprint(second)},
		{"replace", "fn", secondVersion(t)},
		{"remove", "gone"},
		{"share", "second", "20"},
	} {
		if out, err := run(t, nd.Dir, append([]string{"if"}, told...)...); err != nil {
			t.Fatalf("%s: %v\n%s", told[0], err, out)
		}
	}
	wait.For(t, "the function to be gone", func() bool {
		_, err := nd.Function("gone")
		return err != nil
	})
	ports := map[string]string{"fn": nodetest.Address(t, nd, "fn"), "second": nodetest.Address(t, nd, "second")}

	newManager(t, nd)
	for name, port := range ports {
		if now := nodetest.Address(t, nd, name); now != port {
			t.Errorf("%s is at %s, and was at %s", name, now, port)
		}
	}
	if _, err := nd.Function("gone"); err == nil {
		t.Error("the function that was removed is back")
	}
	if f, err := nd.Function("second"); err != nil || f.SharePercent != 20 {
		t.Errorf("second has %v %%, %v; want the 20 it was given", f.SharePercent, err)
	}
	if v := versionOf(t, nd, "fn"); v != 2 {
		t.Errorf("version %d answers, want 2, which was brought in", v)
	}
	if out, err := run(t, nd.Dir, "if", "rollback", "fn"); err != nil {
		t.Errorf("rollback: %v\n%s", err, out)
	}
	wait.For(t, "version 1 to answer", func() bool { return versionOf(t, nd, "fn") == 1 })

	// A damaged record is ignored.
	must.OK(t, os.Truncate(filepath.Join(nd.Dir, control.RecordFile), 100))
	newManager(t, nd)
	for name, want := range map[string]bool{"fn": true, "gone": true, "second": false} {
		if _, err := nd.Function(name); (err == nil) != want {
			t.Errorf("function %s: %v; want it there: %v", name, err, want)
		}
	}
	nodetest.Logged(t, nd, "cannot restore changes made at run time")
}

func TestHungProcess(t *testing.T) {
	t.Parallel()
	nd := start(t, "hang_timeout: 500ms\n"+oneFunction(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=hang_after=20")
	got := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "fn", client.Options{Deliver: got.Deliver(small), Timeout: 30 * time.Second})
	nodetest.Send(t, c, small, 0, 60, 5*time.Millisecond)
	got.Wait(60)
	if got.Lost > 0 || got.Wrong > 0 || got.By[client.StatusFailed] == 0 {
		t.Errorf("%s; want every request answered, some of them failed", got)
	}
	if nodetest.Metric(t, nd, `penstock_hangs_total{function="fn"}`) == 0 {
		t.Error("no hang was counted")
	}
	nodetest.Settled(t, nd, "fn")
}

func TestAnswersNaN(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=nan")
	got := stream(t, nd, 50, func() {})
	if got.By[client.StatusFailed] != 50 {
		t.Errorf("%s; want 50 failed", got)
	}
	nodetest.Settled(t, nd, "fn")
}

func TestTerminateUnderLoad(t *testing.T) {
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=busy=5ms")
	got := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "fn", client.Options{Deliver: got.Deliver(small), Timeout: patience, InFlight: 32})
	// The load continues until it is seen in the status, because earlier requests may all be
	// answered by then.
	loading, seen := context.WithCancel(t.Context())
	var sender sync.WaitGroup
	sender.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-loading.Done():
				return
			case <-time.After(time.Millisecond):
			}
			_, _ = c.Send(nodetest.Picture(small, i), client.RequestOptions{Tag: uint64(i)})
		}
	})
	var before control.FunctionStatus
	wait.For(t, "load", func() bool {
		var err error
		before, err = nd.Function("fn")
		return err == nil && before.Accepted >= 300 && before.InFlight > 0
	})
	seen()
	sender.Wait()
	if err := nd.Stop(); err != nil {
		t.Fatalf("want exit status 0: %v", err)
	}
	wait.For(t, fmt.Sprintf("answers to the %d requests that were accepted before the end", before.Accepted), func() bool { return got.Accepted() >= before.Accepted })
	c.Close()
}
