package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"encoding/json"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/internal/testing/grouptest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/cpushare"
)

// realNode is an orchestrator with real processes, and a manager's link to it.
type realNode struct {
	t       *testing.T
	dir     string
	self    string
	log     *buffer
	manager *control.ManagerLink
	last    control.Observed
	desired control.Desired

	// For an orchestrator in its own process: folders of prepared models and of results of probes,
	// and the timeout of a probe.
	prepared, cache string
	probeTimeout    time.Duration
}

// newNode starts only the manager's end.
func newNode(t *testing.T) *realNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "ps")
	must.OK(t, err)
	self, err := os.Executable()
	must.OK(t, err)
	n := &realNode{t: t, dir: dir, self: self, log: &buffer{}}
	t.Cleanup(func() {
		if n.manager != nil { // nil if the setup failed earlier
			n.manager.Close()
		}
		os.RemoveAll(dir)
		if t.Failed() {
			t.Log(n.log.String())
		}
	})
	n.startManager("first")
	return n
}

// startManager starts the manager's end, and replaces an earlier one.
func (n *realNode) startManager(id string) {
	n.t.Helper()
	if n.manager != nil {
		n.manager.Close()
	}
	var err error
	if n.manager, err = control.ListenManager(n.dir, zerolog.Nop()); err != nil {
		n.t.Fatal(err)
	}
	n.desired = control.Desired{ManagerID: id, Devices: []string{control.DeviceCPU}, AttachSocket: filepath.Join(n.dir, "attach.sock")}
	n.want()
}

// run runs the orchestrator in this process, until the test's end.
func (n *realNode) run(edits ...func(*Options)) *realNode {
	n.t.Helper()
	o := Options{Log: zerolog.New(n.log), Self: n.self}
	plainOptions{Dir: n.dir, Mechanism: cpushare.Governor}.to(&o)
	for _, e := range edits {
		e(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
		if left := children(); len(left) > 0 {
			n.t.Errorf("children %v are left", left)
		}
	})
	return n
}

// child describes a process of this test binary that behaves as how says.
func (n *realNode) child(generation uint32, role control.Role, how ...string) control.DesiredProcess {
	p := newDesired(generation, role, 30)
	p.Command = append([]string{n.self, "child"}, how...)
	return p
}

func (n *realNode) want(processes ...control.DesiredProcess) {
	n.t.Helper()
	n.desired.Seq++
	n.desired.Processes = onDevice(n.desired.Devices, processes)
	must.OK(n.t, n.manager.Publish(n.desired))
}

func (n *realNode) until(what string, is func(control.Observed) bool) {
	n.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case n.last = <-n.manager.Observed():
			if n.last.ManagerID == n.desired.ManagerID && is(n.last) {
				return
			}
		case <-timeout:
			n.t.Fatalf("not after %v: %s; observed: %+v", patience, what, n.last)
		}
	}
}

func (n *realNode) untilState(generation uint32, state control.State) control.ObservedProcess {
	n.t.Helper()
	var found control.ObservedProcess
	n.until(fmt.Sprintf("generation %d is %s", generation, state), func(o control.Observed) bool {
		for _, p := range o.Processes {
			if p.Generation == generation && p.State == state {
				found = p
				return true
			}
		}
		return false
	})
	return found
}

func (n *realNode) untilGone(pid int) {
	n.t.Helper()
	wait.For(n.t, fmt.Sprintf("process %d to end", pid), func() bool {
		// A zombie counts as gone: init or another reaper is its parent.
		stat, _ := procstat.Read(pid)
		return stat.Ended()
	})
}

// exists reports whether a process is there and has not ended.
func exists(pid int) bool {
	stat, _ := procstat.Read(pid)
	return !stat.Ended()
}

func TestRealProcess(t *testing.T) {
	n := newNode(t).run()
	n.want(n.child(1, control.Shadow))
	p := n.untilState(1, control.Loaded)
	if stat, _ := procstat.Read(p.PID); stat.Ended() {
		t.Errorf("there is no process %d", p.PID)
	}
	n.want(n.child(1, control.Serve))
	n.untilState(1, control.Active)
	n.want(n.child(1, control.Drain))
	if p := n.untilState(1, control.Stopped); p.Reason != "the manager ordered it" {
		t.Errorf("stopped: %s", p.Reason)
	}
	n.untilGone(p.PID)
	n.want()
	n.until("it is listed no more", func(o control.Observed) bool { return len(o.Processes) == 0 })
	if !n.log.has(`"if":"face","instance":0,"generation":1,"stream":"stdout","message":"hello from face"`) {
		t.Error("its output is not in the log")
	}
}

