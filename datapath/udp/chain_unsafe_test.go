package udp

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// putSegment writes the control message that makes the kernel split a payload
// into datagrams.
func putSegment(control []byte, segment uint16) {
	binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(control[8:], unix.SOL_UDP)
	binary.NativeEndian.PutUint32(control[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(control[16:], segment)
}

// rawChain sends one chain repeatedly without allocating.
type rawChain struct {
	fd      int
	header  unix.Msghdr
	iovec   unix.Iovec
	control []byte
}

func newRawChain(conn syscall.RawConn, segment int, payload []byte) *rawChain {
	c := &rawChain{control: make([]byte, unix.CmsgSpace(2))}
	conn.Control(func(fd uintptr) { c.fd = int(fd) })
	putSegment(c.control, uint16(segment))
	c.iovec.Base = &payload[0]
	c.iovec.SetLen(len(payload))
	c.header.Iov = &c.iovec
	c.header.SetIovlen(1)
	c.header.Control = &c.control[0]
	c.header.SetControllen(len(c.control))
	return c
}

func (c *rawChain) send() bool {
	for {
		_, _, errno := syscall.Syscall(unix.SYS_SENDMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&c.header)), 0)
		if errno != unix.EAGAIN {
			return errno == 0
		}
	}
}
