package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/internal/testing/grouptest"
	"github.com/penstock/penstock/internal/testing/must"
)

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	dead := exec.Command("true")
	must.OK(t, dead.Run())
	own, err := ownerName(os.Getpid())
	must.OK(t, err)
	for name, stays := range map[string]bool{
		fmt.Sprintf("penstock-%d-1", dead.Process.Pid):                 false,
		fmt.Sprintf("penstock-%d-1", os.Getpid()):                      false, // same process id, other start time
		fmt.Sprintf("penstock-%d-1-guest-id-python", dead.Process.Pid): false,
		own + "-guest-id-python":                                       true,
		own:                                                            true,
		"penstock":                                                     true,
		"penstock-1":                                                   true,
		"penstock-x-y":                                                 true,
		"other":                                                        true,
	} {
		group := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Join(group, "face-0-1"), 0o755))
		sweep(dir, zerolog.Nop())
		if isDir(group) != stays {
			t.Errorf("%s stays: %v, want %v", name, !stays, stays)
		}
	}
}

// The groups of a container's node, whose process ids have no meaning here. Some groups
// hold processes; others still wait for theirs.
func TestSweepKeepsUsedTree(t *testing.T) {
	dir := t.TempDir()
	dead := exec.Command("true")
	must.OK(t, dead.Run())
	tree := filepath.Join(dir, fmt.Sprintf("penstock-%d-1", dead.Process.Pid))
	empty, full := filepath.Join(tree, "face-0-1"), filepath.Join(tree, "face-0-2")
	for _, group := range []string{empty, full} {
		must.OK(t, os.MkdirAll(group, 0o755))
	}
	must.OK(t, os.WriteFile(filepath.Join(full, "cgroup.procs"), []byte("0\n"), 0o644))
	sweep(dir, zerolog.Nop())
	if !isDir(empty) || !isDir(full) {
		t.Errorf("an empty group stays: %v, one with a process: %v; want both", isDir(empty), isDir(full))
	}
}

// openTree opens a tree of the version that this machine has.
func openTree(t *testing.T) *Tree {
	t.Helper()
	grouptest.Check(t)
	tree, err := OpenV2(os.Getpid(), zerolog.Nop())
	if err != nil {
		var second error
		if tree, second = OpenV1(os.Getpid(), zerolog.Nop()); second != nil {
			t.Skipf("not on this machine: needs a writable cpu controller: %v, %v", err, second)
		}
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree
}

// The kernel does not end what a function's process had started when the node is killed.
func TestSweepEndsLeftProcesses(t *testing.T) {
	openTree(t)
	dead := exec.Command("true")
	must.OK(t, dead.Run())
	s, err := find()
	must.OK(t, err)
	parents := s.parents("cpu")
	if m, err := s.unified(); err == nil {
		parents[""] = filepath.Join(m.point, m.under(s.own[""]))
	}
	for version, parent := range parents {
		tree := filepath.Join(parent, fmt.Sprintf("penstock-%d-1", dead.Process.Pid))
		if err := os.MkdirAll(filepath.Join(tree, "face-0-1"), 0o755); err != nil {
			continue // not writable for this user
		}
		pid, end := grouptest.Sleeper(t)
		must.OK(t, writeInt(filepath.Join(tree, "face-0-1", procsFile), int64(pid)))
		sweep(parent, zerolog.Nop())
		if stat, _ := procstat.Read(pid); !stat.Ended() {
			t.Errorf("version %q: the process runs on", version)
		}
		end()
		if isDir(tree) {
			t.Errorf("%s is left", tree)
			remove(tree)
		}
	}
}

func TestSweepSparesOthers(t *testing.T) {
	tree := openTree(t)
	g, err := tree.Make("face-0-1", true)
	must.OK(t, err)
	for _, folder := range tree.group.folders() {
		sweep(filepath.Dir(folder), zerolog.Nop())
	}
	if _, err := g.Quota(); err != nil {
		t.Errorf("it was swept: %v", err)
	}
}

func TestTree(t *testing.T) {
	tree := openTree(t)
	pid, end := grouptest.Sleeper(t)
	g, err := tree.Make("face-0-1", true)
	must.OK(t, err)
	for _, percent := range []float64{30, 100, 1, 75, 0} {
		want := QuotaFor(percent, 2)
		if got, err := g.Quota(); g.SetQuota(want) != nil || err != nil {
			t.Fatalf("%v %%: had %v, %v", percent, got, err)
		}
		if got, err := g.Quota(); got != want || err != nil {
			t.Errorf("%v %%: the kernel has %v, %v, want %v", percent, got, err, want)
		}
	}
	// The kernel forgets the weight of a group that was idle.
	folder, s := g.cpu()
	for _, l := range []budget.Level{budget.Demoted, 1, budget.Demoted, 5, 3} {
		if err := g.Prioritize(l); err != nil {
			t.Fatalf("level %d: %v", l, err)
		}
		idle := readCounter(filepath.Join(folder, "cpu.idle"), "")
		weight := readCounter(filepath.Join(folder, s.file), "")
		if l == budget.Demoted && isFile(filepath.Join(folder, "cpu.idle")) {
			if idle != 1 {
				t.Errorf("demoted, and cpu.idle is %d", idle)
			}
		} else if want := uint64(s.normal << max(0, l-1)); weight != want {
			t.Errorf("level %d: %s is %d, want %d", l, s.file, weight, want)
		}
	}
	must.OK(t, g.Add(pid))
	if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); !strings.Contains(string(text), filepath.Base(filepath.Dir(folder))+"/face-0-1\n") {
		t.Errorf("the process is in\n%s", text)
	}
	end()
	if err := g.Add(pid); err == nil {
		t.Error("added a process that has ended")
	}
	for range 2 {
		if err := tree.Remove("face-0-1"); err != nil || isDir(folder) {
			t.Errorf("removed: %v, %v", !isDir(folder), err)
		}
	}
}

