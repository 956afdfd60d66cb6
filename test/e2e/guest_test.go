package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/swaptest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// guestProcess is `penstock run` with a shell script.
type guestProcess struct {
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr bytes.Buffer
	mark   string // in the environment of all its processes
}

// startGuest runs a script that prints a line first.
func startGuest(t *testing.T, nd *node.Node, script string, flags ...string) *guestProcess {
	t.Helper()
	args := append([]string{"run", "--runtime-dir", nd.Dir}, flags...)
	g := &guestProcess{cmd: exec.CommandContext(nodetest.Context(t), penstock, append(args, "--", "sh", "-c", script)...)}
	g.mark = fmt.Sprintf("E2E_GUEST=%s-%p", filepath.Base(nd.Dir), g)
	g.cmd.Env = append(os.Environ(), g.mark)
	g.cmd.Stderr = &g.stderr
	g.cmd.WaitDelay = patience
	stdout, err := g.cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, g.cmd.Start())
	t.Cleanup(func() {
		g.cmd.Process.Kill()
		g.cmd.Wait()
		wait.For(t, "the guest's processes to end", func() bool { return len(g.processes()) == 0 })
	})
	g.out = bufio.NewReader(stdout)
	if line, err := g.out.ReadString('\n'); err != nil {
		g.cmd.Wait()
		t.Fatalf("guest printed %q (%v): %s", line, err, &g.stderr)
	}
	return g
}

// processes lists the processes of a guest, without `penstock run`, which has the mark too.
func (g *guestProcess) processes() (pids []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range names {
		environment, _ := os.ReadFile(name)
		pid := filepath.Base(filepath.Dir(name))
		if bytes.Contains(environment, []byte(g.mark+"\x00")) && pid != fmt.Sprint(g.cmd.Process.Pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// end waits for `penstock run`, and returns its status, or the negative signal that ended it.
func (g *guestProcess) end(t *testing.T) int {
	t.Helper()
	io.Copy(io.Discard, g.out)
	err := g.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("wait for guest: %v: %s", err, &g.stderr)
	}
	if status := g.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return -int(status.Signal())
	}
	return g.cmd.ProcessState.ExitCode()
}

func guests(t *testing.T, nd *node.Node) (list []control.GuestStatus) {
	t.Helper()
	out, err := run(t, nd.Dir, "guest", "list", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &list)
	}
	if err != nil {
		t.Fatalf("list guests: %v: %s", err, out)
	}
	return list
}

// order runs a verb of `penstock guest`.
func order(t *testing.T, nd *node.Node, verb, name string) {
	t.Helper()
	if out, err := run(t, nd.Dir, "guest", verb, name); err != nil {
		t.Errorf("guest %s %s: %v: %s", verb, name, err, out)
	}
}

// stubborn ignores SIGTERM, and has a process in another session that does, too.
const stubborn = `trap "" TERM; setsid sh -c 'trap "" TERM; while :; do sleep 1; done' & echo there; while :; do sleep 1; done`

