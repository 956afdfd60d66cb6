package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock/control/budget"
)

// Group is the control group of a function's process or of a guest. Any goroutine may call its methods.
type Group struct {
	unified string            // folder in version 2; empty: it has none
	legacy  map[string]string // folders in version 1, by controller
}

// procsFile lists the processes of a group. A process writes 0 to it to join the group.
const procsFile = "cgroup.procs"

// timeout bounds a change of a group that the kernel completes later. A process in a system
// call of a driver is frozen and killed at the call's end.
const timeout = 5 * time.Second

// folders lists the group's folders, that of version 2 last.
func (g *Group) folders() []string {
	all := slices.Collect(maps.Values(g.legacy))
	if g.unified != "" {
		all = append(all, g.unified)
	}
	return all
}

// set writes a number to a controller's file, which has another name in version 1.
func (g *Group) set(controller, legacy, unified string, n int64) error {
	if folder := g.legacy[controller]; folder != "" {
		return writeInt(filepath.Join(folder, legacy), n)
	}
	if g.unified == "" {
		return ErrNoController
	}
	return writeInt(filepath.Join(g.unified, unified), n)
}

// SetQuota limits the group's CPU time. In version 1, period and quota are two files, and the kernel refuses a pair
// that exceeds a limit further up. SetQuota therefore lifts the old quota first.
func (g *Group) SetQuota(q Quota) error {
	runtime, period := q.Runtime.Microseconds(), q.Period.Microseconds()
	folder := g.legacy["cpu"]
	switch {
	case folder == "" && q == Quota{}:
		return write(filepath.Join(g.unified, "cpu.max"), "max")
	case folder == "":
		return write(filepath.Join(g.unified, "cpu.max"), fmt.Sprint(runtime, " ", period))
	}
	err := writeInt(filepath.Join(folder, "cpu.cfs_quota_us"), -1)
	if err != nil || q == (Quota{}) {
		return err
	}
	if err := writeInt(filepath.Join(folder, "cpu.cfs_period_us"), period); err != nil {
		return err
	}
	return writeInt(filepath.Join(folder, "cpu.cfs_quota_us"), runtime)
}

// Quota reads the limit back.
func (g *Group) Quota() (Quota, error) {
	names := []string{filepath.Join(g.unified, "cpu.max")}
	if folder := g.legacy["cpu"]; folder != "" {
		names = []string{filepath.Join(folder, "cpu.cfs_quota_us"), filepath.Join(folder, "cpu.cfs_period_us")}
	}
	text := ""
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return Quota{}, err
		}
		text += string(b) + " "
	}
	return parseQuota(text)
}

// parseQuota reads "quota period", in microseconds; a quota of max or -1 is none.
func parseQuota(text string) (Quota, error) {
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return Quota{}, fmt.Errorf("read CPU quota: %q has not two fields", text)
	}
	if fields[0] == "max" || fields[0] == "-1" {
		return Quota{}, nil
	}
	var q Quota
	for i, d := range []*time.Duration{&q.Runtime, &q.Period} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return Quota{}, fmt.Errorf("read CPU quota: %w", err)
		}
		*d = time.Duration(n) * time.Microsecond
	}
	return q, nil
}

// scale is how a version measures weights, which version 1 calls shares.
type scale struct {
	file                  string
	normal, lowest, times int // of an ordinary process, the min, and the max as multiple of normal
}

var (
	scaleV1 = scale{"cpu.shares", 1024, 2, 256}
	scaleV2 = scale{"cpu.weight", 100, 1, 100}
)

// cpu returns the folder with the group's weight.
func (g *Group) cpu() (folder string, s scale) {
	if folder := g.legacy["cpu"]; folder != "" {
		return folder, scaleV1
	}
	return g.unified, scaleV2
}

// weigh gives the group the weight of n ordinary processes.
func (g *Group) weigh(n int) error {
	folder, s := g.cpu()
	return writeInt(filepath.Join(folder, s.file), int64(min(n, s.times)*s.normal))
}

