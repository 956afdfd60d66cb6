package sandbox

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/seccomp"
)

// verb is the first argument that makes this binary the launcher.
const verb = "launch"

// specVariable holds the Spec, as JSON, in the launcher's environment. The program does not get
// it.
const specVariable = "PENSTOCK_SANDBOX"

// passed is the number of descriptors that the program gets: the standard ones, and its link.
const passed = 4

// Exit statuses of a launcher that could not become its program, as a shell uses them.
const (
	exitRefused  = 126
	exitNotFound = 127
)

// Command puts the launcher, the binary self, in front of a command that has not been started.
// The launcher then starts the program with the same arguments, environment, folder and
// descriptors. If s.Parent is 0, it is this process.
func Command(cmd *exec.Cmd, self string, s Spec) error {
	if cmd.Err != nil {
		return cmd.Err // for example: the program does not exist
	}
	s.Path, s.Args = cmd.Path, cmd.Args
	if !filepath.IsAbs(s.Path) {
		s.Path = filepath.Join(cmd.Dir, s.Path)
	}
	return launched(cmd, self, s)
}

// launched turns a command into the launcher for a Spec.
func launched(cmd *exec.Cmd, self string, s Spec) error {
	s.Parent = cmp.Or(s.Parent, os.Getpid())
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("sandbox %s: %w", s.Path, err)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Path, cmd.Args = self, []string{self, verb}
	cmd.Env = append(cmd.Env, specVariable+"="+string(text))
	return nil
}

// AsUser returns a function that puts the launcher in front of a command, like Command. The Spec
// has UserOnly, and reach lists folders that the programs need in addition to their own.
func AsUser(u *User, self string, reach ...string) func(*exec.Cmd) error {
	return func(cmd *exec.Cmd) error {
		s := Spec{User: u, UserOnly: true, Reach: reach}
		s.AllowProgram(cmd.Path)
		return Command(cmd, self, s)
	}
}

// MaybeLaunch runs the launcher, and does not return, if this process's arguments say so. A
// program must call it first.
func MaybeLaunch() {
	if len(os.Args) != 2 || os.Args[1] != verb {
		return
	}
	err := launch()
	fmt.Fprintln(os.Stderr, err)
	if errors.Is(err, unix.ENOENT) {
		os.Exit(exitNotFound)
	}
	os.Exit(exitRefused)
}

// launch follows the steps of the package comment. It returns only an error.
func launch() error {
	s, err := readSpec()
	if err != nil {
		return err
	}
	if err := WithholdDescriptors(passed); err != nil {
		return err
	}
	if err := s.join(); err != nil {
		return err
	}
	// Never unlocked: credentials, namespace and filters are this thread's.
	runtime.LockOSThread()

	if err := setLimits(s); err != nil {
		return err
	}
	if err := openPassages(s.User, s.needed()); err != nil {
		return err
	}
	if s.Private != "" {
		if err := holdPrivate(s.Private); err != nil {
			return err
		}
	}
	if err := s.mountOwn(); err != nil {
		return err
	}
	if s.Dir != "" {
		if err := os.Chdir(s.Dir); err != nil {
			return fmt.Errorf("enter working folder: %w", err)
		}
	}
	if err := pinTasks(); err != nil {
		return err
	}
	if err := restrict(s); err != nil {
		return err
	}
	if s.Path == "" {
		if err := reportStatus(os.Stdout); err != nil {
			return err
		}
		os.Exit(0)
	}
	return fmt.Errorf("exec %s: %w", s.Path, describe(s, unix.Exec(s.Path, s.Args, os.Environ())))
}

// restrict gives up the thread's rights.
func restrict(s *Spec) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if s.UserOnly {
		return dropRights(s.User)
	}
	if err := restrictFiles(s, s.uid()); err != nil {
		return err
	}
	if err := dropRights(s.User); err != nil {
		return err
	}
	if err := followParent(s.Parent); err != nil {
		return err
	}
	_, err := seccomp.Install(filter(s.GPU), 0)
	return err
}

