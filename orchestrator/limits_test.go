package orchestrator

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/cpushare"
)

// greed takes as much as it can of something, up to a bound that is above the limits of the tests. It runs in a
// function's process, and returns how much it got and the error that stopped it.
func greed(what string) string {
	switch what {
	case "processes":
		n, err := 0, error(nil)
		for ; err == nil && n < 2*testLimits.tasks; n++ {
			err = exec.Command("sleep", "1000").Start()
		}
		return fmt.Sprintf("processes: %v", err)
	case "output":
		line := strings.Repeat("x", 1000) + "\n"
		for range 4 << 20 / len(line) {
			fmt.Print(line)
		}
		return "output: written"
	}
	f, err := os.Create(filepath.Join(what, "greedy"))
	if err != nil {
		return err.Error()
	}
	defer os.Remove(f.Name())
	defer f.Close()
	n, chunk := int64(0), make([]byte, 1<<20)
	for ; err == nil && n < testLimits.memory; n += int64(len(chunk)) {
		_, err = f.Write(chunk)
	}
	return fmt.Sprintf("file: %v", errors.Is(err, unix.ENOSPC))
}

// testLimits are the limits of these tests. A process of Go has about 20 threads.
var testLimits = struct {
	memory int64
	tasks  int
}{128 << 20, 100}

// limitedNode is an orchestrator that enforces limits.
func limitedNode(t *testing.T) *realNode {
	t.Helper()
	limits := cgroup.Limits{MemoryBytes: testLimits.memory, Tasks: int64(testLimits.tasks)}
	s, err := cpushare.Open("", 1, os.Getpid(), zerolog.Nop())
	must.OK(t, err)
	_, err = s.Hold("probe", limits, true)
	must.OK(t, s.Close())
	if err != nil {
		t.Skipf("not on this machine: needs control groups: %v", err)
	}
	return newNode(t).run(func(o *Options) {
		plainOptions{Dir: o.Dir, Sandbox: true}.to(o)
		o.Sandbox.Limits = limits
	})
}

func TestLimitOfMemory(t *testing.T) {
	n := limitedNode(t)
	n.want(n.child(1, control.Serve, "hog"))
	const want = "out of memory: the kernel's OOM killer sent signal 9 (the function used more than sandbox.memory 128MiB"
	if p := n.untilState(1, control.Failed); !strings.HasPrefix(p.Reason, want) {
		t.Errorf("failed: %q, want %q", p.Reason, want)
	}
	n.want()
}

func TestLimitOfProcesses(t *testing.T) {
	n := limitedNode(t)
	n.want(n.child(1, control.Shadow, "greedy", "processes"))
	if p := n.untilState(1, control.Loaded); !strings.Contains(p.Reason, unix.EAGAIN.Error()) {
		t.Errorf("a process with more than %d processes: %s", testLimits.tasks, p.Reason)
	}
	const want = "the function has reached sandbox.processes 100"
	wait.For(t, "the log to say "+want, func() bool { return strings.Contains(n.log.String(), want) })
	n.want(n.child(1, control.Kill, "greedy", "processes"))
	n.untilState(1, control.Stopped)
	n.want()
}

func TestLimitOfFiles(t *testing.T) {
	asRoot(t)
	for name, folder := range map[string]string{"private folder": "", "shared memory": "/dev/shm"} {
		t.Run(name, func(t *testing.T) {
			n := limitedNode(t)
			if folder == "" {
				folder = privateFolder(n.dir, key{"face", 0, 1})
			}
			n.want(n.child(1, control.Shadow, "greedy", folder))
			if p := n.untilState(1, control.Loaded); p.Reason != "file: true" {
				t.Errorf("%s: want no space after half of the limit of memory", p.Reason)
			}
			if _, err := os.Stat(filepath.Join(folder, "greedy")); err == nil {
				t.Error("other processes see the file")
			}
			n.want(n.child(1, control.Kill, "greedy", folder))
			n.untilState(1, control.Stopped)
			n.want()
		})
	}
}

func TestLimitOfOutput(t *testing.T) {
	n := newNode(t).run()
	n.want(n.child(1, control.Shadow, "greedy", "output"))
	n.untilState(1, control.Loaded)
	n.want(n.child(1, control.Kill, "greedy", "output"))
	n.untilState(1, control.Stopped)
	text := n.log.String()
	if len(text) > 2<<20 {
		t.Errorf("the log has %d bytes", len(text))
	}
	if dropped := strings.Count(text, "dropped lines"); dropped == 0 || dropped > 5 {
		t.Errorf("the log says %d times that lines were dropped", dropped)
	}
}
