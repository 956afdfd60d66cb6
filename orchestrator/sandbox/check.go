package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Check returns an error if the process could not read one of these files or folders. A
// *closedFolder names the folder or file that keeps the user out. A path that does not
// exist is no error here: the process that reads it reports it.
func (s *Spec) Check(paths []string) error { return CheckReadable(s.User, paths) }

// CheckReadable is Spec.Check for the user u; nil is this process's user. It returns one
// error per path (see errors.Join).
func CheckReadable(u *User, paths []string) error {
	var errs []error
	for _, p := range paths {
		errs = append(errs, readable(u, p))
	}
	return errors.Join(errs...)
}

func readable(u *User, path string) error {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	if u == nil {
		if err := unix.Access(real, unix.R_OK); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		return nil
	}
	var about unix.Stat_t
	if err := unix.Stat(real, &about); err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	right := uint32(4)
	if about.Mode&unix.S_IFMT == unix.S_IFDIR {
		right = 5
	}
	if !u.hasRight(right, &about) {
		return &closedFolder{Path: path, At: path, Mode: modeOf(about.Mode), User: u.Name}
	}
	if top := u.closedAbove(real); top != "" && !CanMount() {
		if err := unix.Stat(top, &about); err != nil {
			return fmt.Errorf("check %s: %w", path, err)
		}
		return &closedFolder{Path: path, At: top, Mode: modeOf(about.Mode), User: u.Name}
	}
	return nil
}

func modeOf(mode uint32) fs.FileMode { return fs.FileMode(mode & 0o777) }

// CanMount reports whether this process may change its mounts. In most containers
// root may not.
var CanMount = sync.OnceValue(func() bool {
	allowed := make(chan bool)
	go func() {
		// Never unlocked: the thread is then in another namespace, and ends with the
		// goroutine.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
		}
		allowed <- err == nil
	}()
	return <-allowed
})
