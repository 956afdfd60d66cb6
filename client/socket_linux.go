package client

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// batchSocket sends and receives many datagrams per system call.
type batchSocket struct {
	*transmitter
	*receiver
	granted int
}

func newSocket(conn *net.UDPConn, o *Options) (socket, error) {
	if o.plain {
		return newPlainSocket(conn, o), nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	_ = conn.SetReadBuffer(o.socketBytes) // the kernel may grant less
	s := &batchSocket{transmitter: newTransmitter(raw), receiver: newReceiver(raw)}
	_ = raw.Control(func(fd uintptr) {
		s.granted, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	})
	return s, nil
}

func (s *batchSocket) receiveBytes() int { return s.granted }

// nap sleeps for less than a millisecond or two. Go's timers are too coarse for that: they use epoll_wait, which
// counts in milliseconds. It may wake early.
func nap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}
