package client

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// message is the kernel's struct mmsghdr (recvmmsg(2)); Go's alignment pads it
// as C does.
type message struct {
	header unix.Msghdr
	size   uint32 // bytes, set by the kernel
}

// controlBytes is room for one control message with an int: UDP_SEGMENT's u16
// on the way out, UDP_GRO's int on the way in (udp(7)).

const controlBytes = unix.SizeofCmsghdr + 8

// vector is b for the kernel. The iovec keeps b alive.
func vector(b []byte) unix.Iovec {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return v
}

// gather makes the message of those vectors.
func (m *message) gather(v []unix.Iovec) {
	m.header.Iov = unsafe.SliceData(v)
	m.header.SetIovlen(len(v))
}

// cut has the kernel cut the message in datagrams of size bytes. The control
// message is built in room, of controlBytes.
func (m *message) cut(room []byte, size uint16) {
	h := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(room)))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&room[unix.CmsgLen(0)])) = size
	m.header.Control = unsafe.SliceData(room)
	m.header.SetControllen(unix.CmsgSpace(2))
}

// control gives the kernel room, of controlBytes, to tell a segment size in.
func (m *message) control(room []byte) {
	m.header.Control = unsafe.SliceData(room)
	m.header.SetControllen(len(room))
}

// segmentSize is the size of the datagrams that the kernel packed in the
// message: all but the last have it. It is the message's own size where the
// kernel says nothing.
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

// receiveMessages is recvmmsg(2) without waiting.
func receiveMessages(fd uintptr, m []message) (n int, errno syscall.Errno) {
	r, _, errno := syscall.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}
