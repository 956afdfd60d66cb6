package sandbox

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/landlock-lsm/go-landlock/landlock"
	"github.com/landlock-lsm/go-landlock/landlock/syscall"
	"github.com/penstock/penstock/internal/seccomp"
	"github.com/penstock/penstock/internal/testing/must"
)

// An interpreter runs the filter on calls as the kernel would describe them.
func TestFilter(t *testing.T) {
	vm, err := bpf.NewVM(filter(false))
	must.OK(t, err)
	const foreign = unix.AUDIT_ARCH_I386
	eperm, enosys := unix.SECCOMP_RET_ERRNO|int(unix.EPERM), unix.SECCOMP_RET_ERRNO|int(unix.ENOSYS)
	type row struct {
		architecture, number, argument uint32
		want                           int
	}
	rows := map[string]row{
		"read":                          {seccomp.Architecture, unix.SYS_READ, 0, unix.SECCOMP_RET_ALLOW},
		"execve":                        {seccomp.Architecture, unix.SYS_EXECVE, 0, unix.SECCOMP_RET_ALLOW},
		"foreign architecture":          {foreign, unix.SYS_READ, 0, unix.SECCOMP_RET_KILL_PROCESS},
		"x32":                           {seccomp.Architecture, 1<<30 | unix.SYS_PTRACE, 0, enosys},
		"clone3":                        {seccomp.Architecture, unix.SYS_CLONE3, 0, enosys},
		"thread":                        {seccomp.Architecture, unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_THREAD, unix.SECCOMP_RET_ALLOW},
		"fork":                          {seccomp.Architecture, unix.SYS_CLONE, uint32(unix.SIGCHLD), unix.SECCOMP_RET_ALLOW},
		"clone with a user namespace":   {seccomp.Architecture, unix.SYS_CLONE, unix.CLONE_NEWUSER | uint32(unix.SIGCHLD), eperm},
		"clone with a mount namespace":  {seccomp.Architecture, unix.SYS_CLONE, unix.CLONE_NEWNS, eperm},
		"clone of a sibling":            {seccomp.Architecture, unix.SYS_CLONE, unix.CLONE_PARENT | uint32(unix.SIGCHLD), eperm},
		"socket of Unix":                {seccomp.Architecture, unix.SYS_SOCKET, unix.AF_UNIX, unix.SECCOMP_RET_ALLOW},
		"socket of IPv4":                {seccomp.Architecture, unix.SYS_SOCKET, unix.AF_INET, eperm},
		"socket of IPv6":                {seccomp.Architecture, unix.SYS_SOCKET, unix.AF_INET6, eperm},
		"socket of netlink":             {seccomp.Architecture, unix.SYS_SOCKET, unix.AF_NETLINK, eperm},
		"socket of virtual machines":    {seccomp.Architecture, unix.SYS_SOCKET, unix.AF_VSOCK, eperm},
		"ptrace":                        {seccomp.Architecture, unix.SYS_PTRACE, 0, eperm},
		"io_uring_setup":                {seccomp.Architecture, unix.SYS_IO_URING_SETUP, 0, eperm},
		"the last of the list":          {seccomp.Architecture, refused[len(refused)-1], 0, eperm},
		"memory of the GPU (ioctl)":     {seccomp.Architecture, unix.SYS_IOCTL, 0, unix.SECCOMP_RET_ALLOW},
		"memory that is locked (mlock)": {seccomp.Architecture, unix.SYS_MLOCK, 0, unix.SECCOMP_RET_ALLOW},
		"memory that outlives it":       {seccomp.Architecture, unix.SYS_SHMGET, 0, eperm},
		"a new session":                 {seccomp.Architecture, unix.SYS_SETSID, 0, eperm},
		"another process group":         {seccomp.Architecture, unix.SYS_SETPGID, 0, eperm},
		"own priority":                  {seccomp.Architecture, unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, unix.SECCOMP_RET_ALLOW},
		"priority of the user":          {seccomp.Architecture, unix.SYS_SETPRIORITY, unix.PRIO_USER, eperm},
		"own I/O priority":              {seccomp.Architecture, unix.SYS_IOPRIO_SET, ioprioProcess, unix.SECCOMP_RET_ALLOW},
		"I/O priority of the user":      {seccomp.Architecture, unix.SYS_IOPRIO_SET, 3, eperm},
	}
	for name, number := range map[string]uint32{
		"limits": unix.SYS_PRLIMIT64, "policy": unix.SYS_SCHED_SETSCHEDULER, "parameters": unix.SYS_SCHED_SETPARAM,
		"attributes": unix.SYS_SCHED_SETATTR, "CPUs": unix.SYS_SCHED_SETAFFINITY, "pages to nodes": unix.SYS_MIGRATE_PAGES,
		"pages": unix.SYS_MOVE_PAGES,
	} {
		rows["own "+name] = row{seccomp.Architecture, number, 0, unix.SECCOMP_RET_ALLOW}
		rows[name+" of another process"] = row{seccomp.Architecture, number, 4711, eperm}
	}
	check := func(name string, c row, position int) {
		// struct seccomp_data; the interpreter reads its fields as big-endian.
		data := make([]byte, 64)
		binary.BigEndian.PutUint32(data[0:], c.number)
		binary.BigEndian.PutUint32(data[4:], c.architecture)
		binary.BigEndian.PutUint32(data[offsetArgument0+position*argumentBytes:], c.argument)
		if got, err := vm.Run(data); err != nil || got != c.want {
			t.Errorf("%s: %#x, %v; want %#x", name, got, err, c.want)
		}
	}
	for name, c := range rows {
		check(name, c, 0)
	}
	const private = unix.MAP_PRIVATE | unix.MAP_ANON
	check("memory", row{seccomp.Architecture, unix.SYS_MMAP, private, unix.SECCOMP_RET_ALLOW}, 3)
	check("memory of huge pages", row{seccomp.Architecture, unix.SYS_MMAP, private | unix.MAP_HUGETLB, eperm}, 3)
	check("file in memory", row{seccomp.Architecture, unix.SYS_MEMFD_CREATE, unix.MFD_CLOEXEC, unix.SECCOMP_RET_ALLOW}, 1)
	check("file in huge pages", row{seccomp.Architecture, unix.SYS_MEMFD_CREATE, unix.MFD_HUGETLB, eperm}, 1)
}

