package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// probe sends a request every probeEvery and records when each was answered ok. It
// continues whatever happens to the node.
type probe struct {
	client *client.Client
	stop   chan struct{}
	sender sync.WaitGroup

	mu       sync.Mutex
	answered []time.Time // times of the ok answers, in order
	wrong    int
}

const probeEvery = 10 * time.Millisecond

func startProbe(t *testing.T, nd *node.Node, function string) *probe {
	t.Helper()
	p := &probe{stop: make(chan struct{})}
	p.client = nodetest.Dial(t, nd, function, client.Options{Timeout: 500 * time.Millisecond, InFlight: 64, Deliver: func(r *client.Result) {
		if r.Err != nil || r.Status != client.StatusOK {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.answered = append(p.answered, time.Now())
		if !nodetest.Right(r, small) {
			p.wrong++
		}
	}})
	p.sender.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-p.stop:
				return
			case <-time.After(probeEvery):
			}
			_, _ = p.client.Send(nodetest.Picture(small, i), client.RequestOptions{Tag: uint64(i)})
		}
	})
	t.Cleanup(p.end)
	return p
}

// end stops the probe. It may be called twice.
func (p *probe) end() {
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.sender.Wait()
}

// outage returns the longest time without an ok answer, between from and until.
func (p *probe) outage(from, until time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	longest, last := time.Duration(0), from
	for _, at := range p.answered {
		if at.After(from) && at.Before(until) {
			longest, last = max(longest, at.Sub(last)), at
		}
	}
	return max(longest, until.Sub(last))
}

// answeredAfter reports whether an ok answer arrived after that time.
func (p *probe) answeredAfter(t time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.answered) > 0 && p.answered[len(p.answered)-1].After(t)
}

// pids returns the process ids of a node's own processes and of its functions' processes,
// both sorted.
func pids(t *testing.T, nd *node.Node) (own, functions []int) {
	t.Helper()
	for _, p := range nodetest.Processes(nd.Dir) {
		own = append(own, p.PID)
	}
	status, err := nd.Status()
	must.OK(t, err)
	for _, f := range status.Functions {
		for _, in := range f.Instances {
			for _, p := range in.Processes {
				functions = append(functions, p.PID)
			}
		}
	}
	own = slices.DeleteFunc(own, func(pid int) bool { return slices.Contains(functions, pid) })
	slices.Sort(own)
	slices.Sort(functions)
	return own, functions
}

// steadyPIDs returns pids when it stays the same, in case the node still starts a process.
func steadyPIDs(t *testing.T, nd *node.Node) (own, functions []int) {
	t.Helper()
	both := wait.Still(t, "the node's processes", 100*time.Millisecond, func() [2][]int {
		own, functions := pids(t, nd)
		return [2][]int{own, functions}
	})
	return both[0], both[1]
}

// TestPause stops a part of a node, or all of it, as a debugger, a freezer or a paused
// virtual machine does. A process must not judge its peers by time in which it was
// stopped itself. The row "all" needs the running clock's cap: without it, the manager
// kills the functions' processes, which continue later than the manager.
func TestPause(t *testing.T) {
	// A client gives up lost requests after its Timeout of 500 ms; the rest is a margin
	// for a busy machine. An idle machine meets goal (about 0.45 s). bound is for a busy
	// one, on which an outage of 2.8 s was measured. The essential check is that no
	// process ended.
	const goal, bound = time.Second, 10 * time.Second
	pauses := []time.Duration{2200 * time.Millisecond, 5 * time.Second, 12 * time.Second}
	if testing.Short() {
		pauses = pauses[:2]
	}
	for _, victim := range []string{"orchestrator", "manager", "all"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			nd := start(t, "hang_timeout: 3s\n"+oneFunction(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=busy=4ms") // so that it is often in a batch
			nodetest.Serving(t, nd, "fn")
			own, functions := steadyPIDs(t, nd)
			p := startProbe(t, nd, "fn")
			for _, pause := range pauses {
				time.Sleep(500 * time.Millisecond) // let the node become idle
				stopped := slices.Concat(own, functions)
				if victim != "all" {
					stopped = []int{nodetest.Child(t, nd, victim)}
				}
				began := time.Now()
				signalAll(t, stopped, syscall.SIGSTOP)
				time.Sleep(pause)
				resumed := time.Now()
				if victim == "all" {
					// The functions' processes continue last: the manager has requests in
					// flight that are as old as the pause.
					signalAll(t, own, syscall.SIGCONT)
					time.Sleep(300 * time.Millisecond)
				}
				for _, pid := range stopped {
					if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
						t.Errorf("pause of %v: process %d ended: %v", pause, pid, err)
					}
				}
				time.Sleep(control.PeerTimeout + 500*time.Millisecond)

				if o, f := steadyPIDs(t, nd); !slices.Equal(o, own) || !slices.Equal(f, functions) {
					t.Errorf("pause of %v: processes were %v, %v and are %v, %v; want the same", pause, own, functions, o, f)
				}
				from := resumed
				if victim == "orchestrator" {
					from = began // requests do not pass through it
				}
				wait.For(t, "an answer after the pause", func() bool { return p.answeredAfter(resumed) })
				outage := p.outage(from, time.Now())
				t.Logf("%-12s stopped for %6v: outage %4d ms, goal %v", victim, pause, outage.Milliseconds(), goal)
				if outage > bound {
					t.Errorf("pause of %v: outage of %v, want at most %v", pause, outage, bound)
				}
			}
			p.end()
			if p.wrong > 0 {
				t.Errorf("%d answers are wrong", p.wrong)
			}
			nodetest.Settled(t, nd, "fn")
			if n := nodetest.Metric(t, nd, fmt.Sprintf("penstock_hangs_total{function=%q}", "fn")); n != 0 {
				t.Errorf("%v hangs were counted, want 0", n)
			}
		})
	}
}

func signalAll(t *testing.T, pids []int, sig syscall.Signal) {
	t.Helper()
	if len(pids) == 0 {
		t.Fatal("there is no process to signal")
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatalf("send %v to process %d: %v", sig, pid, err)
		}
	}
	if sig == syscall.SIGSTOP {
		for _, pid := range pids {
			untilStopped(t, pid)
		}
	}
}

// untilStopped waits until all threads of a process have stopped, because nodetest.Kill(2) returns
// earlier.
func untilStopped(t *testing.T, pid int) {
	t.Helper()
	running := func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("process %d has no threads: %v", pid, err)
		}
		return slices.ContainsFunc(threads, func(name string) bool {
			b, err := os.ReadFile(name)
			_, after, _ := strings.Cut(string(b), ") ")
			return err == nil && !strings.HasPrefix(after, "T")
		})
	}
	wait.For(t, fmt.Sprintf("process %d to stop", pid), func() bool { return !running() })
}
