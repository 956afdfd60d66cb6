package udp

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/ingest"
)

// sendBatch is the max number of packets per system call.
const sendBatch = 64

// sendPatience is how long Send waits for room in the socket's send buffer. On the way to a
// network the buffer drains in microseconds. A receiver that blocks it for longer must not
// delay the answers to others.
const sendPatience = 10 * time.Millisecond

// sendersOfSource is how many goroutines may send at once: the receive thread, and a reply
// thread or two.
const sendersOfSource = 3

// sender holds the buffers of one send, allocated once.
type sender struct {
	mu      sync.Mutex // guards the following
	headers []mmsghdr
	iovecs  []unix.Iovec
	names   [][sockaddrBytes]byte
	polls   []unix.PollFd
}

func (x *sender) init() {
	x.headers = make([]mmsghdr, sendBatch)
	x.iovecs = make([]unix.Iovec, sendBatch)
	x.names = make([][sockaddrBytes]byte, sendBatch)
	x.polls = make([]unix.PollFd, 1)
	for i := range x.headers {
		x.headers[i].hdr.Name = &x.names[i][0]
		x.headers[i].hdr.Iov = &x.iovecs[i]
		x.headers[i].hdr.SetIovlen(1)
	}
}

// lockSender locks a sender that is not in use. If all are, it waits for the first: a system
// call that sends a batch takes some 100 µs.
func (s *Source) lockSender() *sender {
	for i := range s.senders {
		if s.senders[i].mu.TryLock() {
			return &s.senders[i]
		}
	}
	s.senders[0].mu.Lock()
	return &s.senders[0]
}

// Send sends packets in order; see ingest.Source. With an error, packets[n] could not be
// sent, and those after it were not tried. Any goroutine may call it.
func (s *Source) Send(packets []ingest.Packet) (n int, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed.Load() {
		return 0, ingest.ErrClosed
	}
	x := s.lockSender()
	defer x.mu.Unlock()
	for n < len(packets) {
		filled, unfit := x.fillLocked(packets[n:], s.inet6)
		sent, err := x.flushLocked(s.socket, filled)
		n += sent
		if err == nil && sent == filled {
			err = unfit
		}
		if err != nil {
			return n, fmt.Errorf("send to %v: %w", packets[n].To, err)
		}
	}
	return n, nil
}

// fillLocked prepares the next batch. unfit is the error of the packet after it, if that
// packet cannot be addressed.
func (x *sender) fillLocked(packets []ingest.Packet, inet6 bool) (filled int, unfit error) {
	for i, p := range packets[:min(len(packets), sendBatch)] {
		size, err := encodeAddress(&x.names[i], p.To, inet6)
		if err != nil {
			return i, err
		}
		x.headers[i].hdr.Namelen = uint32(size)
		iovec := &x.iovecs[i]
		iovec.Base = nil
		if len(p.Data) > 0 {
			iovec.Base = &p.Data[0]
		}
		iovec.SetLen(len(p.Data))
		filled++
	}
	return filled, nil
}

// flushLocked sends the prepared batch.
func (x *sender) flushLocked(socket, filled int) (sent int, err error) {
	defer func() {
		for i := range filled {
			x.iovecs[i].Base = nil // the caller owns the data again
		}
	}()
	waited := false
	for sent < filled {
		n, err := sendmmsg(socket, x.headers[sent:filled], unix.MSG_DONTWAIT)
		sent += n
		switch {
		case err == nil:
			waited = false
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN) && !waited:
			waited = true
			timeout := unix.NsecToTimespec(int64(sendPatience))
			x.polls[0] = unix.PollFd{Fd: int32(socket), Events: unix.POLLOUT}
			if _, err := ppoll(x.polls, &timeout); err != nil && !errors.Is(err, unix.EINTR) {
				return sent, err
			}
		default:
			return sent, err
		}
	}
	return sent, nil
}