func TestRules(t *testing.T) {
	s := Spec{
		Path: "/p/run", Dir: "/d", Private: "/own",
		Execute: []string{"/usr"}, Read: []string{"/etc/passwd"}, Write: []string{"/dev/shm"}, Devices: []string{"/dev/nvidia0"},
		Reach: []string{"/run"},
	}
	got := map[string]landlock.AccessFSSet{}
	for _, r := range s.rules() {
		got[r.path] |= r.rights
	}
	want := map[string]landlock.AccessFSSet{
		"/p/run": rightsExecute, "/usr": rightsExecute, "/etc/passwd": rightsRead, "/d": rightsRead,
		"/dev/shm": rightsWrite, "/own": rightsWrite, "/dev/nvidia0": rightsDevice,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("rules %v, want %v", got, want)
	}
	for path, rights := range got {
		changes := rights&(rightsChange|syscall.AccessFSMakeReg|syscall.AccessFSRemoveFile|syscall.AccessFSIoctlDev) != 0
		if changes != slices.Contains([]string{"/dev/shm", "/own", "/dev/nvidia0"}, path) {
			t.Errorf("%s: rights %v", path, rights)
		}
		if rights&rightsExecute == rightsExecute && rights&rightsChange != 0 {
			t.Errorf("%s may be written and executed", path)
		}
	}
}

