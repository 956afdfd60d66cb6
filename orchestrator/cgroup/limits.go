package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/docker/go-units"
)

// Limits bound what one process of a function, and all processes that it starts, may take of the machine. 0 is
// no limit.
type Limits struct {
	// MemoryBytes includes files in /dev/shm and in the private folder, if that is in memory.
	MemoryBytes int64
	// Tasks is the max number of processes and threads.
	Tasks int64
}

// The keys of the configuration that set limits.
const (
	memoryKey = "sandbox.memory"
	tasksKey  = "sandbox.processes"
)

var limitKeys = map[string]string{"memory": memoryKey, "pids": tasksKey}

// ErrNotEnforced is wrapped by errors about limits that the machine cannot enforce.
var ErrNotEnforced = errors.New("not enforced")

// NotEnforced returns an error about all limits.
func NotEnforced(why error) error {
	return fmt.Errorf("%s and %s are %w: %w", memoryKey, tasksKey, ErrNotEnforced, why)
}

// Held is the group of a process that is about to start.
type Held struct {
	// Join lists the files to which the process writes 0 to join the group.
	Join     []string
	Counters Counters
}

// Counters names the files in which the kernel counts what it refused to a group and killed in it. The group was made
// for the process, or found while one of its processes runs. /proc/PID/cgroup does not show a zombie's. The zero value counts nothing.
type Counters struct {
	Path  string `json:"path"`  // path in /proc/PID/cgroup
	File  string `json:"file"`  // file with the line "oom_kill N"
	Kills uint64 `json:"kills"` // N when the process was started
	// Limit is the limit of memory in bytes that the orchestrator has set; 0: none.
	Limit int64 `json:"limit,omitempty"`
	// Tasks is the file with the line "max N", the number of processes that the orchestrator's limit has
	// refused; empty: it set none.
	Tasks     string `json:"tasks,omitempty"`
	TaskLimit int64  `json:"task_limit,omitempty"`
}

// limitMemory limits the memory of a group. Swap would make the function slow instead of ending it.
func (c *Counters) limitMemory(g *Group, bytes int64) error {
	if err := g.set("memory", "memory.limit_in_bytes", "memory.max", bytes); err != nil {
		return err
	}
	found := Counters{Limit: bytes}
	if folder := g.legacy["memory"]; folder != "" {
		found.Path, found.File = folder, filepath.Join(folder, "memory.oom_control")
		_ = writeInt(filepath.Join(folder, "memory.memsw.limit_in_bytes"), bytes) // missing if the kernel does not count swap
	} else {
		found.Path, found.File = g.unified, filepath.Join(g.unified, "memory.events")
		_ = writeInt(filepath.Join(g.unified, "memory.swap.max"), 0)  // missing without swap
		_ = writeInt(filepath.Join(g.unified, "memory.oom.group"), 1) // Linux 4.19
	}
	var err error
	if found.Kills, err = found.count(); err == nil {
		*c = found
	}
	return err
}

// limitTasks limits the number of a group's processes.
func (c *Counters) limitTasks(g *Group, tasks int64) error {
	if err := g.set("pids", "pids.max", "pids.max", tasks); err != nil {
		return err
	}
	folder := g.unified
	if legacy := g.legacy["pids"]; legacy != "" {
		folder = legacy
	}
	c.Tasks, c.TaskLimit = filepath.Join(folder, "pids.events"), tasks
	return nil
}

// full reports whether the group's processes have reached their limit of memory.
func (c *Counters) full() bool {
	if filepath.Base(c.File) == "memory.events" {
		return readCounter(c.File, "max") > 0
	}
	const batch = 1 << 20 // the kernel charges several pages at a time
	return readCounter(filepath.Join(filepath.Dir(c.File), "memory.max_usage_in_bytes"), "")+batch > uint64(c.Limit)
}

// RefusedTasks describes the limit of processes if the kernel has refused one because of it; else it is empty.
func (c *Counters) RefusedTasks() string {
	if c.Tasks == "" || readCounter(c.Tasks, "max") == 0 {
		return ""
	}
	return fmt.Sprintf("the function has reached %s %d (processes and threads); raise it, or start fewer", tasksKey, c.TaskLimit)
}

// exceeded describes the limit of memory.
func (c *Counters) exceeded() string {
	return fmt.Sprintf("the function used more than %s %s; raise it, or remove what fills memory", memoryKey, units.BytesSize(float64(c.Limit)))
}
