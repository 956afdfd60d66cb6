package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Names of the sockets in the runtime folder.
const (
	linkSocketName   = "manager.sock"
	attachSocketName = "attach.sock"
)

// AttachSocketPath is where a manager whose runtime folder is dir hands out
// shared memory: the AttachSocket of its Desired.
func AttachSocketPath(dir string) string { return filepath.Join(dir, attachSocketName) }

// maxSocketPath is the longest path of a Unix socket: sun_path of sys/un.h has
// 108 bytes, one of them the end.
const maxSocketPath = 107

func checkSocketPath(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("socket path %s has %d bytes, Linux takes %d: choose a shorter runtime folder", path, len(path), maxSocketPath)
	}
	return nil
}

// listenFresh binds a Unix socket ("unix" or "unixpacket") at path, which only
// this user may connect to. A socket file that nobody listens on, as a killed
// process leaves it, is removed first; one that somebody listens on gives
// ErrInUse. Close of the listener removes the file.
//
// Two that start at once are put in order by a lock on a file beside the socket,
// held between the look and the bind.
func listenFresh(network, path string) (*net.UnixListener, error) {
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make runtime folder: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock socket: %w", err)
	}
	defer lock.Close() // and with it the lock
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
		return fmt.Errorf("look for a stale socket: %w", err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("listen on %s: it is there and no socket", path)
	}
	c, err := net.DialUnix(network, nil, &net.UnixAddr{Net: network, Name: path})
	if err == nil {
		pid := "unknown"
		if cred, err := peerCredentials(c); err == nil {
			pid = fmt.Sprint(cred.Pid)
		}
		c.Close()
		return fmt.Errorf("listen on %s: process %s listens there already, want another runtime folder (--runtime-dir): %w", path, pid, ErrInUse)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		// EAGAIN: a full backlog. EPROTOTYPE: another kind of socket, and alive.
		return fmt.Errorf("listen on %s: %w: %w", path, ErrInUse, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

// peerCredentials says who is at the other end, as the kernel noted it at connect.
func peerCredentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) {
		cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, fmt.Errorf("read peer credentials: %w", err)
	}
	if inner != nil {
		return nil, fmt.Errorf("read peer credentials: %w", inner)
	}
	return cred, nil
}

// checkPeer refuses a peer of another user. Root may talk to anybody: it could
// anyway.
func checkPeer(c *net.UnixConn) (*unix.Ucred, error) {
	cred, err := peerCredentials(c)
	if err != nil {
		return nil, err
	}
	if uid := os.Getuid(); int(cred.Uid) != uid && cred.Uid != 0 {
		return nil, fmt.Errorf("%w: process %d belongs to user %d, this one to %d", ErrBadMessage, cred.Pid, cred.Uid, uid)
	}
	return cred, nil
}
