package evaluate

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"golang.org/x/sys/unix"
)

// If a call is killed, its node ends too. Otherwise the next call would measure while that
// node runs.
func TestOrphans(t *testing.T) {
	command := exec.Command(builtLab(t), "evaluate", "--figure", "fig16", "--device", "cpu", "--quick", "--runs", "1", "--out", t.TempDir())
	// The test removes this folder, and with it the files that a killed call leaves. Its name
	// is short because the path of a Unix socket is limited.
	folder, err := os.MkdirTemp("", "p")
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	command.Env = append(os.Environ(), "TMPDIR="+folder)
	var said bytes.Buffer
	command.Stderr = &said
	command.WaitDelay = time.Second // do not wait for other processes that have the pipe open
	must.OK(t, command.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // it was killed: ignore the error
	}()
	// `up`, a manager, an orchestrator, and an inference function.
	const node = 4
	var below map[int]string
	wait.For(t, "a whole node", func() bool {
		before := below
		below = descendants(t, command.Process.Pid)
		// The list must be stable, and no process may still show its parent's command line.
		return len(below) >= node && maps.Equal(below, before)
	})
	command.Process.Kill()
	<-ended
	// A process that was started while they were counted ends with its parent.
	left := func() (pids []int) {
		for pid, line := range below {
			if commandLine(pid) == line {
				pids = append(pids, pid)
			}
		}
		return pids
	}
	defer func() {
		for _, pid := range left() {
			_ = unix.Kill(pid, unix.SIGKILL) // the test has failed
		}
	}()
	wait.For(t, fmt.Sprintf("the end of %v", below), func() bool { return len(left()) == 0 })
}

// descendants returns the processes below a process, with their command lines.
func descendants(t *testing.T, of int) map[int]string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must.OK(t, err)
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat")) // the process may have ended
		// proc_pid_stat(5): pid, name in brackets, state, parent.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 1 {
			if parent, err := strconv.Atoi(fields[1]); err == nil {
				children[parent] = append(children[parent], pid)
			}
		}
	}
	below := map[int]string{}
	for next := children[of]; len(next) > 0; next = next[1:] {
		if line := commandLine(next[0]); line != "" {
			below[next[0]] = line
		}
		next = append(next, children[next[0]]...)
	}
	return below
}

// commandLine returns a process's command line, with zero bytes between the words. It is
// empty if the process has ended, even before its parent waits for it.
func commandLine(pid int) string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return string(line)
}