// Prioritize gives the group a weight: normal at MinLevel, and twice as much for
// each level above. If the kernel supports it (cpu.idle, since Linux 5.15), a demoted group
// is idle: it yields at once to a group that wakes. Otherwise it gets the min weight, and
// yields when its time slice is over.
func (g *Group) Prioritize(l budget.Level) error {
	folder, s := g.cpu()
	idle, weight := filepath.Join(folder, "cpu.idle"), filepath.Join(folder, s.file)
	if l == budget.Demoted {
		if err := writeInt(idle, 1); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return writeInt(weight, int64(s.lowest))
	}
	// The kernel refuses a weight for an idle group, and forgets the group's old weight.
	if err := writeInt(idle, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return writeInt(weight, int64(s.normal<<(l-budget.MinLevel)))
}

// Add moves a process, and all that it will start, into the group.
func (g *Group) Add(pid int) error {
	for _, folder := range g.folders() {
		if err := writeInt(filepath.Join(folder, procsFile), int64(pid)); err != nil {
			return fmt.Errorf("move process %d: %w", pid, err)
		}
	}
	return nil
}

// The methods below need version 2, which holds, freezes and kills processes without a controller.

// PIDs lists the processes in the group, and in groups that they made in it.
func (g *Group) PIDs() []int {
	return slices.DeleteFunc(members(g.unified), func(pid int) bool { return pid == 0 })
}

// CPUTime is that of all processes that were in the group.
func (g *Group) CPUTime() time.Duration {
	return time.Duration(readCounter(filepath.Join(g.unified, "cpu.stat"), "usage_usec")) * time.Microsecond
}

// await polls until a value of cgroup.events has changed.
func (g *Group) await(what, name string, want uint64) error {
	file := filepath.Join(g.unified, "cgroup.events")
	for deadline := time.Now().Add(timeout); readCounter(file, name) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s processes: not finished after %v", what, timeout)
		}
	}
	return nil
}

// Freeze stops all processes, or continues them.
func (g *Group) Freeze(frozen bool) error {
	n := int64(0)
	if frozen {
		n = 1
		// A process needs CPU time to freeze, like one that ends (Kill).
		_ = g.Prioritize(budget.MinLevel)
		defer func() { _ = g.Prioritize(budget.Demoted) }()
	}
	file := filepath.Join(g.unified, "cgroup.freeze")
	if err := writeInt(file, n); err != nil {
		return err
	}
	err := g.await("freeze", "frozen", uint64(n))
	if err != nil && frozen {
		err = errors.Join(err, writeInt(file, 0))
	}
	return err
}

// Signal signals all processes.
func (g *Group) Signal(sig syscall.Signal) { signal(g.PIDs(), sig) }

// killAtOnce uses cgroup.kill (version 2, Linux 5.14), which also gets processes that are being started.
func (g *Group) killAtOnce() error { return writeInt(filepath.Join(g.unified, "cgroup.kill"), 1) }

// Kill kills all processes, also frozen ones, and returns when none is left. It gives up after some seconds. Older
// kernels need a frozen group to get processes that are being started.
func (g *Group) Kill() error {
	// Processes need CPU time to end. On busy CPUs an idle group gets none, and would keep its memory.
	_ = g.Prioritize(budget.MinLevel) // without the controller they have a normal weight already
	err := g.killAtOnce()
	if errors.Is(err, fs.ErrNotExist) {
		if err = g.Freeze(true); err == nil {
			_ = g.Prioritize(budget.MinLevel)
			g.Signal(syscall.SIGKILL) // a frozen process of version 2 follows it
		}
	}
	return errors.Join(err, g.await("kill", "populated", 0))
}

// Remove removes the group, whose processes have ended. It may not exist.
func (g *Group) Remove() (err error) {
	for _, folder := range g.folders() {
		err = errors.Join(err, remove(folder))
	}
	return err
}

// makeFolder makes a folder that may exist, because another orchestrator made it.
func makeFolder(folder string) error {
	if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// write writes to a file of the kernel, which exists.
func write(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func writeInt(name string, n int64) error { return write(name, strconv.FormatInt(n, 10)) }

// readCounter reads a number from a file of lines with a name and a number; the name may be empty. It returns 0
// if it cannot.
func readCounter(file, name string) uint64 {
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
