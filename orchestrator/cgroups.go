package orchestrator

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control/budget"
)

// errNoController is returned if the kernel offers no controller in a cgroup version.
var errNoController = errors.New("no controller")

// mount is a mounted cgroup file system.
type mount struct {
	point   string // mount point
	root    string // the group that the mount shows as its root
	kind    string // "cgroup" or "cgroup2"
	options string // file system options: the controllers of a version 1 mount
}

func cgroupMounts() ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroup mounts: %w", err)
	}
	defer f.Close()
	return readMounts(f)
}

// readMounts reads the cgroup mounts from a mountinfo file (proc_pid_mountinfo(5)). Each
// line has ten or more fields, with a lone "-" before the last three.
func readMounts(r io.Reader) ([]mount, error) {
	var mounts []mount
	s := bufio.NewScanner(r)
	for s.Scan() {
		before, after, ok := strings.Cut(s.Text(), " - ")
		b, a := strings.Fields(before), strings.Fields(after)
		if !ok || len(b) < 6 || len(a) < 3 || a[0] != "cgroup" && a[0] != "cgroup2" {
			continue
		}
		mounts = append(mounts, mount{point: b[4], root: b[3], kind: a[0], options: a[2]})
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("find cgroup mounts: %w", err)
	}
	return mounts, nil
}

// under returns the path, below the mount, of the group that /proc/self/cgroup calls own. A
// container's mount shows the container's own group as the root.
func (m mount) under(own string) string {
	rel, err := filepath.Rel(m.root, own)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "/" // not below the mounted group: only the mount itself can be used
	}
	return path.Join("/", rel)
}

// The name of the group that holds the groups of all processes identifies its owner, the
// processes' parent. It has the owner's process id and, as the kernel reuses ids, its
// start time in clock ticks since boot.
const treePrefix = "penstock-"

func treeName(pid int) (string, error) {
	started, err := startTime(pid)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s%d-%d", treePrefix, pid, started), nil
}

// startTime reads field 22 of /proc/pid/stat. The second field is a name in parentheses that
// may contain anything.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read start time: %w", err)
	}
	text := string(b)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("read start time of %d: %d fields after the name", pid, len(fields))
	}
	started, err := strconv.ParseUint(fields[22-3], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read start time: %w", err)
	}
	return started, nil
}

// orphaned reports whether the owner in a group's name no longer exists.
func orphaned(name string) bool {
	rest, ok := strings.CutPrefix(name, treePrefix)
	if !ok {
		return false
	}
	first, rest, ok := strings.Cut(rest, "-")
	if !ok {
		return false
	}
	second, _, _ := strings.Cut(rest, "-") // a group for guests has a third part
	pid, err := strconv.Atoi(first)
	if err != nil {
		return false
	}
	started, err := strconv.ParseUint(second, 10, 64)
	if err != nil {
		return false
	}
	now, err := startTime(pid)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return now != started
}

// sweep removes the groups that dead orchestrators left in dir. It keeps a group that holds
// a process. If a container has its own process ids but the machine's groups, its
// orchestrator only looks dead from here.
func sweep(dir string, log zerolog.Logger) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // openV1 and openV2 report why they cannot use dir
	}
	for _, e := range entries {
		if !e.IsDir() || !orphaned(e.Name()) {
			continue
		}
		left := filepath.Join(dir, e.Name())
		endLeft(left)
		if inUse(left) {
			log.Debug().Str("group", left).Msg("control group is in use by an orchestrator of another pid namespace; keeping it")
			continue
		}
		if err := removeGroups(left); errors.Is(err, unix.EBUSY) {
			log.Debug().Err(err).Msg("control group is in use by processes of another pid namespace; keeping it")
			continue
		} else if err != nil {
			log.Warn().Err(err).Str("group", left).Msg("cannot remove the control groups of an orchestrator that has ended")
			continue
		}
		log.Info().Str("group", left).Msg("removed the control groups of an orchestrator that has ended")
	}
}

// endLeft kills the processes in the groups of functions of a node that was killed. The kernel ended the processes that
// the node had started, but not those that they had started. A process of this pid namespace was a process
// of that node; one of another namespace may belong to a container's node that runs.
func endLeft(dir string) {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || strings.Contains(filepath.Base(dir), "-guest-") { // `penstock run` ends those
		return
	}
	left := func() (found bool) {
		for _, pid := range (&guestGroup{folder: dir}).PIDs() {
			if namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil && namespace == own {
				found = true
				_ = unix.Kill(pid, unix.SIGKILL) // it may have ended meanwhile
			}
		}
		return found
	}
	for deadline := time.Now().Add(guestGroupTimeout); left() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// inUse reports whether a group, or one in it, holds a process. A process of another pid
// namespace cannot be seen from here. Version 2 lists such a process as 0, but version 1
// does not list it. In version 1 only the kernel knows, and refuses the removal with EBUSY.
func inUse(dir string) bool {
	used := errors.New("in use")
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "cgroup.procs" {
			return nil
		}
		if b, err := os.ReadFile(path); err == nil && len(b) > 0 {
			return used
		}
		return nil
	}) != nil
}

