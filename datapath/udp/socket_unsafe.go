package udp

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of linux/socket.h: a message and its transferred bytes.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// recvmmsg and sendmmsg go through syscall.Syscall6, which tells Go's scheduler that the call
// may take long: a full read copies a megabyte. They return the number of messages
// transferred or, if none, the error.
func recvmmsg(socket int, messages []mmsghdr, flags int) (int, error) {
	return multi(unix.SYS_RECVMMSG, socket, messages, flags)
}

func sendmmsg(socket int, messages []mmsghdr, flags int) (int, error) {
	return multi(unix.SYS_SENDMMSG, socket, messages, flags)
}

func multi(call uintptr, socket int, messages []mmsghdr, flags int) (int, error) {
	n, _, errno := syscall.Syscall6(call, uintptr(socket), uintptr(unsafe.Pointer(unsafe.SliceData(messages))),
		uintptr(len(messages)), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errnoError(errno)
	}
	return int(n), nil
}

// errnoError converts the frequent errors to an interface without allocating.
func errnoError(errno syscall.Errno) error {
	switch errno {
	case unix.EAGAIN:
		return errAgain
	case unix.EINTR:
		return errInterrupted
	}
	return errno
}

var (
	errAgain       error = unix.EAGAIN
	errInterrupted error = unix.EINTR
)

// ppoll waits for descriptors; a nil timeout means forever.
func ppoll(polls []unix.PollFd, timeout *unix.Timespec) (int, error) {
	n, _, errno := syscall.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(polls))),
		uintptr(len(polls)), uintptr(unsafe.Pointer(timeout)), 0, 0, 0)
	if errno != 0 {
		return 0, errnoError(errno)
	}
	return int(n), nil
}

// Indices of the words of SO_MEMINFO (SK_MEMINFO_RMEM_ALLOC and SK_MEMINFO_DROPS of
// linux/sock_diag.h), and their number.
const (
	memInfoWaiting = 0
	memInfoDrops   = 8
	memInfoWords   = 9
)

// socketQueue returns how much of the receive buffer is in use, in the kernel's bytes, and how
// many messages the kernel has dropped. The kernel's bytes may be twice those of the datagrams or
// more. They include overhead, and messages that were just received. Linux has it since 4.12.
func socketQueue(socket int) (waiting int, drops uint32, ok bool) {
	var words [memInfoWords]uint32
	size := uint32(unsafe.Sizeof(words))
	_, _, errno := syscall.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&words)), uintptr(unsafe.Pointer(&size)), 0)
	return int(words[memInfoWaiting]), words[memInfoDrops], errno == 0 && uintptr(size) == unsafe.Sizeof(words)
}
