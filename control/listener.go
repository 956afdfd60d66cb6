package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
)

// Listener listens on a Unix socket in the runtime folder. It can make the socket file
// again, as cleaners of temporary folders remove old files. Any goroutine may call its
// methods.
type Listener struct {
	network, path string
	uid           int // user that may connect, in addition to root

	mu     sync.Mutex
	l      *net.UnixListener
	file   os.FileInfo // the socket file when it was bound
	closed bool
}

// openListener is listenFresh, but returns a Listener.
func openListener(network, path string) (*Listener, error) {
	return openListenerFor(network, path, os.Getuid())
}

// openListenerFor is openListener for processes of the user uid. Only root can name a
// user other than its own.
func openListenerFor(network, path string, uid int) (*Listener, error) {
	l := &Listener{network: network, path: path, uid: uid}
	if err := l.bind(); err != nil {
		return nil, err
	}
	return l, nil
}

// bind makes a new socket file and listens on it. The caller holds mu, or has the only
// reference.
func (l *Listener) bind() error {
	fresh, err := listenFresh(l.network, l.path)
	if err != nil {
		return err
	}
	if l.uid != os.Getuid() {
		if err := os.Chown(l.path, l.uid, -1); err != nil {
			return errors.Join(fmt.Errorf("pass on socket: %w", err), fresh.Close())
		}
	}
	file, err := os.Lstat(l.path)
	if err != nil {
		return errors.Join(fmt.Errorf("check socket: %w", err), fresh.Close())
	}
	l.l, l.file = fresh, file
	return nil
}

// Restore makes the socket file, and its folder, again if it is gone. It reports
// whether it had to. Accepted connections stay open. It returns ErrInUse if another
// process has taken the path.
func (l *Listener) Restore() (restored bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false, nil
	}
	if file, err := os.Lstat(l.path); err == nil && os.SameFile(file, l.file) {
		return false, nil
	}

	old := l.l
	if err := l.bind(); err != nil {
		return false, fmt.Errorf("restore socket: %w", err)
	}
	old.SetUnlinkOnClose(false) // the path belongs to the new listener
	old.Close()
	return true, nil
}

// Accept waits for a connection, a *net.UnixConn. It returns net.ErrClosed after Close.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		l.mu.Lock()
		current := l.l
		l.mu.Unlock()

		c, err := current.Accept()
		if !errors.Is(err, net.ErrClosed) || l.isCurrent(current) {
			return c, err
		}
	}
}

func (l *Listener) isCurrent(u *net.UnixListener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.l == u
}

// Addr is the address of the socket.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Net: l.network, Name: l.path} }

// Close stops listening, and removes the socket file if it is this listener's.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if file, err := os.Lstat(l.path); err != nil || !os.SameFile(file, l.file) {
		l.l.SetUnlinkOnClose(false)
	}
	return l.l.Close()
}
