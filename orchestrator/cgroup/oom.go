package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Both the kernel's OOM killer and an operator can send SIGKILL. The process's memory cgroup tells the two apart. It
// counts the OOM kills of its processes: oom_kill in memory.oom_control (version 1) or memory.events (version 2).
// Without one, the orchestrator reports a SIGKILL that Penstock did not send as just that.

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

// Claim looks for the OOM kill that ended a process of the group. It returns the place in which the kernel counted the kill;
// empty if there is none.
func (o *OOMKills) Claim(c Counters) string {
	now, err := c.count()
	if err != nil {
		return "" // there is no group, or it is gone
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
