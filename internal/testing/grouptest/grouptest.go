// Package grouptest finds control groups that nodes of tests made, and starts processes to put into them.
package grouptest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// Of lists the control groups, of either version, that belong to processes with these ids.
func Of(pids ...int) (found []string) {
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		for _, pid := range pids {
			if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), fmt.Sprintf("penstock-%d-", pid)) {
				found = append(found, path)
			}
		}
		return nil
	})
	return found
}

// Check fails a test at its end if control groups of this process are left.
func Check(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if left := Of(os.Getpid()); len(left) > 0 {
			t.Errorf("groups are left: %v", left)
		}
	})
}

// Sleeper is a process to be limited. end kills it and waits for its end.
func Sleeper(t *testing.T) (pid int, end func()) {
	t.Helper()
	return Start(t, exec.Command("sleep", "1000"))
}

// Start starts a process. end kills it and waits for its end.
func Start(t *testing.T, cmd *exec.Cmd) (pid int, end func()) {
	t.Helper()
	must.OK(t, cmd.Start())
	end = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(end)
	return cmd.Process.Pid, end
}
