package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
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

// outageBound is the max time that a function may be without answers because its orchestrator
// died. Serving processes are not affected then. On a busy machine delayFactor times the max delay
// of this process is added.
const (
	outageBound = 1500 * time.Millisecond
	delayFactor = 10
)

// startRecorded is start, and stores the whole log.
func startRecorded(t *testing.T, config string, environment ...string) (*node.Node, *lines) {
	t.Helper()
	log := &lines{}
	return startWith(t, node.Options{Config: config, Environment: environment, Log: log}), log
}

// traffic sends pictures to a function until stop, and records when answers arrived.
type traffic struct {
	function string
	got      *nodetest.Answers
	sent     int
	stop     chan struct{}
	done     chan struct{}

	mu    sync.Mutex
	last  time.Time
	gap   time.Duration // the longest time between two answers
	delay time.Duration // the max delay of a request, because the machine was busy
}

func drive(t *testing.T, nd *node.Node, function string, every time.Duration) *traffic {
	t.Helper()
	f := &traffic{function: function, got: nodetest.NewAnswers(), stop: make(chan struct{}), done: make(chan struct{})}
	deliver := f.got.Deliver(small)
	c := nodetest.Dial(t, nd, function, client.Options{Timeout: 20 * time.Second, InFlight: 64, Deliver: func(r *client.Result) {
		f.mu.Lock()
		now := time.Now()
		if !f.last.IsZero() {
			f.gap = max(f.gap, now.Sub(f.last))
		}
		f.last = now
		f.mu.Unlock()
		deliver(r)
	}})
	go func() {
		defer close(f.done)
		for ; ; f.sent++ {
			due := time.Now().Add(every)
			select {
			case <-f.stop:
				return
			case <-time.After(every):
			}
			f.mu.Lock()
			f.delay = max(f.delay, time.Since(due))
			f.mu.Unlock()
			if _, err := c.Send(nodetest.Picture(small, f.sent), client.RequestOptions{Tag: uint64(f.sent)}); err != nil {
				t.Errorf("send to %s: %v", function, err)
				return
			}
		}
	}()
	return f
}

// checkGap fails the test if the longest gap since the last call exceeds the bound. It starts
// measuring a new longest gap.
func (f *traffic) checkGap(t *testing.T, after string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	gap := f.gap
	if !f.last.IsZero() {
		gap = max(gap, time.Since(f.last))
	}
	bound := outageBound + delayFactor*f.delay
	t.Logf("%s, %s: longest gap %v, bound %v", f.function, after, gap.Round(time.Millisecond), bound.Round(time.Millisecond))
	if gap > bound {
		t.Errorf("%s, %s: no answer for %v, want at most %v", f.function, after, gap, bound)
	}
	f.gap, f.delay, f.last = 0, 0, time.Now()
}

// end stops sending, and checks that every request was answered correctly.
func (f *traffic) end(t *testing.T, nd *node.Node) {
	t.Helper()
	close(f.stop)
	<-f.done
	f.got.Wait(f.sent)
	if ok := f.got.By[client.StatusOK] + f.got.By[client.StatusLate]; ok != f.sent || f.got.Lost > 0 || f.got.Wrong > 0 {
		t.Errorf("%s: %d sent, %s; want every request answered, and right", f.function, f.sent, f.got)
	}
	nodetest.Settled(t, nd, f.function)
}

// threeFunctions returns a configuration with shares that change by a swap.
func threeFunctions(t *testing.T) string {
	t.Helper()
	config := "log: {level: debug}\nshares: {policy: gslice, tune: false, change: shadow}\nfunctions:\n"
	for _, name := range []string{"face", "fashion", "detect"} {
		config += fmt.Sprintf("  - {name: %s, model: %s, port: 0, share_percent: 20}\n", name, nodetest.Card(t, "digest", small))
	}
	return config
}

var threeNames = []string{"face", "fashion", "detect"}

