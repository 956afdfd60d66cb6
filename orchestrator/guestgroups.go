package orchestrator

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/orchestrator/guest"
)

// guestTasks bounds the processes and threads of one guest. A guest that forks without end would use up
// the machine's process ids, and all commands that list processes would wait for it.
func guestTasks() int64 { return int64(max(1024, 64*runtime.NumCPU())) }

// guestGroups makes control groups for guests, next to the group of functions. Each gets only CPU time that
// no other group of its level wants.
//
// A group of version 2 holds the processes, freezes and kills them, and counts their CPU time. No
// controller is needed for that. Controllers that version 1 has (cpu, memory, pids) have a folder each.
type guestGroups struct {
	prefix string            // of the names of groups
	parent string            // in version 2
	legacy map[string]string // parents in version 1, by controller
}

// openGuestGroups finds the groups that can hold those of guests. id tells apart several orchestrators in
// one process.
func openGuestGroups(id string, log zerolog.Logger) (*guestGroups, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	own, unified, err := cgroups.ParseCgroupFileUnified("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find own group: %w", err)
	}
	name, err := treeName(os.Getpid())
	if err != nil {
		return nil, err
	}
	g := &guestGroups{prefix: fmt.Sprintf("%s-guest-%s-", name, id), legacy: map[string]string{}}
	err = errors.New("cgroup version 2 is not mounted")
	for _, m := range mounts {
		if m.kind == "cgroup2" {
			g.parent, err = parentOfGuests(m, m.under(unified), g.prefix+"probe", log)
		}
	}
	if err != nil {
		return nil, err
	}
	maps.Insert(g.legacy, legacyParents(mounts, own, guestControllers, log))
	return g, nil
}

// legacyParents yields the controllers of version 1 that are mounted, each with the folder to make groups in. It has
// ended what a killed node left there. own has this process's group of each controller.
func legacyParents(mounts []mount, own map[string]string, controllers []string, log zerolog.Logger) iter.Seq2[string, string] {
	return func(yield func(controller, parent string) bool) {
		for _, m := range mounts {
			for _, controller := range controllers {
				if m.kind != "cgroup" || !listHas(m.options, controller) {
					continue
				}
				parent := filepath.Join(m.point, m.under(own[controller]))
				if ready := filepath.Join(parent, preparedName); isDir(ready) {
					parent = ready
				}
				sweep(parent, log)
				if !yield(controller, parent) {
					return
				}
			}
		}
	}
}

// guestControllers limit guests. Each may be missing.
var guestControllers = []string{"cpu", "memory", "pids"}

// parentOfGuests returns the group at, or the nearest group above that can give the cpu controller to groups
// in it. If none can, it returns the nearest one that accepts groups.
func parentOfGuests(m mount, at, probe string, log zerolog.Logger) (folder string, err error) {
	offered, err := os.ReadFile(filepath.Join(m.point, "cgroup.controllers"))
	if err != nil {
		return "", err
	}
	needed := slices.Contains(strings.Fields(string(offered)), "cpu")
	for _, need := range slices.Compact([]bool{needed, false}) {
		for above := at; ; above = filepath.Dir(above) {
			parent := filepath.Join(m.point, above)
			sweep(parent, log)
			failed := tryGuests(parent, probe, need)
			if failed == nil {
				return parent, nil
			}
			if err == nil {
				err = failed // of the group that a user can most easily fix
			}
			if above == "/" {
				break
			}
		}
	}
	return "", err
}

// tryGuests makes a group in parent, and removes it.
func tryGuests(parent, probe string, needCPU bool) error {
	for _, controller := range guestControllers {
		_ = writeText(filepath.Join(parent, "cgroup.subtree_control"), "+"+controller) // Make reports what is missing
	}
	folder := filepath.Join(parent, probe)
	err := os.Mkdir(folder, 0o755)
	if err != nil {
		return err
	}
	if needCPU {
		_, err = os.Stat(filepath.Join(folder, weightFileV2))
	}
	return errors.Join(err, os.Remove(folder))
}

