// Package cputime measures how busy other programs keep the machine's CPUs.
package cputime

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
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
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU times: %w", err)
	}
	total, busy, err := cpuTimes(string(text))
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

// tick is the unit of times in /proc: USER_HZ is 100.
const tick = 10 * time.Millisecond

// cpuTimes reads the first line of /proc/stat (proc_stat(5)). Its last two fields are already included
// in the first two.
func cpuTimes(stat string) (total, busy time.Duration, err error) {
	var user, nice, system, idle, iowait, irq, softirq, steal time.Duration
	line, _, _ := strings.Cut(stat, "\n")
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		return 0, 0, fmt.Errorf("read CPU times: %q: %w", line, err)
	}
	busy = user + nice + system + irq + softirq + steal
	return (busy + idle + iowait) * tick, busy * tick, nil
}

// process is what /proc/PID/stat says of a process. time includes its children that have ended.
type process struct {
	parent int
	time   time.Duration
}

// readProcess reads a process; ok is false if it has ended.
func readProcess(pid int) (p process, ok bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return p, false
	}
	return parseProcess(string(text))
}

// parseProcess parses /proc/PID/stat (proc_pid_stat(5)). The name may have blanks and parentheses.
func parseProcess(stat string) (p process, ok bool) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const parent, firstTime, lastTime = 1, 11, 14 // ppid; utime, stime, cutime and cstime
	if len(fields) <= lastTime {
		return p, false
	}
	for _, field := range fields[firstTime : lastTime+1] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return p, false
		}
		p.time += time.Duration(ticks) * tick
	}
	var err error
	p.parent, err = strconv.Atoi(fields[parent])
	return p, err == nil
}

// findRoot returns the farthest ancestor of this process that runs the same program.
func findRoot() int {
	program := func(pid int) string {
		path, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
		return path
	}
	pid, own := os.Getpid(), program(os.Getpid())
	for {
		p, ok := readProcess(pid)
		if !ok || own == "" || program(p.parent) != own {
			return pid
		}
		pid = p.parent
	}
}

// treeTime is the CPU time that a process and its descendants have used.
func treeTime(root int) (sum time.Duration) {
	entries, _ := os.ReadDir("/proc")
	processes := map[int]process{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := readProcess(pid); ok {
				processes[pid] = p
			}
		}
	}

	for pid := range processes {
		above, ok := pid, true
		for above != root && ok {
			var p process
			p, ok = processes[above]
			above = p.parent
		}
		if ok {
			sum += processes[pid].time
		}
	}
	return sum
}