func readSpec() (*Spec, error) {
	var s Spec
	if err := json.Unmarshal([]byte(os.Getenv(specVariable)), &s); err != nil {
		return nil, fmt.Errorf("read sandbox from %s: %w; the orchestrator runs `penstock %s`", specVariable, err, verb)
	}
	return &s, os.Unsetenv(specVariable)
}

// describe adds a hint to an error of execve for missing rights.
func describe(s *Spec, err error) error {
	if errors.Is(err, unix.EACCES) && s.User != nil {
		return fmt.Errorf("%w for user %s; give it read and execute permission, or add its folder to sandbox.readable", err, s.User.Name)
	}
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w; give it execute permission, or add its folder to sandbox.readable", err)
	}
	return err
}

// setLimits raises limits that a process without privileges could not raise later. A limit stays
// if this process may not raise it.
func setLimits(s *Spec) error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limit core dumps: %w", err)
	}
	// Shared memory, and memory that CUDA registers, is locked.
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	if s.Nice < 0 {
		ceiling := uint64(20 - s.Nice) // setrlimit(2): RLIMIT_NICE
		_ = unix.Setrlimit(unix.RLIMIT_NICE, &unix.Rlimit{Cur: ceiling, Max: ceiling})
	}
	return nil
}

// join joins the control groups.
func (s *Spec) join() error {
	for _, file := range s.Join {
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString("0") // this process
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return fmt.Errorf("join control group: %w", err)
		}
	}
	return nil
}

// SharedMemory is the folder of named shared memory. MPS and its clients have it in common.
const SharedMemory = "/dev/shm"

// mountOwn gives the program a private folder, and without a GPU a folder of shared memory, that are in
// memory, of bounded size, and visible to no other process. Without the right to mount, the folders stay as
// they are (CanMount).
func (s *Spec) mountOwn() error {
	if s.FileBytes == 0 || !CanMount() {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount private folder: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("mount private folder: %w", err)
	}
	gid := os.Getegid()
	if s.User != nil {
		gid = s.User.GID
	}
	folders := []string{s.Private}
	if _, err := os.Stat(SharedMemory); err == nil && !s.GPU {
		folders = append(folders, SharedMemory)
	}
	for _, folder := range folders {
		options := fmt.Sprintf("mode=0700,size=%d,uid=%d,gid=%d", s.FileBytes, s.uid(), gid)
		if err := unix.Mount("penstock", folder, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return fmt.Errorf("mount %s: %w", folder, err)
		}
	}
	return nil
}

// holdPrivate locks the private folder. The descriptor is inherited, so the lock lasts as
// long as the program or a process that it started.
func holdPrivate(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB)
	}
	if err != nil {
		return fmt.Errorf("lock private folder %s: %w", dir, err)
	}
	return nil
}

// pinTasks keeps the folder of this process's threads open across execve. Landlock identifies the
// folder by its inode. The kernel would make a new inode if it dropped this one.
func pinTasks() error {
	if _, err := unix.Open(ownTasks, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return fmt.Errorf("open %s: %w", ownTasks, err)
	}
	return nil
}

// dropRights changes to the user, if there is one, and gives up all capabilities.
func dropRights(u *User) error {
	for c := 0; c <= lastCapability; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
			break // not permitted (not root), or past the kernel's last capability
		}
		if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	if u != nil {
		if err := Become(u); err != nil {
			return err
		}
	}
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) // none before Linux 4.3
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

// lastCapability bounds the capabilities that a kernel may have.
const lastCapability = 63

var errOrphan = errors.New("the orchestrator has ended")

// followParent makes the kernel kill this process when its parent ends. A change of credentials
// clears this setting (prctl(2)).
func followParent(parent int) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("follow the orchestrator's end: %w", err)
	}
	if os.Getppid() != parent {
		return errOrphan
	}
	return nil
}
