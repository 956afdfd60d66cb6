package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/procstat"
)

// Groups makes the groups that hold guests below all functions.
type Groups interface {
	// Make makes a group for one guest of the user uid, with at most memoryBytes of main memory; 0: no limit. The name
	// is unique, and ends with the guest's token. missing is the reason, in one line, for each limit that the group
	// cannot hold. It wraps cgroup.ErrNoMemoryLimit for memoryBytes, and cgroup.ErrCanLeave if processes of the user can leave the group.
	Make(name string, memoryBytes int64, uid int) (g Group, missing []error, err error)
}

// Group has all processes of one guest. Any goroutine may call its methods.
type Group interface {
	// Add moves a process, and all that it will start, into the group.
	Add(pid int) error
	PIDs() []int
	CPUTime() time.Duration
	// Freeze stops all processes, or continues them.
	Freeze(frozen bool) error
	Signal(syscall.Signal)
	// Kill kills all processes, also frozen ones, and returns when none is left. It gives up after some
	// seconds.
	Kill() error
	// Remove removes the empty group.
	Remove() error
}

// killTimeout bounds Group.Kill. A killed process takes that long if it is in a system call of a
// driver.
const killTimeout = 5 * time.Second

// Marked is a Group without control groups: the processes with control.GuestVariable in their
// environment. A process that removes the variable leaves the group.
type Marked struct{ Token string }

// Add does nothing: the guest's processes have the variable already.
func (m Marked) Add(int) error { return nil }

// Remove does nothing.
func (m Marked) Remove() error { return nil }

// execTimeout bounds the wait for processes in execve(2). It takes some milliseconds, but a process can make it
// endless, with a file system that does not answer.
const execTimeout = 100 * time.Millisecond

// PIDs searches /proc. It reads the environments of processes in execve again until they are whole.
func (m Marked) PIDs() (pids []int) {
	mark := []byte(control.GuestVariable + "=" + m.Token + "\x00")
	before := map[int]environment{} // those that may not be whole
	all, _ := procstat.PIDs()
	for _, pid := range all {
		before[pid] = environment{}
	}
	for deadline := time.Now().Add(execTimeout); ; time.Sleep(100 * time.Microsecond) {
		for pid, last := range before {
			switch now := environmentOf(pid); {
			case bytes.Contains(now.text, mark):
				pids = append(pids, pid)
				delete(before, pid)
			case now.whole(last):
				delete(before, pid)
			default:
				before[pid] = now
			}
		}
		if len(before) == 0 || time.Now().After(deadline) {
			slices.Sort(pids)
			return pids
		}
	}
}

// environment is what /proc shows of a process's environment. During execve it is empty or cut.
type environment struct {
	text       []byte
	start, end uint64 // where the process has it
	executing  bool
}

// environmentOf reads a process's environment. It is empty if the process has none or may not be read.
func environmentOf(pid int) (e environment) {
	var err error
	if e.text, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err != nil {
		return environment{}
	}
	stat, err := procstat.Read(pid)
	if err != nil || stat.Number(procstat.AddressSpace) == 0 { // it is ending, or a kernel thread
		return environment{}
	}
	e.start, e.end = stat.Number(procstat.EnvStart), stat.Number(procstat.EnvEnd)
	e.executing = stat.Number(procstat.StartCode) == 0 // execve sets it after the others
	return e
}

// whole reports whether the text is all that a process shows. It is shorter than the environment if execve ended
// between the reads of text and addresses, or for ever if the process has unmapped a part. In the latter case
// the next read finds the same, because each execve chooses other addresses.
func (e environment) whole(last environment) bool {
	if e.executing {
		return false
	}
	return uint64(len(e.text)) == e.end-e.start || e.start == last.start && e.end == last.end && len(e.text) == len(last.text)
}

// CPUTime is that of the processes that exist, and of children that they waited for.
func (m Marked) CPUTime() (sum time.Duration) {
	for _, pid := range m.PIDs() {
		stat, _ := procstat.Read(pid) // it may have ended meanwhile
		sum += stat.CPUTime()
	}
	return sum
}

// survives reports whether a process handles, ignores or blocks a signal (proc_pid_status(5)). Go programs handle
// all signals, even those by which they then end.
func survives(pid int, sig syscall.Signal) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		name, mask, _ := strings.Cut(line, ":")
		if name != "SigCgt" && name != "SigIgn" && name != "SigBlk" {
			continue
		}
		if bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err == nil && bits>>(sig-1)&1 != 0 {
			return true
		}
	}
	return false
}

// Signal implements Group.
func (m Marked) Signal(sig syscall.Signal) {
	for _, pid := range m.PIDs() {
		_ = unix.Kill(pid, sig) // it may have ended meanwhile
	}
}

// Freeze stops the processes one by one. It repeats that until none has started another meanwhile.
func (m Marked) Freeze(frozen bool) error {
	if !frozen {
		m.Signal(syscall.SIGCONT)
		return nil
	}
	var before []int
	for deadline := time.Now().Add(killTimeout); time.Now().Before(deadline); {
		m.Signal(syscall.SIGSTOP)
		now := m.PIDs()
		if slices.Equal(before, now) {
			return nil
		}
		before = now
	}
	return errors.New("stop processes: they start others faster than they can be stopped")
}

// Kill implements Group.
func (m Marked) Kill() error {
	_ = m.Freeze(true) // so that no process starts others while the rest is killed
	for deadline := time.Now().Add(killTimeout); ; time.Sleep(time.Millisecond) {
		pids := m.PIDs()
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("kill processes %v: still there after %v", pids, killTimeout)
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, syscall.SIGKILL)
		}
	}
}

// residentBytes is the resident memory of processes (proc_pid_statm(5)).
func residentBytes(pids []int) (sum int64) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			continue
		}
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			pages, _ := strconv.ParseInt(fields[1], 10, 64)
			sum += pages * int64(os.Getpagesize())
		}
	}
	return sum
}
