package orchestrator

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/orchestrator/cpushare"
	"github.com/penstock/penstock/orchestrator/sandbox"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/shm/cpuset"
)

// confined tells a process in the sandbox what to try.
type confined struct {
	UID      int
	Model    string   // must be readable
	Secrets  []string // must not be readable
	Unwanted []string // must not be writable: files in folders
	Victim   int      // must not be signalled or traced
	Sockets  []string // must not be connected to
}

// violations tries what the sandbox must forbid and what it must allow. It runs in the
// confined process.
func (c *confined) violations() (found []string) {
	complain := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		complain("read own status: %v", err)
	}
	none := strings.Repeat("0", 16)
	for name, want := range map[string]string{
		"Uid": fmt.Sprintf("%d\t%[1]d\t%[1]d\t%[1]d", c.UID), "NoNewPrivs": "1", "Seccomp": "2",
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapAmb": none,
	} {
		if !strings.Contains(string(status), "\n"+name+":\t"+want+"\n") {
			complain("%s is not %q", name, want)
		}
	}
	if os.Getenv("HOME") != os.Getenv("TMPDIR") {
		complain("HOME is %s, TMPDIR %s", os.Getenv("HOME"), os.Getenv("TMPDIR"))
	}

	// The sandbox must allow these accesses.
	if _, err := os.ReadFile(c.Model); err != nil {
		complain("read model: %v", err)
	}
	if err := os.WriteFile(filepath.Join(os.TempDir(), "own"), []byte("x"), 0o600); err != nil {
		complain("write to its own folder: %v", err)
	}
	if out, err := exec.Command("/bin/sh", "-c", "exit 0").CombinedOutput(); err != nil {
		complain("run a program: %v: %s", err, out)
	}
	if region, err := shm.Create("confined", 1<<20, shm.Options{}); err != nil {
		complain("make shared memory: %v", err)
	} else {
		if err := unix.Mlock(region.Bytes()); err != nil {
			complain("lock memory: %v", err)
		}
		region.Close()
	}
	if fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		complain("make a Unix socket: %v", err)
	} else {
		// libml's lock of a device.
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@penstock-test-%d", os.Getpid())}); err != nil {
			complain("bind an abstract Unix socket: %v", err)
		}
		unix.Close(fd)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -1); err == nil {
		complain("it goes before other processes, on a CPU")
	}

	// The sandbox must forbid these accesses.
	for _, path := range c.Secrets {
		if _, err := os.ReadFile(path); err == nil {
			complain("it reads %s", path)
		}
		if _, err := os.ReadDir(path); err == nil {
			complain("it lists %s", path)
		}
	}
	for _, path := range c.Unwanted {
		if err := os.WriteFile(path, nil, 0o600); err == nil {
			complain("it writes %s", path)
		}
	}
	if err := unix.Kill(c.Victim, unix.SIGCONT); err == nil {
		complain("it signals another process")
	}
	if err := unix.PtraceAttach(c.Victim); err == nil {
		complain("it traces another process")
	}
	if _, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", c.Victim)); err == nil {
		complain("it reads another process's environment")
	}
	for _, path := range c.Sockets {
		if conn, err := net.Dial("unixpacket", path); err == nil {
			conn.Close()
			complain("it connects to %s", path)
		}
	}
	for domain, name := range map[int]string{unix.AF_INET: "IPv4", unix.AF_INET6: "IPv6", unix.AF_NETLINK: "netlink", unix.AF_PACKET: "packet"} {
		if fd, err := unix.Socket(domain, unix.SOCK_DGRAM, 0); !errors.Is(err, unix.EPERM) {
			unix.Close(fd)
			complain("socket of %s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"unshare":         unix.Unshare(unix.CLONE_NEWUSER),
		"perf_event_open": errorOf(unix.SYS_PERF_EVENT_OPEN),
		"bpf":             errorOf(unix.SYS_BPF), "io_uring_setup": errorOf(unix.SYS_IO_URING_SETUP),
		"keyctl": errorOf(unix.SYS_KEYCTL), "mount": unix.Mount("none", os.TempDir(), "tmpfs", 0, ""),
		"clone with a user namespace": errorOf(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)),
		"setsid":                      errorOf(unix.SYS_SETSID), "setpgid": unix.Setpgid(0, 0),
		"prlimit of another process":            unix.Prlimit(c.Victim, unix.RLIMIT_CPU, &unix.Rlimit{Cur: 1, Max: 1}, nil),
		"setpriority of another process":        unix.Setpriority(unix.PRIO_PROCESS, c.Victim, 19),
		"setpriority of all of its user":        unix.Setpriority(unix.PRIO_USER, 0, 19),
		"setpriority of another group":          unix.Setpriority(unix.PRIO_PGRP, c.Victim, 19),
		"ioprio_set of another process":         errorOf(unix.SYS_IOPRIO_SET, 1, uintptr(c.Victim), 3<<13),
		"ioprio_set of all of its user":         errorOf(unix.SYS_IOPRIO_SET, 3, uintptr(c.UID), 3<<13),
		"sched_setscheduler of another process": errorOf(unix.SYS_SCHED_SETSCHEDULER, uintptr(c.Victim), unix.SCHED_IDLE),
		"sched_setattr of another process":      unix.SchedSetAttr(c.Victim, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: 19}, 0),
		"sched_setaffinity of another process":  cpuset.PinThread(c.Victim, []int{0}),
	} {
		if !errors.Is(err, unix.EPERM) {
			complain("%s: %v", name, err)
		}
	}
	if err := errorOf(unix.SYS_CLONE3); !errors.Is(err, unix.ENOSYS) {
		complain("clone3: %v", err)
	}
	return found
}

