package orchestrator

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
)

// quotas opens the first mechanism, of either version, that can hold quotas on this
// machine.
func quotas(t *testing.T, cpus int) *cgroupShares {
	t.Helper()
	needQuotas(t)
	s, err := openShares("", cpus, os.Getpid(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	c := s.(*cgroupShares)
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
		if left := ownGroups(); len(left) > 0 {
			t.Errorf("groups are left: %v", left)
		}
	})
	return c
}

func needQuotas(t *testing.T) {
	t.Helper()
	f := Probe()
	if !f[0].Usable && !f[1].Usable {
		t.Skipf("not on this machine: needs a writable cpu controller: %+v", f)
	}
}

// sleeper is a process to be limited.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endProcess(cmd) })
	return cmd
}

func endProcess(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

func TestApplyQuota(t *testing.T) {
	c := quotas(t, 2)
	cmd := sleeper(t)
	for _, percent := range []float64{30, 100, 1, 75, 0} {
		enforced, err := c.apply(testKey, cmd.Process.Pid, control.Terms{SharePercent: percent})
		if err != nil || !enforced {
			t.Fatalf("%v %%: %v, %v", percent, enforced, err)
		}
		got, err := c.groups[testKey].get()
		if err != nil {
			t.Fatal(err)
		}
		if want := quotaFor(percent, 2); got != want {
			t.Errorf("%v %%: the kernel has %v in %v, want %v in %v", percent, got.runtime, got.period, want.runtime, want.period)
		}
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if name, _ := treeName(os.Getpid()); !strings.Contains(string(b), name+"/face-0-1\n") {
		t.Errorf("the process is in\n%s", b)
	}
	endProcess(cmd)
	if err := c.remove(testKey); err != nil {
		t.Error(err)
	}
	if err := c.remove(testKey); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// fakeTree notes which groups were removed.
type fakeTree struct {
	tree
	removed []string
}

func (f *fakeTree) child(name string) (group, error) {
	return &fakeGroup{tree: f, name: "child " + name}, nil
}
func (f *fakeTree) aside(name string) (group, error) {
	return &fakeGroup{tree: f, name: "aside " + name}, nil
}

type fakeGroup struct {
	group
	tree *fakeTree
	name string
}

func (g *fakeGroup) remove() error {
	g.tree.removed = append(g.tree.removed, g.name)
	return nil
}

// A group that another orchestrator made may be with a share or without one.
func TestRemoveGroupOfAnother(t *testing.T) {
	f := &fakeTree{}
	c := &cgroupShares{tree: f, budgets: newBudgets(1, zerolog.Nop()), groups: map[key]group{}}
	if err := c.remove(testKey); err != nil {
		t.Error(err)
	}
	if want := []string{"child face-0-1", "aside face-0-1"}; !slices.Equal(f.removed, want) {
		t.Errorf("removed %q, want %q", f.removed, want)
	}
}

func TestQuotaProcessGone(t *testing.T) {
	c := quotas(t, 1)
	cmd := sleeper(t)
	endProcess(cmd)
	if enforced, err := c.apply(testKey, cmd.Process.Pid, control.Terms{SharePercent: 30}); err == nil || enforced {
		t.Errorf("got %v, %v", enforced, err)
	}
	if len(c.groups) != 0 {
		t.Error("its group is kept")
	}
}

func TestSweepSparesOthers(t *testing.T) {
	c := quotas(t, 1)
	cmd := sleeper(t)
	if _, err := c.apply(testKey, cmd.Process.Pid, control.Terms{SharePercent: 30}); err != nil {
		t.Fatal(err)
	}
	for _, m := range mounted(t) {
		sweep(m.point, zerolog.Nop())
	}
	if _, err := c.groups[testKey].get(); err != nil {
		t.Errorf("it was swept: %v", err)
	}
	endProcess(cmd)
	c.remove(testKey)
}

func mounted(t *testing.T) []mount {
	t.Helper()
	mounts, err := cgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	own, err := treeName(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
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
		if err := os.MkdirAll(filepath.Join(group, "face-0-1"), 0o755); err != nil {
			t.Fatal(err)
		}
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
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(dir, fmt.Sprintf("penstock-%d-1", dead.Process.Pid))
	empty, full := filepath.Join(tree, "face-0-1"), filepath.Join(tree, "face-0-2")
	for _, group := range []string{empty, full} {
		if err := os.MkdirAll(group, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(full, "cgroup.procs"), []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	sweep(dir, zerolog.Nop())
	if !isDir(empty) || !isDir(full) {
		t.Errorf("an empty group stays: %v, one with a process: %v; want both", isDir(empty), isDir(full))
	}
}

// The kernel does not end what a function's process had started when the node is killed.
func TestSweepEndsLeftProcesses(t *testing.T) {
	needQuotas(t)
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	own, unified, err := cgroups.ParseCgroupFileUnified("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounted(t) {
		at := own["cpu"]
		if m.kind == "cgroup2" {
			at = unified
		} else if !listHas(m.options, "cpu") {
			continue
		}
		parent := filepath.Join(m.point, m.under(at))
		tree := filepath.Join(parent, fmt.Sprintf("penstock-%d-1", dead.Process.Pid))
		if err := os.MkdirAll(filepath.Join(tree, "face-0-1"), 0o755); err != nil {
			continue // not writable for this user
		}
		cmd := sleeper(t)
		if err := writeInt(filepath.Join(tree, "face-0-1", procsFile), cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		sweep(parent, zerolog.Nop())
		select {
		case <-ended:
		case <-time.After(patience):
			t.Errorf("a process in %s runs on", tree)
			cmd.Process.Kill()
			<-ended
			removeGroup(tree)
		}
		if isDir(tree) {
			t.Errorf("%s is left", tree)
		}
	}
}

func TestProbe(t *testing.T) {
	findings := Probe()
	if len(findings) != 3 || findings[2].Mechanism != mechanismGovernor || !findings[2].Usable {
		t.Fatalf("found %+v", findings)
	}
	s, err := openShares("", 1, os.Getpid(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, f := range findings {
		if f.Usable {
			if f.Mechanism != s.mechanism() {
				t.Errorf("Run takes %s, Probe found %+v", s.mechanism(), findings)
			}
			return
		}
		if f.Why == "" {
			t.Errorf("%s is not usable, and nothing says why", f.Mechanism)
		}
	}
}

func TestMend(t *testing.T) {
	denied := func(dir string) error {
		return fmt.Errorf("make group: %w", &os.PathError{Op: "mkdir", Path: filepath.Join(dir, "penstock-7-1"), Err: os.ErrPermission})
	}
	const want = `sudo mkdir -p /sys/fs/cgroup/cpu/user/penstock && sudo chown -R "$(id -u)" /sys/fs/cgroup/cpu/user/penstock`
	for _, dir := range []string{"/sys/fs/cgroup/cpu/user", "/sys/fs/cgroup/cpu/user/penstock"} {
		if got := mendV1(denied(dir)); got != want {
			t.Errorf("in %s: %s", dir, got)
		}
	}
	if got := mendV1(errNoController); got != "" {
		t.Errorf("without a controller: %s", got)
	}
	if got := mendV2(errNoController); got != "" {
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
	if err != nil {
		t.Fatal(err)
	}
	want := []mount{
		{"/sys/fs/cgroup/cpu,cpuacct", "/", "cgroup", "rw,cpu,cpuacct"},
		{"/sys/fs/cgroup/unified", "/docker/abc", "cgroup2", "rw,nsdelegate"},
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("read %+v, want %+v", got, want)
	}
	if !listHas(got[0].options, "cpu") || listHas(got[1].options, "cpu") {
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

func TestParseCPUMax(t *testing.T) {
	for _, c := range []struct {
		text string
		want quota
		ok   bool
	}{
		{"max 100000\n", quota{}, true},
		{"1000 3334\n", quota{time.Millisecond, 3334 * time.Microsecond}, true},
		{"1000", quota{}, false},
		{"a 1", quota{}, false},
		{"1 b", quota{}, false},
	} {
		if got, err := parseCPUMax(c.text); got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %v, %v", c.text, got, err)
		}
	}
}

func TestQuotaHolds(t *testing.T) {
	needQuotas(t)
	n := newNode(t).run(func(o *Options) { o.Mechanism = "" })
	n.want(n.child(1, control.Serve, "spin"))
	p := n.untilState(1, control.Active)
	if n.last.Mechanism == mechanismGovernor || p.SharePercent != 30 {
		t.Errorf("observed %+v", n.last)
	}
	var procs []string
	for _, g := range ownGroups() {
		if file := filepath.Join(g, "face-0-1", procsFile); isFile(file) {
			procs = append(procs, file)
		}
	}
	if len(procs) != 1 {
		t.Fatalf("groups %v", procs)
	}
	b, err := os.ReadFile(procs[0])
	if err != nil || strings.TrimSpace(string(b)) != fmt.Sprint(p.PID) {
		t.Errorf("in its group is %q, %v; want %d", b, err, p.PID)
	}
	// The process computes on all CPUs, and the kernel throttles it.
	throttled := func() bool {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(procs[0]), "cpu.stat"))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "nr_throttled ")
		return rest != "" && !strings.HasPrefix(rest, "0\n")
	}
	for deadline := time.Now().Add(patience); !throttled(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it was never stopped")
		}
	}
	n.want(n.child(1, control.Kill, "spin"))
	n.untilState(1, control.Stopped)
	if _, err := os.Stat(filepath.Dir(procs[0])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its group is left: %v", err)
	}
}
