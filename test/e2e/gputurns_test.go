package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// keepsGPU is what the manager logs when it passes on a turn that a process keeps.
const keepsGPU = "a process keeps the GPU while others wait"

// keptGPU reports whether the log says that this process kept a turn. On a busy machine another
// process can keep one as well.
func keptGPU(log *lines, pid int) bool {
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, keepsGPU) && strings.Contains(line, fmt.Sprintf(`"pid":%d,`, pid)) {
			return true
		}
	}
	return false
}

// withTurns runs a test with one turn for all levels, as without MPS, and with a turn per level.
func withTurns(t *testing.T, test func(t *testing.T, mps bool)) {
	t.Parallel()
	for _, mps := range []bool{false, true} {
		t.Run(fmt.Sprintf("MPS=%v", mps), func(t *testing.T) {
			t.Parallel()
			test(t, mps)
		})
	}
}

// takingTurns starts a node on a GPU with the functions fn and bad, which have the same level. A batch of bad never
// ends after 200, warm-up included. All processes have warmed up, so only requests take turns.
func takingTurns(t *testing.T, mps bool, hangTimeout time.Duration) (*node.Node, *lines) {
	t.Helper()
	card := nodetest.Card(t, "digest", small)
	nd, log := startRecorded(t, fmt.Sprintf("device: cuda\nhang_timeout: %v\nfunctions:\n", hangTimeout)+
		fmt.Sprintf("  - {name: fn, model: %s, port: 0}\n", card)+
		fmt.Sprintf("  - {name: bad, model: %s, port: 0, environment: {PENSTOCK_NULL: \"hang_after=200\"}}\n", card), withGPU(t, mps)...)
	for _, name := range []string{"fn", "bad"} {
		wait.For(t, name+" to warm up", func() bool {
			active, shadow := nodetest.Serving(t, nd, name)
			return len(active.Batches) > 1 && !active.WarmingUp && !shadow.WarmingUp
		})
	}
	return nd, log
}

// keepBusy sends requests to bad, each when the one before is answered, until stopped is set. At last a batch
// hangs.
func keepBusy(t *testing.T, nd *node.Node) (answered *atomic.Int64, stopped *atomic.Bool) {
	t.Helper()
	answered, stopped = new(atomic.Int64), new(atomic.Bool)
	var c *client.Client
	c = nodetest.Dial(t, nd, "bad", client.Options{Timeout: time.Minute, Deliver: func(r *client.Result) {
		if r.Err == nil && !stopped.Load() {
			c.Send(nodetest.Picture(small, 0), client.RequestOptions{Tag: uint64(answered.Add(1))})
		}
	}})
	nodetest.Send(t, c, small, 0, 1, 0)
	return answered, stopped
}

func TestGPUTurns(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	nd := start(t, fmt.Sprintf("device: cuda\nfunctions:\n  - {name: fn, model: %s, port: 0}\n  - {name: other, model: %s, port: 0}\n", card, card), withGPU(t, false)...)
	nodetest.Serving(t, nd, "other")
	others := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "other", client.Options{Deliver: others.Deliver(small), Timeout: 20 * time.Second})
	const sent = 200
	got := stream(t, nd, 2*sent, func() { nodetest.Send(t, c, small, 0, sent, time.Millisecond) })
	others.Wait(sent)
	for name, a := range map[string]*nodetest.Answers{"fn": got, "other": others} {
		if a.Wrong > 0 || a.Lost > 0 {
			t.Errorf("%s: %s", name, a)
		}
	}
	list, err := exec.CommandContext(nodetest.Context(t), penstock, "if", "list", "--runtime-dir", nd.Dir).CombinedOutput()
	if err != nil || !strings.Contains(string(list), "unprotected: the GPU has no MPS, so batches of all functions run one after the other") {
		t.Errorf("if list says %v\n%s", err, list)
	}
	nodetest.Settled(t, nd, "fn")
	nodetest.Settled(t, nd, "other")
}

// The turn of a process that is killed goes to others.
func TestGPUTurnKilled(t *testing.T) { withTurns(t, testTurnKilled) }

func testTurnKilled(t *testing.T, mps bool) {
	nd, log := takingTurns(t, mps, time.Minute)
	active, shadow := nodetest.Serving(t, nd, "bad")
	answered, stopped := keepBusy(t, nd)
	// If the batch is only slow, the process is killed earlier, which does no harm.
	wait.Still(t, "the number of answers", time.Second, answered.Load)
	stopped.Store(true)
	kept := keptGPU(log, active.PID) // as others warmed up, on a busy machine
	nodetest.Kill(t, active.PID)
	wait.For(t, "the shadow of bad to serve", func() bool {
		f, err := nd.Function("bad")
		if err != nil {
			return false
		}
		now, serves := f.Instances[0].Serving()
		return serves && now.Generation == shadow.Generation
	})
	got := stream(t, nd, 200, func() {})
	if got.By[client.StatusOK] != 200 || got.Wrong > 0 {
		t.Errorf("%s; want 200 right answers", got)
	}
	if !kept && keptGPU(log, active.PID) {
		t.Errorf("the log says of process %d: %q; it was killed before others waited", active.PID, keepsGPU)
	}
}

// While a process is stopped in its turn, others run next to it. It is ended like one that hangs.
func TestGPUTurnStopped(t *testing.T) { withTurns(t, testTurnStopped) }

func testTurnStopped(t *testing.T, mps bool) {
	nd, log := takingTurns(t, mps, 10*time.Second)
	active, _ := nodetest.Serving(t, nd, "bad")
	keepBusy(t, nd)
	for !keptGPU(log, active.PID) {
		stream(t, nd, 20, func() {})
	}
	must.OK(t, syscall.Kill(active.PID, syscall.SIGSTOP))
	got := stream(t, nd, 200, func() {})
	if got.By[client.StatusOK] != 200 || got.Wrong > 0 {
		t.Errorf("%s; want 200 right answers", got)
	}
	wait.For(t, "the stopped process to be ended", func() bool {
		f, err := nd.Function("bad")
		return err == nil && f.Hangs > 0
	})
	nodetest.Settled(t, nd, "fn")
}