// errorOf returns the error of a system call with these arguments, then zeros.
func errorOf(number uintptr, arguments ...uintptr) error {
	all := append(arguments, 0, 0, 0)
	_, _, errno := unix.RawSyscall(number, all[0], all[1], all[2])
	if errno == 0 {
		return nil
	}
	return errno
}

// confinedMain is the confined process. It reports violations as the reason of its first
// notice.
func confinedMain(text string) int {
	var c confined
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	child, err := control.OpenChild()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	child.Notify(control.Notice{State: control.Loaded, Reason: strings.Join(append(c.violations(), "tried"), "; ")})
	for range child.Orders() {
		child.Notify(control.Notice{State: control.Draining})
		break
	}
	return 0
}

const nobodyUID = 65534

// closedFolder is a folder that only its owner may enter, with files in it.
func closedFolder(t *testing.T, files ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "closed")
	must.OK(t, os.Mkdir(dir, 0o700))
	for _, f := range files {
		path := filepath.Join(dir, f)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte("secret"), 0o644))
	}
	return dir
}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can start processes as another user")
	}
}

func TestConfinedProcess(t *testing.T) {
	asRoot(t)
	victim := exec.Command("sleep", "1000")
	victim.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyUID, Gid: nobodyUID}, Pdeathsig: syscall.SIGKILL}
	must.OK(t, victim.Start())
	defer victim.Wait()
	defer victim.Process.Kill()
	closed := closedFolder(t, "model/weights.bin", "secret")

	n := newNode(t).run(func(o *Options) {
		u, err := sandbox.FindUser("nobody")
		must.OK(t, err)
		o.Sandbox = &Sandbox{User: u}
	})
	c := confined{
		UID: nobodyUID, Model: filepath.Join(closed, "model/weights.bin"), Victim: victim.Process.Pid,
		Secrets: []string{"/root", "/etc/shadow", n.dir, filepath.Join(closed, "secret"), filepath.Join(n.dir, "orchestrator.lock")},
		Unwanted: []string{
			filepath.Join(n.dir, "x"), filepath.Join(closed, "model/x"), filepath.Join(closed, "model/weights.bin"),
			"/tmp/penstock-sandbox-test", "/usr/x", "/proc/sys/kernel/hostname", "/proc/self/comm", "/dev/x",
		},
		Sockets: []string{filepath.Join(n.dir, "manager.sock")},
	}
	text, err := json.Marshal(c)
	must.OK(t, err)
	p := newDesired(1, control.Shadow, 30)
	p.Command = []string{n.self, "confined", string(text)}
	p.Model = c.Model
	n.want(p)
	q := n.untilState(1, control.Loaded)
	if q.Reason != "tried" {
		t.Errorf("in the sandbox: %s", q.Reason)
	}
	private := filepath.Join(n.dir, "private", "face-0-1")
	if _, err := os.Stat(filepath.Join(private, "own")); err != nil {
		t.Errorf("its own folder: %v", err)
	}
	p.Role = control.Drain
	n.want(p)
	n.untilState(1, control.Stopped)
	if _, err := os.Stat(private); err == nil {
		t.Error("its private folder outlives it")
	}
}