func TestGuest(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	nodetest.Serving(t, nd, "fn")

	t.Run("status", func(t *testing.T) {
		for script, want := range map[string]int{
			"echo; exit 0": 0, "echo; exit 42": 42, "echo; kill -KILL $$": 137, "echo; kill -TERM $$": -15,
			"echo; kill -INT $$": -2,
		} {
			if got := startGuest(t, nd, script).end(t); got != want {
				t.Errorf("%s: status %d, want %d", script, got, want)
			}
		}
	})
	t.Run("bad input", func(t *testing.T) {
		for _, c := range []struct {
			status int
			words  string
			args   []string
		}{
			{125, "no command", []string{"--runtime-dir", nd.Dir}},
			{127, "not found", []string{"--runtime-dir", nd.Dir, "--", "no-such-command"}},
			{126, "permission denied", []string{"--runtime-dir", nd.Dir, "--", "/etc/passwd"}},
			{125, "40GiB", []string{"--runtime-dir", nd.Dir, "--memory", "much", "--", "true"}},
			{125, "name", []string{"--runtime-dir", nd.Dir, "--name", "../x", "--", "true"}},
			{125, "unknown flag", []string{"--runtime-dir", nd.Dir, "--slow", "--", "true"}},
			{125, "penstock up", []string{"--runtime-dir", t.TempDir(), "--", "true"}},
		} {
			out, err := exec.CommandContext(nodetest.Context(t), penstock, append([]string{"run"}, c.args...)...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != c.status || !strings.Contains(string(out), c.words) || bytes.Count(out, []byte("\n")) != 1 {
				t.Errorf("run %q: %v: %s; want status %d and one line with %q", c.args, err, out, c.status, c.words)
			}
		}
		failsInOneLine(t, nd, []string{"nobody"}, "guest", "stop", "nobody")
	})
	t.Run("signal", func(t *testing.T) {
		g := startGuest(t, nd, `trap "exit 9" TERM; echo there; while :; do sleep 0.01; done`)
		g.cmd.Process.Signal(syscall.SIGTERM)
		if got := g.end(t); got != 9 {
			t.Errorf("status %d, want 9 from the script's own trap", got)
		}
	})
	t.Run("killed", func(t *testing.T) {
		g := startGuest(t, nd, stubborn)
		nodetest.Kill(t, g.cmd.Process.Pid)
		wait.For(t, "its processes to end", func() bool { return len(g.processes()) == 0 })
		wait.For(t, "the node to forget it", func() bool { return len(guests(t, nd)) == 0 })
	})
	t.Run("pause", func(t *testing.T) {
		g := startGuest(t, nd, "echo there; while :; do :; done", "--name", "busy")
		spent := func() int64 {
			for _, one := range guests(t, nd) {
				if one.Name == "busy" {
					return one.CPUMillis
				}
			}
			t.Fatal("the guest is not in the list")
			return 0
		}
		wait.For(t, "CPU time", func() bool { return spent() > 0 })
		order(t, nd, "pause", "busy")
		before := wait.Still(t, "the paused guest's CPU time", 100*time.Millisecond, spent) // it may count late
		if list := guests(t, nd); list[0].State != control.GuestPaused || !strings.HasPrefix(list[0].Command, "sh -c echo there") {
			t.Errorf("listed as %+v", list[0])
		}
		order(t, nd, "resume", "busy")
		wait.For(t, "more CPU time", func() bool { return spent() > before })
		g.cmd.Process.Signal(syscall.SIGTERM)
		if got := g.end(t); got != -15 {
			t.Errorf("status %d, want SIGTERM", got)
		}
	})
	t.Run("stop", func(t *testing.T) {
		g := startGuest(t, nd, stubborn, "--name", "stubborn")
		order(t, nd, "stop", "stubborn")
		if left := g.processes(); len(left) > 0 {
			t.Errorf("processes %v are left", left)
		}
		if got := g.end(t); got != 137 || !strings.Contains(g.stderr.String(), "penstock guest stop") {
			t.Errorf("status %d, said %s; want 137, and why", got, &g.stderr)
		}
	})
	t.Run("forks", func(t *testing.T) {
		g := startGuest(t, nd, "echo there; for i in 1 2 3 4; do (while :; do /bin/true; done) & done; wait")
		got := stream(t, nd, 400, func() {})
		if got.By[client.StatusOK] != 400 || got.Lost > 0 || got.Wrong > 0 {
			t.Errorf("%s; want 400 right answers next to a guest that forks", got)
		}
		g.cmd.Process.Signal(syscall.SIGTERM)
		g.end(t)
		wait.For(t, "its processes to end", func() bool { return len(g.processes()) == 0 })
	})
	t.Run("orchestrator killed", func(t *testing.T) {
		g := startGuest(t, nd, "echo there; while :; do sleep 1; done")
		killOrchestrator(t, nd)
		if got := g.end(t); got >= 0 && got < 128 || !strings.Contains(g.stderr.String(), "orchestrator ended") {
			t.Errorf("status %d, said %s; want it ended, and why", got, &g.stderr)
		}
		wait.For(t, "the next orchestrator to run guests", func() bool {
			out, err := exec.CommandContext(nodetest.Context(t), penstock, "run", "--runtime-dir", nd.Dir, "--", "echo", "again").CombinedOutput()
			return err == nil && strings.Contains(string(out), "again")
		})
	})
	t.Run("node stops", func(t *testing.T) {
		g := startGuest(t, nd, "echo there; while :; do sleep 1; done")
		if err := nd.Stop(); err != nil {
			t.Error(err)
		}
		if got := g.end(t); got >= 0 && got < 128 || strings.Count(g.stderr.String(), "ending") != 1 {
			t.Errorf("status %d, said %s; want it ended, and one line that says why", got, &g.stderr)
		}
	})
}

// TestGuestOnGPU fails a fake GPU while a guest is a client of MPS.
func TestGuestOnGPU(t *testing.T) {
	t.Parallel()
	// A warm-up runs more than 30 batches, and must not fail.
	nd := start(t, "device: cuda\n"+unconfined+fmt.Sprintf("functions: [{name: fn, model: %s, port: 0, environment: {PENSTOCK_NULL: \"fault_after=100\"}}]\n",
		nodetest.Card(t, "digest", small)), withGPU(t, true)...)
	nodetest.Serving(t, nd, "fn")
	const script = `echo "$CUDA_MPS_CLIENT_PRIORITY $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"; while :; do sleep 1; done`
	inside := startGuest(t, nd, script, "--memory", "1GiB", "--name", "inside")
	own := startGuest(t, nd, script, "--own", "--name", "own")
	if list := guests(t, nd); len(list) != 2 || list[0].Device != "mps" || list[1].Device != "own" {
		t.Errorf("listed as %+v", list)
	}

	got := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "fn", client.Options{Deliver: got.Deliver(small), Timeout: 20 * time.Second})
	sent := 0
	wait.For(t, "the fault", func() bool {
		nodetest.Send(t, c, small, sent, 1, 0)
		sent++
		got.Wait(sent)
		return len(inside.processes()) == 0
	})
	if status := inside.end(t); status != 137 || !strings.Contains(inside.stderr.String(), "the GPU failed") {
		t.Errorf("guest inside MPS: status %d, said %s; want it killed, and why", status, &inside.stderr)
	}
	again := exec.CommandContext(nodetest.Context(t), penstock, "run", "--runtime-dir", nd.Dir, "--", "sh", "-c", script)
	wait.For(t, "MPS to run again", func() bool {
		out, err := exec.CommandContext(nodetest.Context(t), penstock, "run", "--runtime-dir", nd.Dir, "--", "true").CombinedOutput()
		return err == nil || !strings.Contains(string(out), "try again")
	})
	if out, err := again.CombinedOutput(); err == nil || !strings.Contains(string(out), "--own") {
		t.Errorf("the same command: %v: %s; want a refusal that names --own", err, out)
	}
	if len(own.processes()) == 0 {
		t.Error("the guest outside MPS has ended")
	}
	nodetest.Serving(t, nd, "fn")
	own.cmd.Process.Signal(syscall.SIGTERM)
	own.end(t)
	if got.Lost > 0 || got.Wrong > 0 {
		t.Errorf("%s; want every request answered", got)
	}
}