func TestAllowProgram(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"real/bin/python3.11", "venv/pyvenv.cfg"} {
		path := filepath.Join(dir, f)
		must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o755)))
	}
	venv := filepath.Join(dir, "venv", "bin")
	must.OK(t, errors.Join(os.Mkdir(venv, 0o755), os.Symlink("../../real/bin/python3.11", filepath.Join(venv, "python3"))))
	var s Spec
	s.AllowProgram(filepath.Join(venv, "python3"))
	for _, want := range []string{"venv/bin", "venv/lib", "venv/pyvenv.cfg", "real/bin", "real/lib"} {
		if !slices.Contains(s.Execute, filepath.Join(dir, want)) {
			t.Errorf("%s is missing in %v", want, s.Execute)
		}
	}
	for _, p := range s.Execute {
		if p == dir || p == filepath.Dir(venv) {
			t.Errorf("all of %s may be read", p)
		}
	}
}

func TestAllowArguments(t *testing.T) {
	dir := t.TempDir()
	script, data := filepath.Join(dir, "code", "serve.py"), filepath.Join(dir, "data", "labels")
	for _, f := range []string{script, data} {
		must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(f), 0o755), os.WriteFile(f, nil, 0o644)))
	}
	var s Spec
	s.AllowArguments([]string{"-u", script, data, filepath.Join(dir, "none"), "relative", "--file=" + data})
	if want := []string{script, filepath.Dir(script), data}; !slices.Equal(s.Read, want) {
		t.Errorf("reads %v, want %v", s.Read, want)
	}
}

func TestAllowEnvironment(t *testing.T) {
	var s Spec
	s.AllowEnvironment([]string{
		"LD_LIBRARY_PATH=/cuda/lib::relative:/", "PYTHONUSERBASE=/home/a/.local", "HOME=/home/a", "PENSTOCK_LIBRARY=/x/lib.so", "EMPTY",
	})
	if want := []string{"/cuda/lib", "/home/a/.local/lib", "/x", "/x/lib.so"}; !slices.Equal(s.Execute, want) {
		t.Errorf("execute %v, want %v", s.Execute, want)
	}
}

// nobodyUser is a user that owns nothing in these tests.
func nobodyUser() *User { return &User{Name: "nobody", UID: 65534, GID: 65534} }

// open lets all users pass through the folders that a test made.
func open(t *testing.T, dir string) string {
	t.Helper()
	for d := dir; d != filepath.Clean(os.TempDir()) && d != "/"; d = filepath.Dir(d) {
		must.OK(t, os.Chmod(d, 0o755))
	}
	return dir
}

func TestPassages(t *testing.T) {
	dir := open(t, t.TempDir())
	home, model := filepath.Join(dir, "home"), filepath.Join(dir, "home/models/face/model.onnx")
	if err := errors.Join(os.MkdirAll(filepath.Dir(model), 0o755), os.WriteFile(model, nil, 0o644), os.Chmod(home, 0o700),
		os.MkdirAll(filepath.Join(dir, "free"), 0o755),
		os.Symlink("models/face", filepath.Join(home, "link")), os.Symlink(home+"/link", filepath.Join(dir, "outside"))); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Dir(model)
	inner := filepath.Join(home, "inner", "program")
	must.OK(t, errors.Join(os.Mkdir(filepath.Dir(inner), 0o700), os.WriteFile(inner, nil, 0o755)))
	for name, c := range map[string]struct {
		paths []string
		want  []entry
	}{
		"none is closed":         {[]string{"/usr", filepath.Join(dir, "free"), home}, nil},
		"a file":                 {[]string{model}, []entry{{path: model}}},
		"a file in a folder":     {[]string{model, folder}, []entry{{path: folder}}},
		"twice":                  {[]string{folder, folder}, []entry{{path: folder}}},
		"nothing is there":       {[]string{filepath.Join(home, "other")}, nil},
		"behind links":           {[]string{filepath.Join(dir, "outside", "model.onnx")}, []entry{{path: home + "/link", target: "models/face"}, {path: model}}},
		"in a closed folder":     {[]string{filepath.Dir(inner), inner}, []entry{{path: filepath.Dir(inner), empty: true}, {path: inner}}},
		"a closed folder alone":  {[]string{filepath.Dir(inner)}, []entry{{path: filepath.Dir(inner), empty: true}}},
		"beside, with its name":  {[]string{folder, folder + "2"}, []entry{{path: folder}}},
		"through an inner link":  {[]string{home + "/link"}, []entry{{path: home + "/link", target: "models/face"}, {path: folder}}},
		"a link and its content": {[]string{home + "/link", model}, []entry{{path: home + "/link", target: "models/face"}, {path: folder}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := passages(nobodyUser(), c.paths)
			if !slices.Equal(got[home], c.want) || len(got) > 1 {
				t.Errorf("passages %v, want %v below %s", got, c.want, home)
			}
		})
	}
}