// removeGroups removes a group and the groups in it.
func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroups(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// Version 1.

// specOf converts q to the library's type; no limit is -1.
func specOf(q quota) *specs.LinuxResources {
	runtime := int64(-1)
	if q == (quota{}) {
		return &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: &runtime}}
	}
	runtime = q.runtime.Microseconds()
	period := uint64(q.period.Microseconds())
	return &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: &runtime, Period: &period}}
}

type treeV1 struct {
	control cgroup1.Cgroup
	dir     string
	limits  map[string]string // groups that hold the groups with limits, by controller
}

func openV1(cpus, owner int, log zerolog.Logger) (shares, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	own, _, err := cgroups.ParseCgroupFileUnified("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find own group: %w", err)
	}
	for _, m := range mounts {
		if m.kind != "cgroup" || !listHas(m.options, string(cgroup1.Cpu)) {
			continue
		}
		name, err := treeName(owner)
		if err != nil {
			return nil, err
		}
		// The library looks for a folder "cpu". It is the mount itself, or a link to
		// "cpu,cpuacct".
		only := func() ([]cgroup1.Subsystem, error) {
			return []cgroup1.Subsystem{cgroup1.NewCpu(filepath.Dir(m.point))}, nil
		}
		parent := m.under(own[string(cgroup1.Cpu)])
		dir := filepath.Join(filepath.Dir(m.point), string(cgroup1.Cpu), parent)
		if ready := filepath.Join(dir, preparedName); isDir(ready) {
			parent, dir = path.Join(parent, preparedName), ready
		}
		sweep(dir, log)
		c, err := cgroup1.New(cgroup1.StaticPath(path.Join(parent, name)), &specs.LinuxResources{}, cgroup1.WithHierarchy(only))
		if err != nil {
			return nil, fmt.Errorf("make group: %w", err)
		}
		return opened(newCgroups(&treeV1{control: c, dir: filepath.Join(dir, name), limits: makeLimitTrees(mounts, name, log)}, cpus, log))
	}
	return nil, fmt.Errorf("cgroup version 1: %w is mounted", errNoController)
}

