package orchestrator

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
)

// Both the kernel's OOM killer and an operator can send SIGKILL. Two sources tell the two
// apart:
//
//	1 the process's memory cgroup counts the OOM kills of its processes: oom_kill in
//	  memory.oom_control (version 1) or memory.events (version 2)
//	2 the kernel's log names the process, if this process may read /dev/kmsg
//
// If neither can be read, the orchestrator reports a SIGKILL that Penstock did not send as
// just that.

// memoryGroup is a memory cgroup, made for the process, or found while one of its processes runs: /proc/PID/cgroup
// does not show a zombie's. The zero value is none.
type memoryGroup struct {
	Path  string `json:"path"`  // path in /proc/PID/cgroup
	File  string `json:"file"`  // file with the line "oom_kill N"
	Kills uint64 `json:"kills"` // N when the process was started
	// Limit is the limit in bytes that the orchestrator has set; 0: none.
	Limit int64 `json:"limit,omitempty"`
	// Tasks is the file with the line "max N", the number of processes that the orchestrator's limit has
	// refused; empty: it set none.
	Tasks     string `json:"tasks,omitempty"`
	TaskLimit int64  `json:"task_limit,omitempty"`
}

// memoryGroupOf finds the memory cgroup of a running process.
func memoryGroupOf(pid int) (memoryGroup, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return memoryGroup{}, err
	}
	v1, v2, err := cgroups.ParseCgroupFileUnified(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return memoryGroup{}, fmt.Errorf("find memory cgroup: %w", err)
	}

	g := memoryGroup{}
	for _, m := range mounts {
		switch {
		case m.kind == "cgroup" && listHas(m.options, "memory") && m.shows(v1["memory"]):
			g.Path, g.File = v1["memory"], filepath.Join(m.point, m.under(v1["memory"]), "memory.oom_control")
		case m.kind == "cgroup2" && g.File == "" && m.shows(v2):
			// The nearest group above that has the controller does the counting.
			for at := m.under(v2); g.File == ""; at = path.Dir(at) {
				if file := filepath.Join(m.point, at, "memory.events"); isFile(file) {
					g.Path, g.File = at, file
				}
				if at == "/" {
					break
				}
			}
		}
	}
	if g.File == "" {
		return memoryGroup{}, errNoMemoryGroup
	}
	g.Kills, err = g.count()
	return g, err
}

var errNoMemoryGroup = errors.New("no memory cgroup")

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// shows reports whether the mount shows a group.
func (m mount) shows(group string) bool {
	return group != "" && (m.root == "/" || group == m.root || strings.HasPrefix(group, m.root+"/"))
}

// count reads how many processes of the group the OOM killer has killed.
func (g memoryGroup) count() (uint64, error) {
	text, err := os.ReadFile(g.File)
	if err != nil {
		return 0, fmt.Errorf("count OOM kills: %w", err)
	}
	for l := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(l, "oom_kill "); ok {
			return strconv.ParseUint(strings.TrimSpace(n), 10, 64)
		}
	}
	return 0, fmt.Errorf("count OOM kills: no oom_kill in %s", g.File)
}

// oomKills attributes OOM kills to processes: each counted kill to at most one.
type oomKills struct {
	mu      sync.Mutex
	claimed map[string]uint64 // key: the group's file; value: the count up to which kills are attributed
}

// claim looks for the OOM kill that ended a process of g, which started at began. It
// returns where the kernel counted or logged the kill; empty if there is none.
func (o *oomKills) claim(g memoryGroup, pid int, began time.Time) string {
	if g.File == "" {
		return kernelLogged(pid, began)
	}
	now, err := g.count()
	if err != nil {
		return kernelLogged(pid, began) // the group is gone
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	before := max(o.claimed[g.File], g.Kills)
	if now <= before {
		return ""
	}
	if o.claimed == nil {
		o.claimed = map[string]uint64{}
	}
	o.claimed[g.File] = before + 1
	if g.Limit > 0 && g.full() {
		return g.limitText()
	}
	return "memory cgroup " + g.Path
}

// initialPIDNamespace is the inode of the pid namespace that the kernel's log uses:
// PROC_PID_INIT_INO of linux/proc_ns.h.
const initialPIDNamespace = "pid:[4026531836]"

// kernelLogged searches the kernel's log for an OOM kill of the process. It finds nothing
// if it cannot read the log.
func kernelLogged(pid int, began time.Time) string {
	if ns, err := os.Readlink("/proc/self/ns/pid"); err != nil || ns != initialPIDNamespace {
		return ""
	}
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return ""
	}
	// A read returns one record, and EAGAIN after the last.
	var log bytes.Buffer
	record := make([]byte, 8<<10)
	for {
		n, err := unix.Read(fd, record)
		if errors.Is(err, unix.EPIPE) {
			continue // records were overwritten meanwhile
		}
		if err != nil || n == 0 {
			break
		}
		log.Write(record[:n])
	}
	if loggedOOMKill(&log, pid, time.Duration(now.Nano())-time.Since(began)) {
		return "kernel log"
	}
	return ""
}

// oomLine matches what mm/oom_kill.c logs about its victim. A record of /dev/kmsg has the
// priority, number and microseconds since boot, then the text.
var oomLine = regexp.MustCompile(`^\d+,\d+,(\d+),[^;]*;.*[Oo]ut of memory.*: Killed process (\d+) `)

// loggedOOMKill reports whether a kernel log has an OOM kill of pid that is not older than
// since, a time since boot. The two clocks differ by less than a second.
func loggedOOMKill(log io.Reader, pid int, since time.Duration) bool {
	for s := bufio.NewScanner(log); s.Scan(); {
		m := oomLine.FindStringSubmatch(s.Text())
		if m == nil || m[2] != strconv.Itoa(pid) {
			continue
		}
		micros, err := strconv.ParseInt(m[1], 10, 64)
		if err == nil && time.Duration(micros)*time.Microsecond >= since-time.Second {
			return true
		}
	}
	return false
}
