package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/unixsock"
	"github.com/penstock/penstock/private"
)

// Names of the sockets in the runtime folder.
const (
	linkSocketName   = "manager.sock"
	attachSocketName = "attach.sock"
)

// AttachSocketPath is the socket through which a manager with the runtime folder dir passes
// shared memory: the AttachSocket of its Desired.
func AttachSocketPath(dir string) string { return filepath.Join(dir, attachSocketName) }

// MakeRuntimeDir opens a node's runtime folder, and makes it if needed. It returns
// private.ErrNotPrivate if another user could change the folder. Such a user could add
// functions to the node, and a function is a command.
func MakeRuntimeDir(dir string) (*private.Folder, error) {
	folder, err := private.MakeFolder(dir, 0o700)
	if errors.Is(err, private.ErrNotPrivate) {
		return nil, fmt.Errorf("open runtime folder: %w; remove the folder if Penstock made it, or choose another with --runtime-dir", err)
	}
	if err != nil {
		return nil, fmt.Errorf("make runtime folder: %w", err)
	}
	return folder, nil
}

func checkSocketPath(path string) error {
	if len(path) > unixsock.MaxPath {
		return fmt.Errorf("socket path %s has %d bytes, and Linux allows %d; choose a shorter runtime folder with --runtime-dir", path, len(path), unixsock.MaxPath)
	}
	return nil
}

// listenFresh binds a Unix socket ("unix" or "unixpacket") at path, which only this user may
// connect to. It makes the folder of path if needed, and returns private.ErrNotPrivate if
// another user could change that folder. It first removes the socket file of a killed
// process. If another process still listens, it returns ErrInUse. Close of the listener
// removes the file.
//
// A lock on a file next to the socket, held from the check to the bind, puts two concurrent
// calls in order.
func listenFresh(network, path string) (*net.UnixListener, error) {
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	folder, err := MakeRuntimeDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	lock, err := folder.Open(filepath.Base(path)+".lock", os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("lock socket: %w", err)
	}
	defer lock.Close() // also releases the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock socket %s: %w", path, err)
	}
	l, err := unixsock.Listen(network, path, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w; choose another runtime folder with --runtime-dir", err)
	}
	return l, nil
}
