package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Busy is the busiest thread of each process, in percent of one CPU.
type Busy struct {
	Manager float64 `json:"manager"`
	IF      float64 `json:"if"`
	Load    float64 `json:"load"`
}

// thread is a thread of a node or of this process, with its CPU time.
type thread struct {
	owner string // manager, if, load
	used  time.Duration
}

// readThreads finds the threads of this process and of the node, by their path in
// /proc. node is the node's first process (`penstock up`). It omits threads that end
// during the call.
func readThreads(node int) map[string]thread {
	threads := map[string]thread{}
	tasks, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	processes := map[string]string{}
	for _, task := range tasks {
		process := filepath.Dir(filepath.Dir(task))
		owner, known := processes[process]
		if !known {
			owner = processOf(process, node)
			processes[process] = owner
		}
		if owner == "" {
			continue
		}
		if used, err := threadTime(task); err == nil {
			threads[task] = thread{owner, used}
		}
	}
	return threads
}

// processOf returns the kind of a process, or "" if it does not belong to the node.
// The manager is a child of the node's first process; inference functions are
// grandchildren.
func processOf(process string, node int) string {
	if filepath.Base(process) == strconv.Itoa(os.Getpid()) {
		return "load"
	}
	parent := parentOf(process)
	if parent != node && parentOf(fmt.Sprintf("/proc/%d", parent)) != node {
		return ""
	}
	arguments, _ := os.ReadFile(filepath.Join(process, "cmdline"))
	if words := strings.Split(string(arguments), "\x00"); len(words) > 1 && (words[1] == "manager" || words[1] == "if") {
		return words[1]
	}
	return ""
}

// parentOf returns a process's parent, or 0 if the process is gone.
func parentOf(process string) int {
	fields, err := stat(process)
	if err != nil {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// busiest compares two readings that are took apart (a duration).
func busiest(before, after map[string]thread, took time.Duration) (b Busy) {
	for task, t := range after {
		percent := 100 * float64(t.used-before[task].used) / float64(took)
		switch t.owner {
		case "manager":
			b.Manager = max(b.Manager, percent)
		case "if":
			b.IF = max(b.IF, percent)
		case "load":
			b.Load = max(b.Load, percent)
		}
	}
	return b
}

// tick is the unit of times in /proc/PID/stat: USER_HZ is 100 on every Linux.
const tick = 10 * time.Millisecond

// threadTime returns the CPU time that /proc/PID/task/TID has used: utime and stime.
func threadTime(task string) (time.Duration, error) {
	fields, err := stat(task)
	if err != nil {
		return 0, err
	}
	ticks := int64(0)
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", task, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// stat reads the fields of a process's or a thread's stat file (proc(5)), beginning
// with the third, the state.
func stat(dir string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return nil, err
	}
	// The second field is a name in parentheses, which may contain blanks.
	_, rest, _ := strings.Cut(string(text[max(0, strings.LastIndexByte(string(text), ')')):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return nil, fmt.Errorf("read %s: %q", dir, text)
	}
	return fields, nil
}
