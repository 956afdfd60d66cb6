// Package unixsock sends messages with open files over Unix sockets, and names the process
// at the other end.
//
// The sockets keep messages apart (SOCK_SEQPACKET). A message and its files arrive together
// or not at all. Files are passed as SCM_RIGHTS, see unix(7): sender and receiver each have
// a descriptor of the same open file, and each closes its own. Received descriptors have
// close-on-exec set.
//
// Link encodes messages as JSON. The package sets no deadlines: each user of a link has its own.
package unixsock

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// MaxFiles is the largest number of files in one message (SCM_MAX_FD of linux/net/scm.h).
const MaxFiles = 253

var (
	// ErrTooLong is returned by Receive for a message that has more bytes or more files
	// than the caller accepts, and by Send for more than MaxFiles files.
	ErrTooLong = errors.New("message too long")
	// ErrFilesLost is returned by Receive together with a message if this process could not
	// open all of its files. The usual cause is the limit of open files (RLIMIT_NOFILE).
	ErrFilesLost = errors.New("files of the message could not be opened: this process may have reached its limit of open files (ulimit -n)")
)

// Pair returns the two ends of a new connection. A child inherits an end only if it is
// given to it.
func Pair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// Conn turns f into a connection. It closes f, also if it fails.
func Conn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("%s is not a Unix socket", f.Name())
	}
	return u, nil
}

// Send sends a message with files, which remain the caller's.
func Send(c *net.UnixConn, message []byte, files ...*os.File) error {
	if len(files) > MaxFiles {
		return fmt.Errorf("%w: %d files, at most %d", ErrTooLong, len(files), MaxFiles)
	}
	return withFDs(files, make([]int, 0, len(files)), func(fds []int) error {
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		sent.Add(1)
		_, _, err := c.WriteMsgUnix(message, rights, nil)
		return err
	})
}

// sent tells the race detector that a message orders what its sender did before what its receiver does, if both are in
// one process, as in tests. Package syscall says so for read and write, not for sendmsg and recvmsg.
var sent atomic.Uint64

// withFDs appends the descriptors of files to fds and calls use with them. No file can be
// closed before use returns. File.Fd would make a file blocking for every process that
// shares it.
func withFDs(files []*os.File, fds []int, use func([]int) error) error {
	if len(files) == 0 {
		return use(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) {
		inner = withFDs(files[1:], append(fds, int(fd)), use)
	}); err != nil {
		return err
	}
	return inner
}

// Receive waits for a message and reads it into buf. The caller owns the files that came
// with it, which are at most maxFiles. If maxFiles is 0, files are dropped silently.
//
// io.EOF is returned after the peer has closed its end, and for an empty message.
// ErrTooLong is returned for a message that exceeds buf or maxFiles. With ErrFilesLost, the
// message is valid but comes without files. After any error, no file is left open.
func Receive(c *net.UnixConn, buf []byte, maxFiles int) (message []byte, files []*os.File, err error) {
	var rights []byte
	if maxFiles > 0 {
		// With room for one more file, MSG_CTRUNC has one meaning for a message within
		// maxFiles: the kernel could not open a file.
		rights = make([]byte, unix.CmsgSpace(4*(maxFiles+1)))
	}
	// Package net sets MSG_CMSG_CLOEXEC.
	n, rn, flags, _, err := c.ReadMsgUnix(buf, rights)
	sent.Load()
	files = filesOf(rights[:rn]) // an empty message, which is an io.EOF, can have files, too
	defer func() {
		if err == nil {
			return
		}
		CloseAll(files)
		files = nil
	}()

	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return nil, files, io.EOF
	case err != nil:
		return nil, files, err
	case flags&unix.MSG_TRUNC != 0:
		return nil, files, fmt.Errorf("%w: more than %d bytes", ErrTooLong, len(buf))
	case len(files) > maxFiles:
		return nil, files, fmt.Errorf("%w: more files than %d", ErrTooLong, maxFiles)
	case maxFiles > 0 && flags&unix.MSG_CTRUNC != 0:
		return buf[:n], files, ErrFilesLost
	}
	return buf[:n], files, nil
}

// filesOf opens the descriptors in the control messages that the kernel wrote.
func filesOf(rights []byte) (files []*os.File) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil // the kernel writes whole control messages only
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // of another type
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files
}

// Peer returns the process at the other end, as the kernel noted it when the connection
// was made. It fails if that process belongs neither to the user uid nor to root.
func Peer(c *net.UnixConn, uid int) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("read peer credentials: %w", err)
	}
	var peer *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) {
		peer, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, fmt.Errorf("read peer credentials: %w", err)
	}
	if inner != nil {
		return nil, fmt.Errorf("read peer credentials: %w", inner)
	}
	if int(peer.Uid) != uid && peer.Uid != 0 {
		return peer, fmt.Errorf("process %d belongs to user %d, want user %d", peer.Pid, peer.Uid, uid)
	}
	return peer, nil
}
