package unixsock

import (
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendEmpty sends a file without a byte. Package net would add one.
func sendEmpty(c *net.UnixConn, f *os.File) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	rights := unix.UnixRights(int(f.Fd()))
	header := unix.Msghdr{Control: &rights[0], Controllen: uint64(len(rights))}
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&header)), 0)
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}
