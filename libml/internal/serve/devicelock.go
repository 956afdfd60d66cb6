package serve

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/shm"
)

// deviceLock is held by one process at a time on a device. It is an abstract Unix socket (unix(7)) named after
// the device: only one process can bind a name, and nothing connects to it. So the lock needs no file that all
// users of a node's processes may open, and Landlock does not restrict it. The kernel releases it when its
// owner ends. Processes in other network namespaces have another lock.
type deviceLock struct {
	name string
	// patience is left for waiting, in all calls together. An owner that hangs, or a program of another
	// user that binds the name, delays a process by no more than that.
	patience time.Duration
}

// lockPatience is more than a dozen processes need to measure all their batches.
const lockPatience = 5 * time.Second

func newDeviceLock(device string, patience time.Duration) *deviceLock {
	return &deviceLock{name: "@penstock-measure-" + device, patience: patience}
}

// errLocked is returned if the lock was not free in time.
var errLocked = errors.New("held by another process")

// acquire waits for the lock, at most until stop returns true. It returns a function that must be called, also
// after an error. A nil lock is always free.
func (l *deviceLock) acquire(stop func() bool) (release func(), err error) {
	if l == nil {
		return func() {}, nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return func() {}, fmt.Errorf("lock device: make socket: %w", err)
	}
	release = func() { unix.Close(fd) }
	const interval = 200 * time.Microsecond
	for began := shm.Now(); ; time.Sleep(interval) {
		err := unix.Bind(fd, &unix.SockaddrUnix{Name: l.name})
		waited := time.Duration(shm.Now() - began)
		switch {
		case err == nil:
			l.patience -= waited
			return release, nil
		case !errors.Is(err, unix.EADDRINUSE):
			return release, fmt.Errorf("lock device: bind %s: %w", l.name, err)
		case waited >= l.patience:
			l.patience = 0
			return release, fmt.Errorf("lock device: bind %s: %w", l.name, errLocked)
		case stop():
			return release, nil
		}
	}
}
