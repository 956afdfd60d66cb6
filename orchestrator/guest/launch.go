package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/oomscore"
	"github.com/penstock/penstock/cuda/preload"
	"github.com/penstock/penstock/orchestrator/sandbox"
	"github.com/penstock/penstock/shm/cpuset"
)

// verb is the first argument that makes this binary the launcher of a guest.
const verb = "guest-launch"

// gateFD is the launcher's end of a pipe. It receives a launch, or the pipe is closed without one.
const gateFD = 3

// launch says which program the launcher becomes. Paths and arguments may have any bytes, and JSON keeps only those of
// slices: it replaces bytes of a string that are not UTF-8.
type launch struct {
	Path   []byte             `json:"path"`
	Args   [][]byte           `json:"args"`
	User   *control.GuestUser `json:"user,omitempty"`
	CPUs   []int              `json:"cpus,omitempty"`
	Parent int                `json:"parent"`
	// Swap and Yield are libraries to preload; empty: none. The program does not start without Swap.
	Swap  []byte `json:"swap,omitempty"`
	Yield []byte `json:"yield,omitempty"`
}

// Exit statuses of `penstock run` itself, as env(1), nice(1) and timeout(1) use them.
const (
	StatusFailed     = 125 // the program was not started
	StatusNoExec     = 126 // it cannot be executed
	StatusNotFound   = 127 // there is no such program
	statusSignalBase = 128 // plus the signal that ended it
)

// MaybeLaunch runs the launcher, and does not return, if this process's arguments say so. A program
// that calls Run must call it first.
func MaybeLaunch() {
	if len(os.Args) != 2 || os.Args[1] != verb {
		return
	}
	var l launch
	gate := os.NewFile(gateFD, "gate")
	if err := json.NewDecoder(gate).Decode(&l); err != nil {
		os.Exit(StatusFailed) // `penstock run` has printed the reason
	}
	gate.Close()
	err := l.start()
	fmt.Fprintln(os.Stderr, "penstock run:", err)
	switch {
	case !errors.Is(err, errExec):
		os.Exit(StatusFailed)
	case errors.Is(err, unix.ENOENT):
		os.Exit(StatusNotFound)
	}
	os.Exit(StatusNoExec)
}

// errExec is wrapped by the error of execve(2).
var errExec = errors.New("execute")

// pin keeps the program on its CPUs, as far as the caller may use them.
func (l *launch) pin() error {
	allowed, err := cpuset.Allowed()
	if err != nil {
		return nil // more CPUs than a set holds: the program keeps all
	}
	both := slices.DeleteFunc(slices.Clone(l.CPUs), func(cpu int) bool { return !slices.Contains(allowed, cpu) })
	if len(both) == 0 {
		return nil
	}
	return cpuset.PinThread(0, both)
}

// preload makes the loader load the libraries into the program and all that it starts. A library that cannot
// be read would cost each of them a line of the loader.
func (l *launch) preload() error {
	var libraries []string
	readable := func(path string) error {
		err := unix.Access(path, unix.R_OK)
		if err == nil {
			libraries = append(libraries, path)
			return nil
		}
		return fmt.Errorf("preload %s: %w; install Penstock in a folder that user %d can read, such as /usr/lib, or use --own", path, err, os.Getuid())
	}
	if len(l.Yield) > 0 {
		if err := readable(string(l.Yield)); err != nil {
			fmt.Fprintf(os.Stderr, "penstock run: the program does not wait for functions: %v\n", err)
		}
	}
	if len(l.Swap) > 0 {
		if err := readable(string(l.Swap)); err != nil {
			return err
		}
	}
	if len(libraries) == 0 {
		return nil
	}
	return os.Setenv(preload.Variable(libraries...))
}

// start becomes the program. It returns only an error.
func (l *launch) start() error {
	runtime.LockOSThread() // the settings are this thread's

	if err := l.pin(); err != nil {
		return err
	}
	// These have weaker substitutes, so errors are ignored: without SCHED_IDLE the program is nice, and
	// without a score the kernel chooses by size.
	_ = oomscore.Set(os.Getpid(), oomscore.Guest)
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE, Nice: 19}, 0)

	if u := l.User; u != nil {
		if err := sandbox.Become(&sandbox.User{Name: u.Name, UID: u.UID, GID: u.GID, Groups: u.Groups}); err != nil {
			return err
		}
	}
	if err := l.preload(); err != nil {
		return err
	}
	// A change of the user clears this setting, so it comes last.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("follow the end of `penstock run`: %w", err)
	}
	if os.Getppid() != l.Parent {
		return errors.New("`penstock run` has ended")
	}
	args := make([]string, len(l.Args))
	for i, arg := range l.Args {
		args[i] = string(arg)
	}
	err := unix.Exec(string(l.Path), args, os.Environ())
	if errors.Is(err, unix.EACCES) && l.User != nil {
		return fmt.Errorf("%w %s: %w; the program runs as user %s, who needs the right to read and execute it; choose another user with --own --user", errExec, l.Path, err, l.User.Name)
	}
	return fmt.Errorf("%w %s: %w", errExec, l.Path, err)
}
