package bench

import (
	"fmt"
	"net"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bareLoop calls recvmmsg with UDP_GRO on the same buffers again and again. It
// measures the cost of receiving alone.
type bareLoop struct {
	fd       int
	messages [bareMessages]mmsghdr
	vectors  [bareMessages]unix.Iovec
	buffers  []byte
}

const (
	bareMessages = 16
	bareBuffer   = 64 << 10
)

// mmsghdr is the kernel's struct mmsghdr (recvmmsg(2)).
type mmsghdr struct {
	header unix.Msghdr
	size   uint32
}

func newBareLoop(conn *net.UDPConn, receiveBuffer int) (*bareLoop, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("open bare socket: %w", err)
	}
	l := &bareLoop{buffers: make([]byte, bareMessages*bareBuffer)}
	var optionErr error
	err = raw.Control(func(fd uintptr) {
		l.fd = int(fd)
		if unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
			optionErr = unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
		}
		if err := unix.SetsockoptInt(l.fd, unix.SOL_UDP, unix.UDP_GRO, 1); err != nil {
			optionErr = err
		}
	})
	if err == nil {
		err = optionErr
	}
	if err != nil {
		return nil, fmt.Errorf("prepare bare socket: %w", err)
	}
	for i := range l.messages {
		l.vectors[i].Base = &l.buffers[i*bareBuffer]
		l.vectors[i].SetLen(bareBuffer)
		l.messages[i].header.Iov = &l.vectors[i]
		l.messages[i].header.SetIovlen(1)
	}
	return l, nil
}

// receive reads the available datagrams, or waits for them at most for patience.
// It returns the number of bytes.
func (l *bareLoop) receive(patience time.Duration) (uint64, error) {
	for range 2 {
		n, _, errno := syscall.Syscall6(unix.SYS_RECVMMSG, uintptr(l.fd), uintptr(unsafe.Pointer(&l.messages[0])), bareMessages, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			total := uint64(0)
			for i := range int(n) {
				total += uint64(l.messages[i].size)
			}
			return total, nil
		case unix.EAGAIN:
			poll := []unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}
			if _, err := unix.Poll(poll, int(patience.Milliseconds())); err != nil && err != unix.EINTR {
				return 0, err
			}
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
	return 0, nil
}

// segmentControl returns the control message that makes the kernel cut a send
// into datagrams of that size.
func segmentControl(size uint16) []byte {
	b := make([]byte, unix.CmsgSpace(2))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&b[unix.CmsgLen(0)])) = size
	return b
}
