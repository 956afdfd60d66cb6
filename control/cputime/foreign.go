// Package cputime measures how busy other programs keep the machine's CPUs.
package cputime

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/procstat"
)

// Quiet is the max part of the CPUs that other programs may use without a message to the user.
const Quiet = 0.05

// Foreign measures the part of the CPUs' time that other programs use, and that a hypervisor takes
// (steal). Other programs are those outside the tree of processes that this process belongs to.
type Foreign struct {
	root             int
	total, busy, own time.Duration // at the last call
}

// NewForeign starts a measurement. The root of the tree is the farthest ancestor that runs the same
// program: the manager's tree begins at `penstock up`, or at the demo that started it.
func NewForeign() (*Foreign, error) {
	f := &Foreign{root: findRoot()}
	_, err := f.Part()
	return f, err
}

// Part returns the part of all CPUs' time since the last call that other programs used.
func (f *Foreign) Part() (float64, error) {
	total, busy, err := Machine()
	if err != nil {
		return 0, err
	}
	own := treeTime(f.root)
	was := *f
	f.total, f.busy, f.own = total, busy, own
	if total <= was.total {
		return 0, nil
	}
	return max(0, float64((busy-was.busy)-(own-was.own))/float64(total-was.total)), nil
}

// Machine returns the time of all CPUs since boot, and the part of it in which they were busy.
func Machine() (total, busy time.Duration, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("read CPU times: %w", err)
	}
	return cpuTimes(string(text))
}

// cpuTimes reads the first line of /proc/stat (proc_stat(5)). Its last two fields are already included
// in the first two.
func cpuTimes(stat string) (total, busy time.Duration, err error) {
	var user, nice, system, idle, iowait, irq, softirq, steal time.Duration
	line, _, _ := strings.Cut(stat, "\n")
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		return 0, 0, fmt.Errorf("read CPU times: %q: %w", line, err)
	}
	busy = user + nice + system + irq + softirq + steal
	return (busy + idle + iowait) * procstat.Tick, busy * procstat.Tick, nil
}

// findRoot returns the farthest ancestor of this process that runs the same program.
func findRoot() int {
	program := func(pid int) string {
		path, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
		return path
	}
	pid, own := os.Getpid(), program(os.Getpid())
	for {
		stat, err := procstat.Read(pid)
		parent := int(stat.Number(procstat.Parent))
		if err != nil || own == "" || program(parent) != own {
			return pid
		}
		pid = parent
	}
}

// treeTime is the CPU time that a process and its descendants have used.
func treeTime(root int) (sum time.Duration) {
	pids, _ := procstat.PIDs()
	processes := map[int]procstat.Fields{}
	for _, pid := range pids {
		if stat, err := procstat.Read(pid); err == nil {
			processes[pid] = stat
		}
	}

	for pid, stat := range processes {
		above, ok := pid, true
		for above != root && ok {
			_, ok = processes[above]
			above = int(processes[above].Number(procstat.Parent))
		}
		if ok {
			sum += stat.CPUTime()
		}
	}
	return sum
}