// nodeProcesses returns the node's inference functions, by instance and generation.
func nodeProcesses(t *testing.T, nd *node.Node) map[string]int {
	t.Helper()
	all := map[string]int{}
	wait.For(t, "active processes and shadows", func() bool {
		status, err := nd.Status()
		if err != nil {
			return false
		}
		clear(all)
		for _, f := range status.Functions {
			_, serves := f.Instances[0].Serving()
			_, standsBy := f.Instances[0].Standby()
			if !serves || !standsBy || len(f.Instances[0].Processes) != 2 {
				return false
			}
			for _, p := range f.Instances[0].Processes {
				all[fmt.Sprintf("%s#%d", f.Name, p.Generation)] = p.PID
			}
		}
		return len(all) == 6
	})
	return all
}

// killOrchestrator kills the orchestrator and waits for the next one.
func killOrchestrator(t *testing.T, nd *node.Node) (back time.Duration) {
	t.Helper()
	old := nodetest.Child(t, nd, "orchestrator")
	began := time.Now()
	nodetest.Kill(t, old)
	wait.For(t, "another orchestrator", func() bool {
		return slices.ContainsFunc(nodetest.Processes(nd.Dir), func(p nodetest.Process) bool {
			return p.Command == "orchestrator" && p.PID != old && !nodetest.Alive(old)
		})
	})
	return time.Since(began)
}

// checkGenerations checks in the log that no generation had two processes, and that the
// manager refused none.
func checkGenerations(t *testing.T, log *lines) {
	t.Helper()
	had := map[string]int{}
	for line := range strings.Lines(log.String()) {
		var l struct {
			Message, If string
			Instance    int
			Generation  uint32
			PID         int
		}
		if json.Unmarshal([]byte(line), &l) != nil {
			continue
		}
		if l.Message == "refused to attach process" {
			t.Errorf("refused: %s", line)
		}
		if l.PID != 0 && l.Generation != 0 {
			id := fmt.Sprintf("%s/%d#%d", l.If, l.Instance, l.Generation)
			if before := had[id]; before != 0 && before != l.PID {
				t.Errorf("%s was process %d, and then %d", id, before, l.PID)
			}
			had[id] = l.PID
		}
	}
	if len(had) == 0 {
		t.Error("the log has no process")
	}
}

func TestOrchestratorKilled(t *testing.T) {
	t.Parallel()
	nd, log := startRecorded(t, threeFunctions(t))
	before := nodeProcesses(t, nd)
	var all []*traffic
	for _, name := range threeNames {
		all = append(all, drive(t, nd, name, 5*time.Millisecond))
	}
	oldChild(t, nd, "orchestrator")
	for _, f := range all {
		f.checkGap(t, "nothing killed")
	}
	for i := range 5 {
		back := killOrchestrator(t, nd)
		oldChild(t, nd, "orchestrator")
		for _, f := range all {
			f.checkGap(t, fmt.Sprintf("kill %d, orchestrator back after %v", i+1, back.Round(time.Millisecond)))
		}
	}
	killOrchestrator(t, nd) // and twice in a row
	killOrchestrator(t, nd)
	for _, f := range all {
		f.end(t, nd)
	}
	if after := nodeProcesses(t, nd); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("processes %v, want still %v", after, before)
	}
	checkGenerations(t, log)

	// The new orchestrator works.
	if out, err := run(t, nd.Dir, "if", "share", "face", "30"); err != nil {
		t.Fatalf("share: %v\n%s", err, out)
	}
	wait.For(t, "the new share", func() bool {
		f, err := nd.Function("face")
		return err == nil && f.SharePercent == 30
	})
	if err := nd.Stop(); err != nil {
		t.Errorf("want exit status 0: %v", err)
	}
}

