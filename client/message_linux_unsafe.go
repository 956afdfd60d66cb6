//go:build linux

package client

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// message is the kernel's struct mmsghdr (recvmmsg(2)); Go's alignment pads it
// as C's does.
type message struct {
	header unix.Msghdr
	size   uint32 // bytes, set by the kernel
}

// controlBytes is room for one control message with an int: UDP_SEGMENT's u16
// in a sent message, UDP_GRO's int in a received one (udp(7)).

const controlBytes = unix.SizeofCmsghdr + 8

// vector describes b for the kernel. The iovec keeps b alive.
func vector(b []byte) unix.Iovec {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return v
}

// gather makes a message from those vectors.
func (m *message) gather(v []unix.Iovec) {
	m.header.Iov = unsafe.SliceData(v)
	m.header.SetIovlen(len(v))
}

// cut makes the kernel split the message into datagrams of size bytes. room, of
// controlBytes, holds the control message.
func (m *message) cut(room []byte, size uint16) {
	h := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(room)))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&room[unix.CmsgLen(0)])) = size
	m.header.Control = unsafe.SliceData(room)
	m.header.SetControllen(unix.CmsgSpace(2))
}

// control gives the kernel room, of controlBytes, in which to report a segment
// size.
func (m *message) control(room []byte) {
	m.header.Control = unsafe.SliceData(room)
	m.header.SetControllen(len(room))
}

// segmentSize returns the size of the datagrams that the kernel packed into the
// message; only the last may be shorter. Without a report of the kernel, it is
// the message's own size.
func (m *message) segmentSize(room []byte) int {
	if int(m.header.Controllen) >= unix.CmsgLen(4) {
		h := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(room)))
		if h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO {
			if size := *(*int32)(unsafe.Pointer(&room[unix.CmsgLen(0)])); size > 0 {
				return int(size)
			}
		}
	}
	return int(m.size)
}

// sendMessages is sendmmsg(2).
func sendMessages(fd uintptr, m []message) (n int, errno syscall.Errno) {
	r, _, errno := syscall.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}

// receiveMessages is recvmmsg(2) that does not wait.
func receiveMessages(fd uintptr, m []message) (n int, errno syscall.Errno) {
	r, _, errno := syscall.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}