func TestRealProcessCPUs(t *testing.T) {
	cpus := allowedCPUs()
	last := cpus[len(cpus)-1]
	n := newNode(t).run(func(o *Options) { o.CPUs = []int{last} })
	n.want(n.child(1, control.Serve))
	if p := n.untilState(1, control.Active); p.Reason != strconv.Itoa(last) {
		t.Errorf("it may run on %s, want %d", p.Reason, last)
	}
	if n.last.CPUs != 1 {
		t.Errorf("%d CPUs are observed", n.last.CPUs)
	}
	if got := allowedCPUs(); len(got) != len(cpus) {
		t.Errorf("this process itself may run on %v only", got)
	}
}

func TestRealProcessFails(t *testing.T) {
	for name, c := range map[string]struct {
		how    []string
		role   control.Role
		reason string
	}{
		"exits at once":         {[]string{"exit3"}, control.Shadow, "exit status 3: cannot open model.onnx"},
		"panics":                {[]string{"panic"}, control.Shadow, "exit status 2: panic: runtime error: index out of range"},
		"crashes":               {[]string{"crash"}, control.Serve, "segmentation"},
		"hangs in its start":    {[]string{"hang"}, control.Shadow, "no handshake within 500ms"},
		"is of another version": {[]string{"future"}, control.Shadow, fmt.Sprintf("child has control version %d, this program has %d", control.Version+1, control.Version)},
		"talks nonsense":        {[]string{"nonsense"}, control.Shadow, "protocol error"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t).run(func(o *Options) {
				if c.how[0] == "hang" {
					o.limits.handshake = 500 * time.Millisecond
				}
			})
			n.want(n.child(1, c.role, c.how...))
			p := n.untilState(1, control.Failed)
			if !strings.Contains(p.Reason, c.reason) {
				t.Errorf("failed: %s; want %s in it", p.Reason, c.reason)
			}
			n.untilGone(p.PID)
		})
	}
}

// The reason is the kernel's, even if an order failed before the exit was seen.
func TestRealProcessKilled(t *testing.T) {
	for signal, want := range map[syscall.Signal]string{
		syscall.SIGKILL: "killed by signal 9 (not by Penstock)",
		syscall.SIGBUS:  "exit status 2: SIGBUS", // Go's runtime catches it
		syscall.SIGTERM: "ended by signal 15 (terminated)",
	} {
		t.Run(signal.String(), func(t *testing.T) {
			n := newNode(t).run()
			for g := uint32(1); g <= 5; g++ {
				n.want(n.child(g, control.Serve))
				p := n.untilState(g, control.Active)
				must.OK(t, syscall.Kill(p.PID, signal))
				if signal == syscall.SIGKILL {
					n.want(n.child(g, control.Drain)) // as the manager does when the attach link ends
				}
				if p = n.untilState(g, control.Failed); !strings.HasPrefix(p.Reason, want) {
					t.Errorf("generation %d failed: %q, want %q", g, p.Reason, want)
				}
			}
		})
	}
}

