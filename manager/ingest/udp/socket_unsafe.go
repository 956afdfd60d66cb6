package udp

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of linux/socket.h: a message and how many bytes of it
// came or went.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// recvmmsg and sendmmsg go through syscall.Syscall6, which tells Go's scheduler: a
// full read copies a megabyte. They return how many messages were moved, or, if
// none, why.
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

// errnoError puts the errors of every day into an interface without allocating.
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

// ppoll waits for descriptors; a nil timeout means for ever.
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

// socketDrops reads how many datagrams the kernel dropped at this socket. Unlike
// SO_RXQ_OVFL it needs no datagram to come after them. Linux has it since 4.12.
func socketDrops(socket int) (uint32, bool) {
	words, ok := memInfo(socket)
	return words[memInfoDrops], ok
}

// socketWaiting reads how much of the receive buffer is taken by what waits in it, in the
// kernel's bytes, and the drops. The bytes may be twice those of the datagrams and more, for
// their overhead, and for what was just taken out.
func socketWaiting(socket int) (waiting int, drops uint32, ok bool) {
	words, ok := memInfo(socket)
	return int(words[memInfoWaiting]), words[memInfoDrops], ok
}

func memInfo(socket int) (words [memInfoWords]uint32, ok bool) {
	size := uint32(unsafe.Sizeof(words))
	_, _, errno := syscall.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&words)), uintptr(unsafe.Pointer(&size)), 0)
	return words, errno == 0 && uintptr(size) == unsafe.Sizeof(words)
}