// swapLibrary builds what swapping guests need, and installs the library next to the binary.
var swapLibrary = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Dir(penstock)
	return dir, swaptest.Build("../../cuda/swap", dir)
})

// TestGuestWaits has a function whose batch never ends, until its process is killed.
func TestGuestWaits(t *testing.T) {
	t.Parallel()
	swaptest.Require(t)
	dir, err := swapLibrary()
	must.OK(t, err)
	nd := start(t, "device: cuda\n"+unconfined+fmt.Sprintf(
		"hang_timeout: 1m\nfunctions: [{name: fn, model: %s, port: 0, environment: {PENSTOCK_NULL: \"hang_after=100\"}}]\n",
		nodetest.Card(t, "digest", small)), withGPU(t, false)...)
	active, _ := nodetest.Serving(t, nd, "fn")
	script := fmt.Sprintf("echo begins; %s exec %s/guest proc work 20 1 </dev/null",
		strings.Join(swaptest.Environment(dir, filepath.Join(t.TempDir(), "gpu"), 32<<20), " "), dir)
	if g := startGuest(t, nd, script, "--swap"); g.end(t) != 0 {
		t.Fatalf("the guest failed next to an idle function: %s", &g.stderr)
	}

	got := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "fn", client.Options{Deliver: got.Deliver(small), Timeout: time.Minute})
	busy := func() bool {
		word, err := os.ReadFile(filepath.Join(nd.Dir, "gpu-busy"))
		return err == nil && binary.NativeEndian.Uint64(word) != 0
	}
	sent := 0
	for began := time.Now(); sent < 200 && time.Since(began) < patience; sent++ {
		nodetest.Send(t, c, small, sent, 1, 0)
		hangs := !wait.Within(500*time.Millisecond, func() bool { return got.Count() > sent })
		if hangs && busy() {
			break
		}
	}
	if !busy() {
		t.Fatal("a batch hangs, and the file does not say so")
	}

	g := startGuest(t, nd, script, "--swap")
	time.Sleep(300 * time.Millisecond)
	if len(g.processes()) == 0 {
		t.Errorf("the guest did not wait for the batch: %s", &g.stderr)
	}
	nodetest.Kill(t, active.PID)
	if status := g.end(t); status != 0 || strings.Contains(g.stderr.String(), "wait for functions") {
		t.Errorf("the guest has status %d, and said %s", status, &g.stderr)
	}
	wait.For(t, "the file to say that no batch runs", func() bool { return !busy() })
}

