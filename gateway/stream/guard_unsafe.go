package stream

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// question is a system call that waits for an answer: struct seccomp_notif (seccomp.h).
type question struct {
	id           uint64
	thread       uint32
	_            uint32 // flags
	number       uint32
	architecture uint32
	_            uint64 // instruction
	arguments    [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// receive returns the next question. It waits for one.
func receive(fd int) (q question, err error) {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&q)))
	if errno != 0 {
		return q, errno
	}
	return q, nil
}

// answer lets a call go on, or fail with EACCES.
func answer(fd int, q question, permitted bool) {
	r := response{id: q.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	if !permitted {
		r.flags, r.errno = 0, -int32(unix.EACCES)
	}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r))) // it may have ended
}
