package cgroup

import (
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

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/shm/cpuset"
)

// needGroups opens groups for guests on this machine.
func needGroups(t *testing.T) *Guests {
	t.Helper()
	g := NewGuests(strconv.FormatInt(time.Now().UnixNano(), 36), zerolog.Nop())
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.openLocked(); err != nil {
		t.Skipf("not on this machine: needs control groups: %v", err)
	}
	return g
}

func TestGuestGroup(t *testing.T) {
	groups := needGroups(t)
	g, missing, err := groups.Make("shell", 512<<20, nobody)
	if err != nil {
		t.Skipf("not on this machine: needs a writable control group: %v", err)
	}
	t.Log("missing:", missing)
	if !slices.ContainsFunc(missing, func(err error) bool { return errors.Is(err, ErrNoMemoryLimit) }) {
		file := filepath.Join(g.unified, "memory.max")
		if legacy := g.legacy["memory"]; legacy != "" {
			file = filepath.Join(legacy, "memory.limit_in_bytes")
		}
		if text, err := os.ReadFile(file); strings.TrimSpace(string(text)) != strconv.Itoa(512<<20) {
			t.Errorf("%s is %q, %v; want 512 MiB", file, text, err)
		}
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	if _, _, err := groups.Make("shell", 0, 0); err == nil {
		t.Error("made the same group twice")
	}
	cmd := exec.Command("sh", "-c", `read go; setsid sh -c 'while :; do :; done' & while :; do :; done`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Skipf("not on this machine: needs the right to move processes: %v", err)
	}
	must.Get(stdin.Write([]byte("go\n")))(t)
	wait.For(t, "two processes and CPU time", func() bool { return len(g.PIDs()) == 2 && g.CPUTime() > 0 })

	must.OK(t, g.Freeze(true))
	// With a normal priority, processes that are not frozen would run now.
	_ = g.Prioritize(budget.MinLevel)                                                       // without the controller they have it already
	before := wait.Still(t, "the frozen group's CPU time", 100*time.Millisecond, g.CPUTime) // its last switch may count late
	must.OK(t, g.Freeze(false))
	wait.For(t, "CPU time after thawing", func() bool { return g.CPUTime() > before })

	// A guest of root may make groups in its own.
	nested := filepath.Join(g.unified, "nested")
	must.OK(t, os.Mkdir(nested, 0o755))
	if err := writeInt(filepath.Join(nested, procsFile), int64(cmd.Process.Pid)); err != nil {
		t.Logf("a nested group takes no process here: %v", err)
	}
	if n := len(g.PIDs()); n != 2 {
		t.Errorf("%d processes with a nested group, want 2", n)
	}
	must.OK(t, g.Freeze(true))
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	if left := g.PIDs(); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

const nobody = 65534

// TestGuestLeavesGroup lets processes of two users try to leave their groups, by all folders.
func TestGuestLeavesGroup(t *testing.T) {
	groups := needGroups(t)
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, uid := range []uint32{0, nobody} {
		t.Run(fmt.Sprint("user ", uid), func(t *testing.T) {
			g, missing, err := groups.Make(fmt.Sprint("leaver-", uid), 0, int(uid))
			if err != nil {
				t.Skipf("not on this machine: needs a writable control group: %v", err)
			}
			t.Cleanup(func() {
				if err := errors.Join(g.Kill(), g.Remove()); err != nil {
					t.Error(err)
				}
			})
			script := "read go\n"
			for _, folder := range g.folders() {
				script += fmt.Sprintf("echo $$ > %s/cgroup.procs\n", filepath.Dir(folder))
			}
			cmd := exec.Command("sh", "-c", script+"echo; while :; do sleep 1; done")
			cmd.Dir = "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			stdin, err := cmd.StdinPipe()
			must.OK(t, err)
			stdout, err := cmd.StdoutPipe()
			must.OK(t, err)
			must.OK(t, cmd.Start())
			defer cmd.Wait()
			defer cmd.Process.Kill()
			if err := g.Add(cmd.Process.Pid); err != nil {
				t.Skipf("not on this machine: needs the right to move processes: %v", err)
			}
			must.Get(stdin.Write([]byte("go\n")))(t)
			must.Get(stdout.Read(make([]byte, 1)))(t)
			reported := slices.ContainsFunc(missing, func(err error) bool { return errors.Is(err, ErrCanLeave) })
			left := !slices.Contains(g.PIDs(), cmd.Process.Pid)
			if left != (uid == 0) || reported != left {
				t.Errorf("left its group: %v, reported: %v (%v)", left, reported, missing)
			}
		})
	}
}

// TestGuestIdle runs a guest and an ordinary process on one CPU. The guest gets what the other leaves.
func TestGuestIdle(t *testing.T) {
	groups := needGroups(t)
	g, missing, err := groups.Make("idle", 0, nobody)
	if err != nil || len(missing) > 0 {
		t.Skipf("not on this machine: needs all controllers: %v, %v", missing, err)
	}
	t.Cleanup(func() {
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	cpus, err := cpuset.Allowed()
	must.OK(t, err)
	const burn = "read go; while :; do :; done"
	var clocks [2]func() time.Duration
	for i := range clocks {
		cmd := exec.Command("taskset", "-c", strconv.Itoa(cpus[0]), "sh", "-c", burn)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		stdin, err := cmd.StdinPipe()
		must.OK(t, err)
		if err := cmd.Start(); err != nil {
			t.Skipf("not on this machine: %v", err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		if i == 0 {
			if err := g.Add(cmd.Process.Pid); err != nil {
				t.Skipf("not on this machine: needs the right to move processes: %v", err)
			}
		}
		clocks[i] = func() time.Duration {
			stat, err := procstat.Read(cmd.Process.Pid)
			must.OK(t, err)
			return stat.CPUTime()
		}
		must.Get(stdin.Write([]byte("go\n")))(t)
	}
	wait.For(t, "the ordinary process to run", func() bool { return clocks[1]() > 20*time.Millisecond })
	guestBefore, before := clocks[0](), clocks[1]()
	wait.For(t, "a second of CPU time", func() bool { return clocks[1]()-before > time.Second })
	// With equal weights both would get the same.
	if used, other := clocks[0]()-guestBefore, clocks[1]()-before; used > other/4 {
		t.Errorf("the guest used %v next to %v of an ordinary process, want under a quarter", used, other)
	}
}
