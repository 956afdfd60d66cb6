package orchestrator

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/cpushare"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// Sandbox says how the processes of functions are confined. Package sandbox does it.
type Sandbox struct {
	// User is the user that the processes, MPS and the weight server run as. nil is the user
	// of this process; without root no other is possible.
	User *sandbox.User
	// Readable lists further files and folders that the processes may read.
	Readable []string
	// Limits hold for each process of a function, and for each process of a worker.
	Limits cgroup.Limits
}

// TryLimits returns what this machine does not enforce of the limits.
func TryLimits(l cgroup.Limits) error {
	s, err := cpushare.Open("", 1, os.Getpid(), zerolog.Nop())
	if err != nil {
		return err
	}
	_, err = s.Hold("try", l, true)
	if !sandbox.CanMount() {
		err = errors.Join(err, fmt.Errorf("the size of files in private folders and %s is %w: it needs the right to mount", sandbox.SharedMemory, cgroup.ErrNotEnforced))
	}
	return errors.Join(err, s.Close())
}

// privateFolders is the folder, in the runtime folder, that holds the private folders of
// processes.
const privateFolders = "private"

// privateFolder returns the path of a process's private folder in a runtime folder.
func privateFolder(dir string, k key) string {
	return filepath.Join(dir, privateFolders, k.id())
}

// loopNice is the niceness that libml's batch loop gives itself on a GPU (libml/internal/serve/priority.go).
const loopNice = -15

// user returns the user of the processes; nil is this process's.
func (b *Sandbox) user() *sandbox.User {
	if b == nil {
		return nil
	}
	return b.User
}

// prepare opens the runtime folder to the processes' user. The user may pass through it to its
// own sockets and folders, but cannot list it.
func (b *Sandbox) prepare(dir, prepared string) error {
	if b == nil {
		return nil
	}
	if prepared != "" {
		if err := b.openPrepared(prepared); err != nil {
			return err
		}
	}
	if b.User != nil {
		if err := os.Chmod(dir, 0o711); err != nil {
			return fmt.Errorf("open runtime folder to user %s: %w", b.User.Name, err)
		}
	}
	folder := filepath.Join(dir, privateFolders)
	if err := os.Mkdir(folder, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make folder for private folders: %w", err)
	}
	return nil
}

// removeLeft removes private folders that an earlier orchestrator left behind. It keeps those of held
// processes, because a process that has just been started has not locked its folder yet.
func (b *Sandbox) removeLeft(dir string, held []heldProcess) error {
	if b == nil {
		return nil
	}
	keep := map[string]bool{}
	for _, h := range held {
		keep[h.private(dir)] = true
	}
	folder := filepath.Join(dir, privateFolders)
	left, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("list private folders: %w", err)
	}
	var errs []error
	for _, d := range left {
		if path := filepath.Join(folder, d.Name()); !keep[path] {
			errs = append(errs, removePrivate(path))
		}
	}
	return errors.Join(errs...)
}

// private returns the private folder of a held process; empty if its note cannot be read.
func (h *heldProcess) private(dir string) string {
	if h.member != nil {
		return h.member.private
	}
	n, err := readSaved(h.note)
	if err != nil {
		return ""
	}
	return privateFolder(dir, key{n.IF, n.Instance, n.Generation})
}

// openPrepared makes the folder of prepared models readable for the processes' group. New
// files in it inherit the group (set-group-ID).
func (b *Sandbox) openPrepared(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make folder of prepared models: %w", err)
	}
	if b.User == nil {
		return nil
	}
	err := os.Lchown(dir, -1, b.User.GID)
	if err == nil {
		err = os.Chmod(dir, 0o750|fs.ModeSetgid)
	}
	if err != nil {
		return fmt.Errorf("open folder of prepared models to user %s: %w", b.User.Name, err)
	}
	return nil
}

// removePrivate removes a private folder, unless a process holds it (see
// sandbox.Spec.Private).
func removePrivate(path string) error {
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil // its process still runs
	}
	return os.RemoveAll(path)
}

// confine completes the spec of a process with what the process may do.
func (s *supervisor) confine(sp *spec, d *device, files []string) error {
	b := s.o.Sandbox
	if b == nil {
		return nil
	}
	gpu := d.onGPU()
	c := sandbox.Base(gpu)
	c.User, c.Dir = b.User, sp.dir
	c.Private = privateFolder(s.o.Dir, sp.key)
	c.Reach = []string{s.o.Dir}
	// Programs look for libraries next to this binary.
	c.AllowProgram(s.o.Self)
	c.Read = append(c.Read, b.Readable...)
	c.Read = append(c.Read, nonEmpty(sp.start.Prepared)...)
	c.Read = append(c.Read, nonEmpty(sp.dir)...)
	c.Read = append(c.Read, files...)
	sp.reads = slices.Clone(c.Read)
	if sp.worker != "" {
		// The process hosts later members, too, if it may read their models.
		c.Read = append(c.Read, s.o.Models...)
		for _, d := range s.target.desired.Processes {
			if d.Worker == sp.worker {
				c.Read = append(append(c.Read, nonEmpty(d.Dir)...), modelFiles(&d)...)
			}
		}
	}
	if gpu {
		c.Nice = loopNice
		for _, name := range []string{"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"} {
			if folder := sp.environment[name]; folder != "" {
				c.Write = append(c.Write, folder)
			}
		}
	}
	if err := c.Check(slices.Concat(b.Readable, files)); err != nil {
		return fmt.Errorf("start %v: %w", sp.key, err)
	}
	sp.confined, sp.limits = &c, b.Limits
	return nil
}

// modelFiles returns the files of a process's model.
func modelFiles(d *control.DesiredProcess) []string { return append(nonEmpty(d.Model), d.Data...) }

func nonEmpty(path string) []string {
	if path == "" {
		return nil
	}
	return []string{path}
}