func writeText(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Make implements guest.Groups.
func (g *guestGroups) Make(name string, memoryBytes int64, uid int) (guest.Group, []error, error) {
	one := &guestGroup{folder: filepath.Join(g.parent, g.prefix+name), legacy: map[string]string{}}
	if err := os.Mkdir(one.folder, 0o755); err != nil {
		return nil, nil, err
	}
	for controller, parent := range g.legacy {
		folder := filepath.Join(parent, g.prefix+name)
		if os.Mkdir(folder, 0o755) == nil {
			one.legacy[controller] = folder
		}
	}

	var missing []error
	if err := one.prioritize(budget.Demoted); err != nil {
		missing = append(missing, fmt.Errorf("no cpu controller for the guest's group: only its own priority is the lowest: %w", err))
	}
	if err := one.limit("pids", "pids.max", "pids.max", guestTasks()); err != nil {
		missing = append(missing, fmt.Errorf("the number of the guest's processes has no limit: %w", err))
	}
	if memoryBytes > 0 {
		if err := one.limit("memory", "memory.limit_in_bytes", "memory.max", memoryBytes); err != nil {
			missing = append(missing, fmt.Errorf("%w: %w", guest.ErrNoMemoryLimit, err))
		}
	}
	if slices.ContainsFunc(one.folders(), func(folder string) bool { return canLeave(folder, uid) }) {
		missing = append(missing, fmt.Errorf("%w: user %d may move processes to other control groups", guest.ErrCanLeave, uid))
	}
	return one, missing, nil
}

// TryGuests makes a group as for a guest of the user uid, removes it, and returns what it cannot hold.
func TryGuests(uid int) (missing []error, err error) {
	groups, err := openGuestGroups("try", zerolog.Nop())
	if err != nil {
		return nil, err
	}
	g, missing, err := groups.Make("try", 1<<20, uid)
	if err != nil {
		return nil, err
	}
	return missing, g.Remove()
}

// canLeave reports whether a user may move processes from a group to the group above. Root may, and so may the owner of
// the group above (systemd calls that delegation).
func canLeave(folder string, uid int) bool {
	info, err := os.Stat(filepath.Join(filepath.Dir(folder), "cgroup.procs"))
	if err != nil {
		return true // unknown
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	return uid == 0 || !ok || int(owner.Uid) == uid || info.Mode().Perm()&0o022 != 0
}

// FindGuestGroup returns the control group of a guest, which Make made with a name that ends with the token. It
// returns nil if the process is in no such group. `penstock run` ends the group if its orchestrator cannot.
func FindGuestGroup(pid int, token string) guest.Group {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil
	}
	own, unified, err := cgroups.ParseCgroupFileUnified(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil
	}
	// A group with another name may hold foreign processes.
	folder := func(m mount, group string) string {
		at := filepath.Join(m.point, m.under(group))
		if name := filepath.Base(at); strings.HasPrefix(name, treePrefix) && strings.HasSuffix(name, "-"+token) {
			return at
		}
		return ""
	}
	found := &guestGroup{legacy: map[string]string{}}
	for _, m := range mounts {
		if m.kind == "cgroup2" {
			found.folder = cmp.Or(found.folder, folder(m, unified))
			continue
		}
		for _, controller := range guestControllers {
			if at := folder(m, own[controller]); at != "" && listHas(m.options, controller) {
				found.legacy[controller] = at
			}
		}
	}
	if found.folder == "" {
		return nil
	}
	return found
}

// guestGroup is the group of one guest.
type guestGroup struct {
	folder string            // in version 2
	legacy map[string]string // folders in version 1, by controller
}

// folders lists the group's folders, that of version 2 last.
func (g *guestGroup) folders() []string {
	return append(slices.Collect(maps.Values(g.legacy)), g.folder)
}

func (g *guestGroup) prioritize(l budget.Level) error {
	if folder := g.legacy["cpu"]; folder != "" {
		return writePriority(folder, weightFileV1, weightV1, 2, l)
	}
	return writePriority(g.folder, weightFileV2, weightV2, 1, l)
}

// limit writes a limit into a controller's file, which has another name in version 1.
func (g *guestGroup) limit(controller, legacy, unified string, n int64) error {
	if folder := g.legacy[controller]; folder != "" {
		return writeText(filepath.Join(folder, legacy), strconv.FormatInt(n, 10))
	}
	return writeText(filepath.Join(g.folder, unified), strconv.FormatInt(n, 10))
}

func (g *guestGroup) Add(pid int) error {
	for _, folder := range g.folders() {
		if err := writeInt(filepath.Join(folder, "cgroup.procs"), pid); err != nil {
			return fmt.Errorf("move process %d: %w", pid, err)
		}
	}
	return nil
}

// PIDs also lists processes in groups that the guest made in its own.
func (g *guestGroup) PIDs() (pids []int) {
	_ = filepath.WalkDir(g.folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "cgroup.procs" {
			return nil
		}
		text, _ := os.ReadFile(path)
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

func (g *guestGroup) CPUTime() time.Duration {
	return time.Duration(readCounter(filepath.Join(g.folder, "cpu.stat"), "usage_usec")) * time.Microsecond
}

// guestGroupTimeout bounds a change of a group that the kernel completes later. A process in a system
// call of a driver is frozen and killed at the call's end.
const guestGroupTimeout = 5 * time.Second

// await polls until a value of cgroup.events has changed.
func (g *guestGroup) await(what, name string, want uint64) error {
	file := filepath.Join(g.folder, "cgroup.events")
	for deadline := time.Now().Add(guestGroupTimeout); readCounter(file, name) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s processes: not finished after %v", what, guestGroupTimeout)
		}
	}
	return nil
}

func (g *guestGroup) Freeze(frozen bool) error {
	n := 0
	if frozen {
		n = 1
		// A process needs CPU time to freeze, like one that ends (Kill).
		_ = g.prioritize(budget.MinLevel)
		defer func() { _ = g.prioritize(budget.Demoted) }()
	}
	if err := writeInt(filepath.Join(g.folder, "cgroup.freeze"), n); err != nil {
		return err
	}
	err := g.await("freeze", "frozen", uint64(n))
	if err != nil && frozen {
		err = errors.Join(err, writeInt(filepath.Join(g.folder, "cgroup.freeze"), 0))
	}
	return err
}

func (g *guestGroup) Signal(sig syscall.Signal) {
	for _, pid := range g.PIDs() {
		_ = unix.Kill(pid, sig) // it may have ended meanwhile
	}
}

// Kill uses cgroup.kill (Linux 5.14), which also gets processes that are being started. Older kernels need
// a frozen group for that.
func (g *guestGroup) Kill() error {
	// Processes need CPU time to end. On busy CPUs an idle group gets none, and would keep its memory.
	_ = g.prioritize(budget.MinLevel) // without the controller they have a normal weight already
	err := writeInt(filepath.Join(g.folder, "cgroup.kill"), 1)
	if errors.Is(err, fs.ErrNotExist) {
		if err = g.Freeze(true); err == nil {
			_ = g.prioritize(budget.MinLevel)
			g.Signal(syscall.SIGKILL) // a frozen process of version 2 follows it
		}
	}
	return errors.Join(err, g.await("kill", "populated", 0))
}

func (g *guestGroup) Remove() error {
	var errs []error
	for _, folder := range g.folders() {
		errs = append(errs, removeGroup(folder))
	}
	return errors.Join(errs...)
}
