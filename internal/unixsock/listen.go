package unixsock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// ErrInUse is returned by Listen if another process listens.
var ErrInUse = errors.New("socket is in use")

// MaxPath is the max length of a Unix socket's path: sun_path of sys/un.h has 108 bytes, one of them the terminating zero.
const MaxPath = 107

// Listen listens on a Unix socket, whose file gets the mode. It first removes the socket file of a killed process, and
// nothing else. Two concurrent calls for a path need a lock.
func Listen(network, path string, mode fs.FileMode) (*net.UnixListener, error) {
	at := &net.UnixAddr{Net: network, Name: path}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("listen on %s: a file of that name is not a socket", path)
		}
		c, err := net.DialUnix(network, nil, at)
		if err == nil {
			defer c.Close()
			pid := "unknown"
			if peer, _ := Peer(c, os.Getuid()); peer != nil { // a process of any user
				pid = fmt.Sprint(peer.Pid)
			}
			return nil, fmt.Errorf("listen on %s: process %s already listens there: %w", path, pid, ErrInUse)
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			// EAGAIN: the backlog is full. EPROTOTYPE: a socket of another type, whose process runs.
			return nil, fmt.Errorf("listen on %s: %w: %w", path, ErrInUse, err)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove stale socket: %w", err)
		}
	}
	l, err := net.ListenUnix(network, at)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict socket: %w", err), l.Close())
	}
	return l, nil
}