// TestSwappingGuests runs two guests that need 1.5 times the GPU's memory. One waits for input, and its memory is
// on the host. The other has the turn.
func TestSwappingGuests(t *testing.T) {
	t.Parallel()
	swaptest.Require(t)
	dir, err := swapLibrary()
	must.OK(t, err)
	nd := start(t, "device: cuda\n"+unconfined+fmt.Sprintf("functions: [{name: fn, model: %s, port: 0}]\n", nodetest.Card(t, "digest", small)),
		withGPU(t, false)...)
	nodetest.Serving(t, nd, "fn")

	for _, row := range []struct {
		name  string
		order func(t *testing.T, holder int)
		after func(t *testing.T, holder *guestProcess)
	}{
		{"killed", func(t *testing.T, holder int) { nodetest.Kill(t, holder) }, func(t *testing.T, holder *guestProcess) {
			if got := holder.end(t); got != 137 {
				t.Errorf("the killed guest has status %d, want 137", got)
			}
		}},
		{"paused", func(t *testing.T, _ int) { order(t, nd, "pause", "holder") }, func(t *testing.T, holder *guestProcess) {
			order(t, nd, "resume", "holder")
			holder.cmd.Process.Signal(syscall.SIGTERM)
			holder.end(t)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			folder := t.TempDir()
			gpu, input := filepath.Join(folder, "gpu"), filepath.Join(folder, "input")
			must.OK(t, syscall.Mkfifo(input, 0o600))
			line, err := os.OpenFile(input, os.O_RDWR, 0)
			must.OK(t, err)
			defer line.Close()
			// With this argument a guest has 12 MiB. That is little, because it gets idle CPU time only.
			script := func(how string) string {
				variables := strings.Join(swaptest.Environment(dir, gpu, 16<<20), " ")
				return fmt.Sprintf("%s exec %s/guest proc %s 20 1 <%s", variables, dir, how, input)
			}

			waiter := startGuest(t, nd, script("work"), "--swap", "--name", "waiter")
			holder := startGuest(t, nd, script("hold"), "--swap", "--name", "holder")
			list := guests(t, nd)
			if swaptest.UsedBytes(gpu, list[0].PID) != 0 || swaptest.UsedBytes(gpu, list[1].PID) == 0 {
				t.Error("the memory of the first guest is not on the host, or that of the second not on the GPU")
			}
			got := stream(t, nd, 100, func() {
				row.order(t, list[1].PID)
				fmt.Fprintln(line)
				if status := waiter.end(t); status != 0 {
					t.Errorf("the other guest has status %d: %s", status, &waiter.stderr)
				}
				if swaptest.UsedBytes(gpu, list[1].PID) > 0 {
					t.Error("the guest has memory on the GPU")
				}
			})
			if got.By[client.StatusOK] != 100 || got.Lost > 0 || got.Wrong > 0 {
				t.Errorf("%s; want 100 right answers next to the guests", got)
			}
			row.after(t, holder)
		})
	}
}
