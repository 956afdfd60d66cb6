package control

import (
	"errors"
	"fmt"
	"io/fs"
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

// maxSocketPath is the max length of a Unix socket's path: sun_path of sys/un.h has 108
// bytes, one of them the terminating zero.
const maxSocketPath = 107

func checkSocketPath(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("socket path %s has %d bytes, and Linux allows %d; choose a shorter runtime folder with --runtime-dir", path, len(path), maxSocketPath)
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
	if err := removeStale(network, path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Net: network, Name: path})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict socket: %w", err), l.Close())
	}
	return l, nil
}

func removeStale(network, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check for a stale socket: %w", err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("listen on %s: a file of that name is not a socket; remove it, or choose another runtime folder with --runtime-dir", path)
	}
	c, err := net.DialUnix(network, nil, &net.UnixAddr{Net: network, Name: path})
	if err == nil {
		pid := "unknown"
		if peer, _ := unixsock.Peer(c, os.Getuid()); peer != nil { // a process of any user
			pid = fmt.Sprint(peer.Pid)
		}
		c.Close()
		return fmt.Errorf("listen on %s: process %s already listens there; choose another runtime folder with --runtime-dir: %w", path, pid, ErrInUse)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		// EAGAIN: the backlog is full. EPROTOTYPE: a socket of another type, whose process
		// runs.
		return fmt.Errorf("listen on %s: %w: %w", path, ErrInUse, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}
