package orchestrator

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/docker/go-units"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/orchestrator/sandbox"
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

// held is the group of a process that is about to start.
type held struct {
	// join lists the files to which the process writes 0 to join the group.
	join   []string
	memory memoryGroup
}

// errNotEnforced is wrapped by errors about limits that the machine cannot enforce.
var errNotEnforced = errors.New("not enforced")

// limitControllers have a hierarchy each in version 1.
var limitControllers = []string{"memory", "pids"}

// limitKeys are the keys of the configuration, by controller.
var limitKeys = map[string]string{"memory": memoryKey, "pids": tasksKey}

// TryLimits returns what this machine does not enforce of the limits.
func TryLimits(l Limits) error {
	s, err := openShares("", 1, os.Getpid(), zerolog.Nop())
	if err != nil {
		return err
	}
	_, err = s.hold(key{name: "try"}, l, true)
	if !sandbox.CanMount() {
		err = errors.Join(err, fmt.Errorf("the size of files in private folders and %s is %w: it needs the right to mount", sandbox.SharedMemory, errNotEnforced))
	}
	return errors.Join(err, s.close())
}

// makeLimitTrees makes a group per controller in version 1, which holds the groups of processes. A controller
// that is missing, or refuses a group, has none.
func makeLimitTrees(mounts []mount, name string, log zerolog.Logger) map[string]string {
	trees := map[string]string{}
	own, _, err := cgroups.ParseCgroupFileUnified("/proc/self/cgroup")
	if err != nil {
		return trees
	}
	for controller, parent := range legacyParents(mounts, own, limitControllers, log) {
		if folder := filepath.Join(parent, name); makeFolder(folder) == nil {
			trees[controller] = folder
		}
	}
	return trees
}

// makeFolder makes a folder that may exist, because another orchestrator made it.
func makeFolder(folder string) error {
	if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// removeGroup removes a group, and those in it, that may not exist. Its last process may still be leaving.
func removeGroup(folder string) error {
	err := removeGroups(folder)
	for deadline := time.Now().Add(guestGroupTimeout); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		err = removeGroups(folder)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// procsFile is the file of a group to which processes write to join it.
const procsFile = "cgroup.procs"

// limit sets the limits of a group that has these folders; empty: there is none.
func (h *held) limit(memory, tasks string, l Limits, version1 bool) error {
	var errs []error
	if memory != "" && l.MemoryBytes > 0 {
		var err error
		h.memory, err = setMemoryLimit(memory, l, version1)
		errs = append(errs, err)
	}
	if tasks != "" && l.Tasks > 0 {
		err := setTaskLimit(tasks, l)
		if err == nil {
			h.memory.Tasks, h.memory.TaskLimit = filepath.Join(tasks, "pids.events"), l.Tasks
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// setMemoryLimit writes the limit into a group's folder, and returns the group. Swap would make the function
// slow instead of ending it.
func setMemoryLimit(folder string, l Limits, version1 bool) (memoryGroup, error) {
	limit := strconv.FormatInt(l.MemoryBytes, 10)
	g := memoryGroup{Path: folder, Limit: l.MemoryBytes}
	var err error
	if version1 {
		g.File = filepath.Join(folder, "memory.oom_control")
		err = writeText(filepath.Join(folder, "memory.limit_in_bytes"), limit)
		_ = writeText(filepath.Join(folder, "memory.memsw.limit_in_bytes"), limit) // missing if the kernel does not count swap
	} else {
		g.File = filepath.Join(folder, "memory.events")
		err = writeText(filepath.Join(folder, "memory.max"), limit)
		_ = writeText(filepath.Join(folder, "memory.swap.max"), "0")  // missing without swap
		_ = writeText(filepath.Join(folder, "memory.oom.group"), "1") // Linux 4.19
	}
	if err == nil {
		g.Kills, err = g.count()
	}
	if err != nil {
		return memoryGroup{}, fmt.Errorf("%s is %w: %w", memoryKey, errNotEnforced, err)
	}
	return g, nil
}

// setTaskLimit writes the limit into a group's folder.
func setTaskLimit(folder string, l Limits) error {
	if err := writeText(filepath.Join(folder, "pids.max"), strconv.FormatInt(l.Tasks, 10)); err != nil {
		return fmt.Errorf("%s is %w: %w", tasksKey, errNotEnforced, err)
	}
	return nil
}

// full reports whether the group's processes have reached their limit of memory.
func (g *memoryGroup) full() bool {
	if filepath.Base(g.File) == "memory.events" {
		return readCounter(g.File, "max") > 0
	}
	const batch = 1 << 20 // the kernel charges several pages at a time
	return readCounter(filepath.Join(filepath.Dir(g.File), "memory.max_usage_in_bytes"), "")+batch > uint64(g.Limit)
}

// limitText describes the limit of memory.
func (g *memoryGroup) limitText() string {
	return fmt.Sprintf("the function used more than %s %s; raise it, or remove what fills memory", memoryKey, units.BytesSize(float64(g.Limit)))
}

// refusedTasks counts the processes and threads that the kernel refused because of the limit.
func (g *memoryGroup) refusedTasks() uint64 { return readCounter(g.Tasks, "max") }

// tasksText describes the limit of processes.
func (g *memoryGroup) tasksText() string {
	return fmt.Sprintf("the function has reached %s %d (processes and threads); raise it, or start fewer", tasksKey, g.TaskLimit)
}

// readCounter reads a number from a file of lines with a name and a number; the name may be empty. It returns 0
// if it cannot.
func readCounter(file, name string) uint64 {
	if file == "" {
		return 0
	}
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64); err == nil {
				return n
			}
		}
	}
	return 0
}