func TestRealProcessOOM(t *testing.T) {
	group := limitMemory(t, 256<<20)
	n := newNode(t)
	cmd := n.orchestrate(cpushare.Governor)
	enter := func(dir string) {
		must.OK(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	}
	enter(group)
	n.want(n.child(1, control.Shadow, "hog"))
	p := n.untilState(1, control.Loaded)
	// While the function fills the group, the orchestrator is outside. The kernel frees the memory of a killed process
	// only after a while, and would kill the orchestrator too if that needed a page meanwhile.
	enter(filepath.Dir(group))
	n.want(n.child(1, control.Serve, "hog"))
	// The kernel's part takes longer on a busy machine. Only the orchestrator's part has a
	// limit.
	n.untilKilled(p.PID, group)
	p = n.untilState(1, control.Failed)
	want := "out of memory: the kernel's OOM killer sent signal 9 (memory cgroup "
	if !strings.HasPrefix(p.Reason, want) || !strings.Contains(p.Reason, filepath.Base(group)) {
		t.Errorf("failed: %q, want %q…%s", p.Reason, want, filepath.Base(group))
	}

	// The group's count does not include the next SIGKILL.
	enter(group)
	n.want(n.child(2, control.Serve))
	p = n.untilState(2, control.Active)
	must.OK(t, syscall.Kill(p.PID, syscall.SIGKILL))
	if p = n.untilState(2, control.Failed); p.Reason != "killed by signal 9 (not by Penstock)" {
		t.Errorf("failed: %q", p.Reason)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
}

// untilKilled waits until a process that fills a memory cgroup has ended. It keeps waiting
// while the process gets processor time.
func (n *realNode) untilKilled(pid int, group string) {
	n.t.Helper()
	last, moved := time.Duration(-1), time.Now()
	for ; ; time.Sleep(5 * time.Millisecond) {
		stat, _ := procstat.Read(pid)
		if stat.Ended() {
			return
		}
		if now := stat.CPUTime(); now != last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > patience {
			procs, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
			n.t.Fatalf("process %d has not run for %v, and fills no memory; its cgroup has processes %q", pid, patience, procs)
		}
	}
}

// limitMemory makes a memory cgroup inside this process's own.
func limitMemory(t *testing.T, bytes int) (dir string) {
	t.Helper()
	own, err := cgroup.CountersOf(os.Getpid())
	if err != nil {
		t.Skipf("not on this machine: needs a memory cgroup: %v", err)
	}
	if dir, err = os.MkdirTemp(filepath.Dir(own.File), "penstock-test-"); err != nil {
		t.Skipf("not on this machine: needs a memory cgroup that it may write: %v", err)
	}
	t.Cleanup(func() {
		wait.For(t, dir+" to be empty", func() bool { return os.Remove(dir) == nil })
	})
	limit := "memory.limit_in_bytes"
	if filepath.Base(own.File) == "memory.events" {
		limit = "memory.max"
	}
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(bytes)), 0); err != nil {
		t.Skipf("not on this machine: needs a memory cgroup that it may limit: %v", err)
	}
	return dir
}

func TestRealProgramMissing(t *testing.T) {
	n := newNode(t).run()
	p := newDesired(1, control.Shadow, 30)
	p.Command = []string{"/nowhere/program"}
	n.want(p)
	if q := n.untilState(1, control.Failed); !strings.Contains(q.Reason, "/nowhere/program: no such file") {
		t.Errorf("failed: %s", q.Reason)
	}
}

func TestProcessTree(t *testing.T) {
	for name, end := range map[string]struct {
		how   string
		role  control.Role
		state control.State
	}{
		"when it is killed":       {"", control.Kill, control.Stopped},
		"when it ends as ordered": {"", control.Drain, control.Stopped},
		"when it crashes":         {"crash", control.Serve, control.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t).run()
			file := filepath.Join(n.dir, "grandchild")
			n.want(n.child(1, control.Shadow, end.how, "family", file))
			n.untilState(1, control.Loaded)
			b, err := os.ReadFile(file)
			must.OK(t, err)
			grandchild, err := strconv.Atoi(string(b))
			must.OK(t, err)
			n.want(n.child(1, end.role, end.how, "family", file))
			n.untilState(1, end.state)
			n.untilGone(grandchild)
		})
	}
}

// escape starts processes that try to outlive this one: they leave its session and group if they can, and
// ignore SIGTERM. It returns their ids.
func escape() (left []int, err error) {
	for range 50 {
		sleep := exec.Command("sh", "-c", `trap "" TERM; sleep 1000 & wait`)
		sleep.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := sleep.Start(); err != nil {
			sleep = exec.Command("sh", "-c", `trap "" TERM; sleep 1000 & wait`)
			if err := sleep.Start(); err != nil {
				return nil, err
			}
		}
		left = append(left, sleep.Process.Pid)
	}
	return left, nil
}

