package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// EndTimeout is how long a program of this binary has to end, with the processes that it started.
const EndTimeout = 2 * time.Second

// NoMPS is a folder, in the runtime folder dir, in which no MPS daemon listens. A process with that pipe folder is no
// client of MPS, even if MPS runs.
func NoMPS(dir string) string { return filepath.Join(dir, "no-mps") }

// Environment returns what a process for a device inherits of this process's
// environment. On a GPU it leaves out CUDA_MPS_* and CUDA_VISIBLE_DEVICES: the caller
// adds those of the device.
func Environment(device string) []string {
	env := os.Environ()
	if device == control.DeviceCPU {
		return env
	}
	return slices.DeleteFunc(env, func(e string) bool {
		return strings.HasPrefix(e, "CUDA_MPS_") || strings.HasPrefix(e, "CUDA_VISIBLE_DEVICES=")
	})
}

// BesideMPS returns the environment of a process on a GPU that is no client of MPS: faults of other processes do not
// end it. dir is the runtime folder.
func BesideMPS(uuid, dir string) []string {
	return append(Environment(uuid), "CUDA_VISIBLE_DEVICES="+uuid, "CUDA_MPS_PIPE_DIRECTORY="+NoMPS(dir))
}

// Run runs the binary self with a verb until it ends or ctx ends, and returns its output. It logs the lines of its standard error. If the
// program fails and has explained why, that is the error. A nil spec starts it with all rights of this process.
func Run(ctx context.Context, log zerolog.Logger, self string, arguments, environment []string, spec *sandbox.Spec) ([]byte, error) {
	// The kernel sends the parent-death signal when the thread that forked ends: this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, self, arguments...)
	cmd.Env = environment
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // also those that it started
	cmd.WaitDelay = EndTimeout
	if spec != nil {
		if err := Confine(cmd, self, spec); err != nil {
			return nil, err
		}
	}

	var last Tail
	var output bytes.Buffer
	lines, stderr := io.Pipe()
	cmd.Stdout, cmd.Stderr = &output, stderr
	var reader sync.WaitGroup
	reader.Go(func() { ReadLines(lines, func(l string) { last.Add(Relay(log, "stderr", l)) }) })
	err := cmd.Run()
	stderr.Close()
	reader.Wait()
	if why := last.Lines(); err != nil && len(why) > 0 {
		err = errors.New(strings.Join(why, " | "))
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return output.Bytes(), err
}

// Confine makes the private folder of a program, and changes cmd so that the launcher starts it.
func Confine(cmd *exec.Cmd, self string, c *sandbox.Spec) error {
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	program := cmd.Path
	if !filepath.IsAbs(program) {
		program = filepath.Join(cmd.Dir, program)
	}
	c.AllowProgram(program)
	c.AllowArguments(cmd.Args[1:])
	c.AllowEnvironment(cmd.Env)
	if c.Private != "" {
		if err := os.RemoveAll(c.Private); err != nil {
			return fmt.Errorf("remove old private folder: %w", err)
		}
		if err := MakeFolder(c.Private, c.User); err != nil {
			return fmt.Errorf("make private folder: %w", err)
		}
		cmd.Env = append(cmd.Env, privateEnvironment(c.Private)...)
	}
	return sandbox.Command(cmd, self, *c)
}

// privateEnvironment makes programs keep their files in the private folder. They still find
// Python packages that the user installed.
func privateEnvironment(folder string) []string {
	e := []string{"HOME=" + folder, "TMPDIR=" + folder, "XDG_CACHE_HOME=" + filepath.Join(folder, ".cache")}
	if home, err := os.UserHomeDir(); err == nil && os.Getenv("PYTHONUSERBASE") == "" {
		e = append(e, "PYTHONUSERBASE="+filepath.Join(home, ".local"))
	}
	return e
}

// MakeFolder makes a folder that belongs to a user; nil is this process's. It makes again what has been removed of the
// runtime folder around it.
func MakeFolder(path string, u *sandbox.User) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrNotExist) { // the runtime folder was emptied
		if err = reopen(filepath.Dir(path), u); err == nil {
			err = os.Mkdir(path, 0o700)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if u == nil {
		return nil
	}
	return os.Lchown(path, u.UID, u.GID)
}

// reopen makes the parent of all private folders again, and opens the runtime folder around
// it.
func reopen(folder string, u *sandbox.User) error {
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return err
	}
	if u != nil {
		if err := os.Chmod(filepath.Dir(folder), 0o711); err != nil {
			return err
		}
	}
	return os.MkdirAll(folder, 0o711)
}