// A process that was started just before another orchestrator took over has not locked its folder.
func TestPrivateFoldersLeft(t *testing.T) {
	dir, b := t.TempDir(), &Sandbox{}
	must.OK(t, b.prepare(dir, ""))
	var paths []string
	for generation := range uint32(2) {
		paths = append(paths, privateFolder(dir, key{"face", 0, generation + 1}))
		must.OK(t, os.Mkdir(paths[generation], 0o700))
	}
	note, err := json.Marshal(saved{Version: control.Version, ManagerID: "m", IF: "face", Generation: 2, State: control.Starting})
	must.OK(t, err)
	must.OK(t, b.removeLeft(dir, []heldProcess{{note: note}}))
	for i, kept := range []bool{false, true} {
		if _, err := os.Stat(paths[i]); (err == nil) != kept {
			t.Errorf("%s: %v, want kept %v", paths[i], err, kept)
		}
	}
}

// The launcher must keep the parent-death signal when it changes its credentials.
func TestConfinedProcessEnds(t *testing.T) {
	n := newNode(t)
	cmd := n.orchestrate(cpushare.Governor, "sandbox")
	n.want(n.child(1, control.Serve, "stay", "ignoreTERM"))
	p := n.untilState(1, control.Active)
	if want := os.Getuid(); want == 0 {
		var about unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d", p.PID), &about); err != nil || int(about.Uid) != nobodyUID {
			t.Errorf("process of user %d (%v), want %d", about.Uid, err, nobodyUID)
		}
	}
	private := filepath.Join(n.dir, "private", "face-0-1")
	if _, err := os.Stat(private); err != nil {
		t.Error(err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	n.untilGone(p.PID)

	// The next orchestrator removes what the process left.
	cmd = n.orchestrate(cpushare.Governor, "sandbox")
	n.until("another serves", func(o control.Observed) bool {
		return len(o.Processes) == 1 && o.Processes[0].State == control.Active && o.Processes[0].PID != p.PID
	})
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(private); err == nil {
		t.Error("a private folder is left")
	}
}

func TestConfinedProcessFails(t *testing.T) {
	asRoot(t)
	dir := closedFolder(t, "unreadable", "program")
	os.Chmod(filepath.Join(dir, "unreadable"), 0o600)
	for name, c := range map[string]struct {
		command []string
		model   string
		want    string
	}{
		"no such program":  {command: []string{"/nowhere/program"}, want: "/nowhere/program: no such file"},
		"not executable":   {command: []string{filepath.Join(dir, "program")}, want: "permission denied for user nobody; give it"},
		"unreadable model": {command: []string{"/bin/true"}, model: filepath.Join(dir, "unreadable"), want: "user nobody cannot read " + filepath.Join(dir, "unreadable") + ": it has mode 0600"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t).run(func(o *Options) {
				u, err := sandbox.FindUser("nobody")
				must.OK(t, err)
				o.Sandbox = &Sandbox{User: u}
			})
			p := newDesired(1, control.Shadow, 30)
			p.Command, p.Model = c.command, c.model
			n.want(p)
			if q := n.untilState(1, control.Failed); !strings.Contains(q.Reason, c.want) {
				t.Errorf("failed: %s; want %s in it", q.Reason, c.want)
			}
			left, err := os.ReadDir(filepath.Join(n.dir, "private"))
			if err != nil || len(left) > 0 {
				t.Errorf("private folders are left: %v, %v", left, err)
			}
		})
	}
}

func TestConfinedWeightServer(t *testing.T) {
	asRoot(t)
	dir := t.TempDir()
	u, err := sandbox.FindUser("nobody")
	must.OK(t, err)
	b := &Sandbox{User: u}
	must.OK(t, b.prepare(dir, ""))
	var log buffer
	h := startWeightServer(newKeeper(t), nil, os.Args[0], dir, "GPU-1", b, zerolog.New(&log))
	t.Cleanup(h.close)
	held := h.until(t, "it is there", func(w *control.WeightsHeld) bool { return w != nil })
	for what, path := range map[string]string{"process": fmt.Sprintf("/proc/%d", held.Bytes), "folder": filepath.Dir(h.socket)} {
		var about unix.Stat_t
		if err := unix.Stat(path, &about); err != nil || about.Uid != nobodyUID {
			t.Errorf("its %s is of user %d (%v), want %d", what, about.Uid, err, nobodyUID)
		}
	}
}