func TestCheckReadable(t *testing.T) {
	dir := open(t, t.TempDir())
	write := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must.OK(t, errors.Join(os.WriteFile(path, nil, mode), os.Chmod(path, mode)))
		return path
	}
	public, private := write("public", 0o644), write("private", 0o600)
	if err := CheckReadable(nobodyUser(), []string{public, filepath.Join(dir, "missing"), "/usr"}); err != nil {
		t.Error(err)
	}
	var closed *closedFolder
	if err := CheckReadable(nobodyUser(), []string{public, private}); !errors.As(err, &closed) || closed.At != private || closed.Mode != 0o600 {
		t.Errorf("check of %s: %v", private, err)
	}
	group := nobodyUser()
	group.Groups = []int{os.Getgid()}
	shared := write("shared", 0o640)
	if err := CheckReadable(group, []string{shared}); err != nil {
		t.Error(err)
	}
	if err := CheckReadable(nobodyUser(), []string{shared}); err == nil {
		t.Error("a file of another group is readable")
	}
	if err := CheckReadable(nil, []string{private}); err != nil {
		t.Errorf("its owner cannot read it: %v", err)
	}
}

func TestFindUser(t *testing.T) {
	u, err := FindUser("")
	must.OK(t, err)
	if os.Geteuid() != 0 {
		if u != nil {
			t.Errorf("found %+v without root", u)
		}
		if _, err := FindUser("root"); err == nil {
			t.Error("becomes root")
		}
		return
	}
	if u == nil || u.UID == 0 || u.Name != "nobody" && u.Name != "penstock" {
		t.Errorf("found %+v", u)
	}
	for _, name := range []string{"root", "no-such-user"} {
		if u, err := FindUser(name); err == nil {
			t.Errorf("%s: found %+v", name, u)
		}
	}
}

func TestMain(m *testing.M) {
	MaybeLaunch()
	os.Exit(m.Run())
}

// CUDA writes the names of its threads, even in a child of the program. A program that runs as
// root must not write settings of the kernel, which root owns.
func TestThreadNames(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start processes as another user")
	}
	if v, err := syscall.LandlockGetABIVersion(); err != nil || v < 1 {
		t.Skipf("no Landlock: %v", err)
	}
	self, err := os.Executable()
	must.OK(t, err)
	const (
		own    = "echo renamed >/proc/$$/task/$$/comm"
		child  = "sh -c 'echo renamed >/proc/$$/comm' && true"
		kernel = "cat /proc/sys/kernel/hostname >/proc/sys/kernel/hostname"
	)
	for name, c := range map[string]struct {
		gpu    bool
		user   *User
		script string
		ok     bool
	}{
		"own":                    {true, nobodyUser(), own, true},
		"of a child":             {true, nobodyUser(), child, true},
		"kernel":                 {true, nobodyUser(), kernel, false},
		"own, as root":           {true, nil, own, true},
		"of a child, as root":    {true, nil, child, false},
		"kernel, as root":        {true, nil, kernel, false},
		"own, without a GPU":     {false, nobodyUser(), own, false},
		"kernel, without a GPU ": {false, nobodyUser(), kernel, false},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/bin/sh", "-c", c.script)
			cmd.Dir = "/"
			s := Base(c.gpu)
			s.User, s.Dir = c.user, ""
			must.OK(t, Command(cmd, self, s))
			if out, err := cmd.CombinedOutput(); (err == nil) != c.ok {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