func TestOrchestratorKilledInSwap(t *testing.T) {
	t.Parallel()
	nd, log := startRecorded(t, threeFunctions(t))
	nodeProcesses(t, nd)
	f := drive(t, nd, "face", 5*time.Millisecond)
	oldChild(t, nd, "orchestrator")
	f.checkGap(t, "nothing killed")
	swaps := func() uint64 {
		s, err := nd.Function("face")
		must.OK(t, err)
		return s.Swaps
	}
	for i, delay := range []time.Duration{0, 2, 5, 10, 20, 40, 80} {
		had := swaps()
		share := 20 + float64(i%2)*5 + 5
		if out, err := run(t, nd.Dir, "if", "share", "face", fmt.Sprint(share)); err != nil {
			t.Fatalf("share: %v\n%s", err, out)
		}
		time.Sleep(delay * time.Millisecond)
		killOrchestrator(t, nd)
		wait.For(t, "the swap", func() bool { return swaps() == had+1 })
		nodeProcesses(t, nd)
		s, err := nd.Function("face")
		if err != nil || s.SharePercent != share {
			t.Errorf("the share is %v, %v; want %v", s.SharePercent, err, share)
		}
		f.checkGap(t, fmt.Sprintf("kill %v after the order of a swap", delay*time.Millisecond))
	}
	f.end(t, nd)
	checkGenerations(t, log)
}

func TestOrchestratorKilledEarly(t *testing.T) {
	t.Parallel()
	nd, log := startRecorded(t, oneFunction(nodetest.Card(t, "digest", small)))
	nodetest.Serving(t, nd, "fn")
	card := nodetest.Card(t, "other", small)
	for i, delay := range []time.Duration{0, 1, 3, 10, 30} {
		name := fmt.Sprintf("more%d", i)
		added := make(chan error, 1)
		go func() {
			out, err := run(t, nd.Dir, "if", "add", name, "--model", card)
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			added <- err
		}()
		wait.For(t, "the function", func() bool { _, err := nd.Function(name); return err == nil })
		time.Sleep(delay * time.Millisecond)
		killOrchestrator(t, nd)
		if err := <-added; err != nil {
			t.Errorf("add %s: %v", name, err)
		}
		nodetest.Serving(t, nd, name)
		if out, err := run(t, nd.Dir, "if", "remove", name); err != nil {
			t.Errorf("remove %s: %v\n%s", name, err, out)
		}
	}
	checkGenerations(t, log)
}

// If a process dies while there is no orchestrator, its shadow replaces it. The next
// orchestrator wakes the shadow.
func TestOrchestratorAndProcessKilled(t *testing.T) {
	t.Parallel()
	nd, log := startRecorded(t, oneFunction(nodetest.Card(t, "digest", small)))
	active, shadow := nodetest.Serving(t, nd, "fn")
	nodetest.Kill(t, oldChild(t, nd, "orchestrator"))
	nodetest.Kill(t, active.PID)
	nodetest.ShadowServes(t, nd, "fn", shadow)
	now, _ := nodetest.Serving(t, nd, "fn")
	if now.PID != shadow.PID {
		t.Errorf("process %d serves, want the shadow, %d", now.PID, shadow.PID)
	}
	var last *control.ProcessFailure
	wait.For(t, "the reason", func() bool {
		f, err := nd.Function("fn")
		if err != nil {
			return false
		}
		last = f.Instances[0].LastFailure
		return last != nil
	})
	if last.PID != active.PID || last.Reason != "killed by signal 9 (not by Penstock)" {
		t.Errorf("last failure %+v", last)
	}
	checkGenerations(t, log)
}

// All processes end with up, also if up is killed.
func TestUpKilled(t *testing.T) {
	t.Parallel()
	nd, _ := startRecorded(t, oneFunction(nodetest.Card(t, "digest", small)))
	nodetest.Serving(t, nd, "fn")
	nodetest.Kill(t, nd.PID())
	wait.For(t, "all processes to end", func() bool { return len(nodetest.Processes(nd.Dir)) == 0 })
}