// TestFiles writes to plain files with the kernel's names, because a machine has each controller in one version only.
func TestFiles(t *testing.T) {
	quota := Quota{time.Millisecond, 3334 * time.Microsecond}
	limits := func(g *Group) error {
		var c Counters
		return errors.Join(c.limitMemory(g, 9), c.limitTasks(g, 7))
	}
	for name, c := range map[string]struct {
		change          func(*Group) error
		unified, legacy map[string]string
	}{
		"quota":     {func(g *Group) error { return g.SetQuota(quota) }, map[string]string{"cpu.max": "1000 3334"}, map[string]string{"cpu.cfs_quota_us": "1000", "cpu.cfs_period_us": "3334"}},
		"no quota":  {func(g *Group) error { return g.SetQuota(Quota{}) }, map[string]string{"cpu.max": "max"}, map[string]string{"cpu.cfs_quota_us": "-1"}},
		"demoted":   {func(g *Group) error { return g.Prioritize(budget.Demoted) }, map[string]string{"cpu.idle": "1"}, map[string]string{"cpu.idle": "1"}},
		"level 2":   {func(g *Group) error { return g.Prioritize(2) }, map[string]string{"cpu.idle": "0", "cpu.weight": "200"}, map[string]string{"cpu.idle": "0", "cpu.shares": "2048"}},
		"processes": {func(g *Group) error { return g.Add(7) }, map[string]string{"cgroup.procs": "7"}, map[string]string{"cgroup.procs": "7"}},
		"limits":    {limits, map[string]string{"memory.max": "9", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "7"}, map[string]string{"memory.limit_in_bytes": "9", "memory.memsw.limit_in_bytes": "9", "pids.max": "7"}},
	} {
		for version, want := range map[string]map[string]string{"2": c.unified, "1": c.legacy} {
			t.Run(name+" in version "+version, func(t *testing.T) {
				dir := t.TempDir()
				g := &Group{unified: dir}
				if version == "1" {
					g = &Group{legacy: map[string]string{"cpu": dir, "memory": dir, "pids": dir}}
				}
				counters := map[string]string{"memory.events": "oom_kill 3\n", "memory.oom_control": "oom_kill 3\n"}
				for file := range want {
					counters[file] = ""
				}
				for file, text := range counters {
					must.OK(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
				}
				must.OK(t, c.change(g))
				for file, text := range want {
					if got, _ := os.ReadFile(filepath.Join(dir, file)); string(got) != text {
						t.Errorf("%s is %q, want %q", file, got, text)
					}
				}
			})
		}
	}
}

// A group that another orchestrator made may be with a share or without one.
func TestTreeRemovesGroupOfAnother(t *testing.T) {
	tree := &Tree{Group{unified: t.TempDir()}}
	for _, cpu := range []bool{true, false} {
		g, err := tree.Make("face-0-1", cpu)
		must.OK(t, err)
		if err := tree.Remove("face-0-1"); err != nil || isDir(g.unified) {
			t.Errorf("%s is left: %v", g.unified, err)
		}
	}
}

func TestFix(t *testing.T) {
	denied := func(dir string) error {
		return fmt.Errorf("make group: %w", &os.PathError{Op: "mkdir", Path: filepath.Join(dir, "penstock-7-1"), Err: os.ErrPermission})
	}
	const want = `sudo mkdir -p /sys/fs/cgroup/cpu/user/penstock && sudo chown -R "$(id -u)" /sys/fs/cgroup/cpu/user/penstock`
	for _, dir := range []string{"/sys/fs/cgroup/cpu/user", "/sys/fs/cgroup/cpu/user/penstock"} {
		if got := FixV1(denied(dir)); got != want {
			t.Errorf("in %s: %s", dir, got)
		}
	}
	if got := FixV1(ErrNoController); got != "" {
		t.Errorf("without a controller: %s", got)
	}
	if got := FixV2(ErrNoController); got != "" {
		t.Errorf("without a controller: %s", got)
	}
}

func TestReadMounts(t *testing.T) {
	const text = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:7 master:1 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 /docker/abc /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
broken line
`
	got, err := readMounts(strings.NewReader(text))
	must.OK(t, err)
	want := []mount{
		{"/sys/fs/cgroup/cpu,cpuacct", "/", "cgroup", "rw,cpu,cpuacct"},
		{"/sys/fs/cgroup/unified", "/docker/abc", "cgroup2", "rw,nsdelegate"},
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("read %+v, want %+v", got, want)
	}
	if !got[0].has("cpu") || got[1].has("cpu") || got[0].unified() || !got[1].unified() {
		t.Error("controllers are misread")
	}
}

func TestOwnGroup(t *testing.T) {
	for _, c := range []struct{ root, own, want string }{
		{"/", "/", "/"},
		{"/", "/user.slice/session-1.scope", "/user.slice/session-1.scope"},
		{"/docker/abc", "/docker/abc", "/"},
		{"/docker/abc", "/docker/abc/x", "/x"},
		{"/docker/abc", "/docker/abcd", "/"}, // not below it
		{"/docker/abc", "/", "/"},
	} {
		if got := (mount{root: c.root}).under(c.own); got != c.want {
			t.Errorf("%s below a mount of %s: %s, want %s", c.own, c.root, got, c.want)
		}
	}
}

func TestParseMembership(t *testing.T) {
	got, err := parseMembership("9:name=systemd:/\n4:cpu,cpuacct:/a:b\n0::/user.slice\n")
	if err != nil || len(got) != 4 || got["cpuacct"] != "/a:b" || got[""] != "/user.slice" {
		t.Errorf("read %v, %v", got, err)
	}
	if got, err := parseMembership("9:cpu\n"); err == nil {
		t.Errorf("read %v", got)
	}
}

func TestParseQuota(t *testing.T) {
	for _, c := range []struct {
		text string
		want Quota
		ok   bool
	}{
		{"max 100000\n", Quota{}, true},
		{"1000 3334\n", Quota{time.Millisecond, 3334 * time.Microsecond}, true},
		{"1000", Quota{}, false},
		{"-1\n 100000\n", Quota{}, true},
		{"a 1", Quota{}, false},
		{"1 b", Quota{}, false},
	} {
		if got, err := parseQuota(c.text); got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %v, %v", c.text, got, err)
		}
	}
}
