package cgroup

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

// CountersOf finds the counters of OOM kills in the memory cgroup of a running process.
func CountersOf(pid int) (Counters, error) {
	all, err := mounts()
	if err != nil {
		return Counters{}, err
	}
	groups, err := membershipOf(pid)
	if err != nil {
		return Counters{}, err
	}
	c := Counters{}
	for _, m := range all {
		switch {
		case m.has("memory") && m.shows(groups["memory"]):
			c.Path, c.File = groups["memory"], filepath.Join(m.point, m.under(groups["memory"]), "memory.oom_control")
		case m.unified() && c.File == "" && m.shows(groups[""]):
			// The nearest group above that has the controller does the counting.
			for at := m.under(groups[""]); c.File == ""; at = path.Dir(at) {
				if file := filepath.Join(m.point, at, "memory.events"); isFile(file) {
					c.Path, c.File = at, file
				}
				if at == "/" {
					break
				}
			}
		}
	}
	if c.File == "" {
		return Counters{}, errors.New("count OOM kills: no memory cgroup")
	}
	c.Kills, err = c.count()
	return c, err
}

// count reads how many processes of the group the OOM killer has killed.
func (c Counters) count() (uint64, error) {
	text, err := os.ReadFile(c.File)
	if err != nil {
		return 0, fmt.Errorf("count OOM kills: %w", err)
	}
	for l := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(l, "oom_kill "); ok {
			return strconv.ParseUint(strings.TrimSpace(n), 10, 64)
		}
	}
	return 0, fmt.Errorf("count OOM kills: no oom_kill in %s", c.File)
}

// OOMKills attributes OOM kills to processes: each counted kill to at most one.
type OOMKills struct {
	mu      sync.Mutex
	claimed map[string]uint64 // key: the group's file; value: the count up to which kills are attributed
}

// Claim looks for the OOM kill that ended a process of the group, which started at began. It
// returns where the kernel counted or logged the kill; empty if there is none.
func (o *OOMKills) Claim(c Counters, pid int, began time.Time) string {
	if c.File == "" {
		return kernelLogged(pid, began)
	}
	now, err := c.count()
	if err != nil {
		return kernelLogged(pid, began) // the group is gone
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	before := max(o.claimed[c.File], c.Kills)
	if now <= before {
		return ""
	}
	if o.claimed == nil {
		o.claimed = map[string]uint64{}
	}
	o.claimed[c.File] = before + 1
	if c.Limit > 0 && c.full() {
		return c.exceeded()
	}
	return "memory cgroup " + c.Path
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
