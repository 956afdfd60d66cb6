// Package lockfile locks files for the life of a process.
package lockfile

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Try waits retries times for retryEvery, together a second.
const (
	retries    = 100
	retryEvery = 10 * time.Millisecond
)

// ErrLocked is returned if another open file holds the lock.
var ErrLocked = errors.New("it is locked")

// Try locks f exclusively, with flock(2). The lock ends when f is closed, or with the process,
// however it ends.
//
// Try returns ErrLocked only if the lock is held for a second. A process that has forked, but not
// yet called exec, holds its parent's locks for a moment, even if the parent was killed.
func Try(f *os.File) error {
	for attempt := 0; ; attempt++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		busy := errors.Is(err, unix.EWOULDBLOCK)
		switch {
		case busy && attempt == retries:
			return ErrLocked
		case busy:
			time.Sleep(retryEvery)
		case !errors.Is(err, unix.EINTR):
			return os.NewSyscallError("flock", err)
		}
	}
}