// When a process is reported as ended, no process that it started runs. Otherwise such a process could answer
// the requests of the next version.
func TestProcessEscapes(t *testing.T) {
	for name, end := range map[string]struct {
		role  control.Role
		how   string
		state control.State
	}{
		"killed":  {control.Kill, "", control.Stopped},
		"drained": {control.Drain, "", control.Stopped},
		"crashed": {control.Serve, "crash", control.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t).run(func(o *Options) {
				plainOptions{Dir: o.Dir, Mechanism: cpushare.Governor, Sandbox: true}.to(o)
			})
			n.want(n.child(1, control.Shadow, end.how, "escapes"))
			var left []int
			n.until("it has started processes", func(o control.Observed) bool {
				return len(o.Processes) == 1 && json.Unmarshal([]byte(o.Processes[0].Reason), &left) == nil
			})
			n.want(n.child(1, end.role, end.how, "escapes"))
			n.untilState(1, end.state)
			for _, pid := range left {
				if stat, _ := procstat.Read(pid); !stat.Ended() {
					t.Errorf("process %d runs on, in state %c", pid, stat.State())
					syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		})
	}
}

// orchestrate runs an orchestrator in a separate process.
func (n *realNode) orchestrate(mechanism string, with ...string) *exec.Cmd {
	n.t.Helper()
	options, err := json.Marshal(plainOptions{Dir: n.dir, Mechanism: mechanism, Sandbox: slices.Contains(with, "sandbox"), Prepared: n.prepared, Cache: n.cache, ProbeTimeout: n.probeTimeout})
	must.OK(n.t, err)
	cmd := exec.Command(n.self, "orchestrate", string(options))
	cmd.Stderr = n.log
	must.OK(n.t, cmd.Start())
	n.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	return cmd
}

func TestOrchestratorKilled(t *testing.T) {
	n := newNode(t)
	cmd := n.orchestrate("")
	killed := cmd.Process.Pid
	// The processes ignore everything else: only the parent-death signal can end them.
	n.want(n.child(1, control.Serve, "stay", "ignoreTERM"), n.child(2, control.Shadow, "stay", "ignoreTERM"))
	a, b := n.untilState(1, control.Active), n.untilState(2, control.Loaded)
	cmd.Process.Kill()
	cmd.Wait()
	n.untilGone(a.PID)
	n.untilGone(b.PID)

	// The next orchestrator starts cleanly: new processes for the same desired state.
	cmd = n.orchestrate("")
	fresh := a
	n.until("they are started anew", func(o control.Observed) bool {
		for _, p := range o.Processes {
			if p.Generation == 1 && p.State == control.Active && p.PID != a.PID {
				fresh = p
				return true
			}
		}
		return false
	})
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	n.untilGone(fresh.PID)
	if left := grouptest.Of(killed, cmd.Process.Pid); len(left) > 0 {
		t.Errorf("groups are left: %v", left)
	}
}

func TestRunMissingCPU(t *testing.T) {
	err := Run(context.Background(), Options{Dir: t.TempDir(), Mechanism: cpushare.Governor, CPUs: []int{1000}})
	if err == nil || !strings.Contains(err.Error(), "to CPUs 1000") {
		t.Errorf("got %v", err)
	}
}

func TestQuotaHolds(t *testing.T) {
	if f := cpushare.Probe(); !f[0].Usable && !f[1].Usable {
		t.Skipf("not on this machine: needs a writable cpu controller: %+v", f)
	}
	n := newNode(t).run(func(o *Options) { o.Mechanism = "" })
	n.want(n.child(1, control.Serve, "spin"))
	p := n.untilState(1, control.Active)
	if mechanismOf(n.last) == cpushare.Governor || p.SharePercent != 30 {
		t.Errorf("observed %+v", n.last)
	}
	var procs []string
	for _, g := range grouptest.Of(os.Getpid()) {
		found, _ := filepath.Glob(filepath.Join(g, "face-0-1", "cgroup.procs"))
		procs = append(procs, found...)
	}
	if len(procs) != 1 {
		t.Fatalf("groups %v", procs)
	}
	b, err := os.ReadFile(procs[0])
	if err != nil || strings.TrimSpace(string(b)) != fmt.Sprint(p.PID) {
		t.Errorf("in its group is %q, %v; want %d", b, err, p.PID)
	}
	// The process computes on all CPUs, and the kernel throttles it.
	throttled := func() bool {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(procs[0]), "cpu.stat"))
		must.OK(t, err)
		_, rest, _ := strings.Cut(string(b), "nr_throttled ")
		return rest != "" && !strings.HasPrefix(rest, "0\n")
	}
	wait.For(t, "the kernel to stop it", throttled)
	n.want(n.child(1, control.Kill, "spin"))
	n.untilState(1, control.Stopped)
	if _, err := os.Stat(filepath.Dir(procs[0])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its group is left: %v", err)
	}
}