// preparedName is the name of a group that root may have made for a user; see mendV1.
const preparedName = "penstock"

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// opened returns an untyped nil after an error: a nil *cgroupShares in the interface would
// not equal nil.
func opened(c *cgroupShares, err error) (shares, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// listHas reports whether a comma-separated list has item.
func listHas(list, item string) bool {
	for _, s := range strings.Split(list, ",") {
		if s == item {
			return true
		}
	}
	return false
}

// mendV1 returns the command that prepares a group, if making one was not permitted. In
// version 1 the owner of a group may make groups in it and move their own processes there.
func mendV1(err error) string {
	var denied *fs.PathError
	if !errors.As(err, &denied) || !errors.Is(err, fs.ErrPermission) {
		return ""
	}
	dir := filepath.Dir(denied.Path)
	if filepath.Base(dir) != preparedName {
		dir = filepath.Join(dir, preparedName)
	}
	return fmt.Sprintf(`sudo mkdir -p %s && sudo chown -R "$(id -u)" %s`, dir, dir)
}

func (t *treeV1) mechanism() string { return mechanismV1 }

func (t *treeV1) child(name string) (group, error) {
	c, err := t.control.New(name, &specs.LinuxResources{})
	if err != nil {
		return nil, err
	}
	return &groupV1{control: c, dir: filepath.Join(t.dir, name), limits: t.limitsOf(name)}, nil
}

// aside makes no group for the CPUs.
func (t *treeV1) aside(name string) (group, error) {
	return &groupV1{limits: t.limitsOf(name)}, nil
}

// limitsOf returns the folders of a process's groups with limits, by controller.
func (t *treeV1) limitsOf(name string) map[string]string {
	folders := map[string]string{}
	for controller, parent := range t.limits {
		folders[controller] = filepath.Join(parent, name)
	}
	return folders
}

func (t *treeV1) weigh(n int) error {
	return writeInt(filepath.Join(t.dir, weightFileV1), min(n*weightV1, 256*weightV1))
}

func (t *treeV1) remove() error {
	err := t.control.Delete()
	for _, folder := range t.limits {
		err = errors.Join(err, removeGroup(folder))
	}
	return err
}

type groupV1 struct {
	control cgroup1.Cgroup // nil without a share
	dir     string
	limits  map[string]string // folders by controller, which may not exist
}

func (g *groupV1) hold(l Limits) (h held, err error) {
	var errs []error
	if g.control != nil {
		h.join = append(h.join, filepath.Join(g.dir, procsFile))
	}
	usable := map[string]string{}
	for _, controller := range limitControllers {
		folder, err := g.limits[controller], errNoController
		if folder != "" {
			err = makeFolder(folder)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is %w: %w", limitKeys[controller], errNotEnforced, err))
			continue
		}
		usable[controller] = folder
		h.join = append(h.join, filepath.Join(folder, procsFile))
	}
	return h, errors.Join(append(errs, h.limit(usable["memory"], usable["pids"], l, true))...)
}

// set writes the quota. Period and quota are two files, and the kernel refuses a pair that
// exceeds a limit further up. set therefore lifts the old quota first.
func (g *groupV1) set(q quota) error {
	if err := g.control.Update(specOf(quota{})); err != nil {
		return err
	}
	if q == (quota{}) {
		return nil
	}
	return g.control.Update(specOf(q))
}

func (g *groupV1) get() (quota, error) {
	runtime, err := readInt(filepath.Join(g.dir, "cpu.cfs_quota_us"))
	if err != nil || runtime < 0 {
		return quota{}, err
	}
	period, err := readInt(filepath.Join(g.dir, "cpu.cfs_period_us"))
	if err != nil {
		return quota{}, err
	}
	return quota{runtime: micros(runtime), period: micros(period)}, nil
}

// The weight of an ordinary process; version 1 calls weights shares. The max is 256 times as
// much in version 1, and 100 times in version 2.
const (
	weightFileV1, weightV1 = "cpu.shares", 1024
	weightFileV2, weightV2 = "cpu.weight", 100
)

func (g *groupV1) prioritize(l budget.Level) error {
	return writePriority(g.dir, weightFileV1, weightV1, 2, l)
}

func (g *groupV1) add(pid int) error { return g.control.AddProc(uint64(pid)) }

func (g *groupV1) remove() (err error) {
	if g.control != nil {
		err = g.control.Delete()
	}
	for _, folder := range g.limits {
		err = errors.Join(err, removeGroup(folder))
	}
	return err
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func readInt(name string) (int64, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// Version 2.

type treeV2 struct {
	manager *cgroup2.Manager
	dir     string
}

// openV2 makes the tree in this process's group, or in the nearest group above that accepts
// it. In version 2 a group that holds processes itself gives no controller to its children,
// unless it is the root. The tree is therefore usually in the group above.
func openV2(cpus, owner int, log zerolog.Logger) (shares, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	_, own, err := cgroups.ParseCgroupFileUnified("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find own group: %w", err)
	}
	for _, m := range mounts {
		if m.kind != "cgroup2" {
			continue
		}
		return openV2At(m, own, cpus, owner, log)
	}
	return nil, fmt.Errorf("cgroup version 2: %w is mounted", errNoController)
}

func openV2At(m mount, own string, cpus, owner int, log zerolog.Logger) (shares, error) {
	b, err := os.ReadFile(filepath.Join(m.point, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("cgroup version 2: %w", err)
	}
	if !listHas(strings.Join(strings.Fields(string(b)), ","), "cpu") {
		return nil, fmt.Errorf("cgroup version 2 at %s: %w, only %q", m.point, errNoController, strings.TrimSpace(string(b)))
	}
	name, err := treeName(owner)
	if err != nil {
		return nil, err
	}
	var first error
	for at := m.under(own); ; at = path.Dir(at) {
		s, err := openV2In(m.point, path.Join(at, name), cpus, log)
		if err == nil {
			return s, nil
		}
		if first == nil {
			first = err // the group that a user can most easily fix
		}
		if at == "/" {
			return nil, fmt.Errorf("cgroup version 2: %w", first)
		}
	}
}

func openV2In(mountpoint, at string, cpus int, log zerolog.Logger) (shares, error) {
	dir := filepath.Join(mountpoint, at)
	sweep(filepath.Dir(dir), log)
	// To move a process, one needs write access to the closest group above both its old and
	// its new group.
	f, err := os.OpenFile(filepath.Join(filepath.Dir(dir), "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	f.Close()
	manager, err := cgroup2.NewManager(mountpoint, at, &cgroup2.Resources{CPU: &cgroup2.CPU{}})
	if err != nil {
		return nil, err
	}
	// A group gives its children the controllers that its own parent gives to it.
	for at := mountpoint; ; {
		for _, controller := range limitControllers {
			_ = writeText(filepath.Join(at, "cgroup.subtree_control"), "+"+controller) // hold reports what is missing
		}
		rest, err := filepath.Rel(at, dir)
		if err != nil || rest == "." {
			break
		}
		next, _, _ := strings.Cut(rest, "/")
		at = filepath.Join(at, next)
	}
	return opened(newCgroups(&treeV2{manager: manager, dir: dir}, cpus, log))
}

func mendV2(err error) string {
	if errors.Is(err, errNoController) {
		return ""
	}
	return "systemd-run --user --scope -p Delegate=yes penstock up"
}

func (t *treeV2) mechanism() string { return mechanismV2 }

func (t *treeV2) child(name string) (group, error) {
	m, err := t.manager.NewChild(name, &cgroup2.Resources{CPU: &cgroup2.CPU{}})
	if err != nil {
		return nil, err
	}
	return &groupV2{manager: m, dir: filepath.Join(t.dir, name)}, nil
}

func (t *treeV2) weigh(n int) error {
	return writeInt(filepath.Join(t.dir, weightFileV2), min(n*weightV2, 100*weightV2))
}

// asideName is the group of all processes without a share. It does not divide CPUs between the groups in it.
const asideName = "aside"

func (t *treeV2) aside(name string) (group, error) {
	parent := filepath.Join(t.dir, asideName)
	if err := makeFolder(parent); err != nil {
		return nil, err
	}
	for _, controller := range limitControllers {
		_ = writeText(filepath.Join(parent, "cgroup.subtree_control"), "+"+controller) // hold reports what is missing
	}
	g := &groupV2{dir: filepath.Join(parent, name)}
	return g, makeFolder(g.dir)
}

func (t *treeV2) remove() error {
	return errors.Join(removeGroup(filepath.Join(t.dir, asideName)), t.manager.Delete())
}

type groupV2 struct {
	manager *cgroup2.Manager // nil without a share
	dir     string
}

func (g *groupV2) hold(l Limits) (h held, err error) {
	h.join = []string{filepath.Join(g.dir, procsFile)}
	return h, h.limit(g.dir, g.dir, l, false)
}

func (g *groupV2) set(q quota) error {
	limit := cgroup2.NewCPUMax(nil, nil)
	if q != (quota{}) {
		runtime, period := q.runtime.Microseconds(), uint64(q.period.Microseconds())
		limit = cgroup2.NewCPUMax(&runtime, &period)
	}
	return g.manager.Update(&cgroup2.Resources{CPU: &cgroup2.CPU{Max: limit}})
}

func (g *groupV2) get() (quota, error) {
	b, err := os.ReadFile(filepath.Join(g.dir, "cpu.max"))
	if err != nil {
		return quota{}, err
	}
	return parseCPUMax(string(b))
}

// parseCPUMax reads "quota period" or "max period", in microseconds.
func parseCPUMax(text string) (quota, error) {
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return quota{}, fmt.Errorf("read cpu.max: %q has not two fields", text)
	}
	if fields[0] == "max" {
		return quota{}, nil
	}
	runtime, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return quota{}, fmt.Errorf("read cpu.max: %w", err)
	}
	period, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return quota{}, fmt.Errorf("read cpu.max: %w", err)
	}
	return quota{runtime: micros(runtime), period: micros(period)}, nil
}

func (g *groupV2) prioritize(l budget.Level) error {
	return writePriority(g.dir, weightFileV2, weightV2, 1, l)
}

// writePriority gives a group in dir a weight: normal at MinLevel, and twice as much for
// each level above. If the kernel supports it (cpu.idle, since Linux 5.15), a demoted group
// is idle: it yields at once to a group that wakes. Otherwise it gets the min weight, and
// yields when its time slice is over.
func writePriority(dir, weightFile string, normal, lowest int, l budget.Level) error {
	idle := filepath.Join(dir, "cpu.idle")
	if l == budget.Demoted {
		if err := writeInt(idle, 1); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return writeInt(filepath.Join(dir, weightFile), lowest)
	}
	// The kernel refuses a weight for an idle group, and forgets the group's old weight.
	if err := writeInt(idle, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return writeInt(filepath.Join(dir, weightFile), normal<<(l-budget.MinLevel))
}

func writeInt(name string, n int) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(n))
	return errors.Join(err, f.Close())
}

func (g *groupV2) add(pid int) error { return g.manager.AddProc(uint64(pid)) }

func (g *groupV2) remove() error {
	if g.manager == nil {
		return removeGroup(g.dir)
	}
	return g.manager.Delete()
}
