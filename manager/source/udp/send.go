package udp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/manager/source"
)

// sendBatch is how many packets go with one system call.
const sendBatch = 64

// sendPatience is how long Send waits for room in the socket's send buffer. On
// the way to a network it empties in microseconds; a receiver that stops it for
// longer may not stop the others' answers.
const sendPatience = 10 * time.Millisecond

// sender is what a sending needs, made once.
type sender struct {
	headers []mmsghdr
	iovecs  []unix.Iovec
	names   [][sockaddrBytes]byte
	polls   []unix.PollFd
}

func newSender() sender {
	s := sender{
		headers: make([]mmsghdr, sendBatch),
		iovecs:  make([]unix.Iovec, sendBatch),
		names:   make([][sockaddrBytes]byte, sendBatch),
		polls:   make([]unix.PollFd, 1),
	}
	for i := range s.headers {
		s.headers[i].hdr.Name = &s.names[i][0]
		s.headers[i].hdr.Iov = &s.iovecs[i]
		s.headers[i].hdr.SetIovlen(1)
	}
	return s
}

// Send sends packets in order; see source.Source. With an error, packets[n] is
// the one that could not be sent, and those after it were not tried. Any
// goroutine may call it.
func (s *Source) Send(packets []source.Packet) (n int, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed.Load() {
		return 0, source.ErrClosed
	}
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	for n < len(packets) {
		filled, unfit := s.fillLocked(packets[n:])
		sent, err := s.flushLocked(filled)
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

// fillLocked lays out the next batch; unfit says why it ends before a packet that
// cannot be addressed.
func (s *Source) fillLocked(packets []source.Packet) (filled int, unfit error) {
	for i, p := range packets[:min(len(packets), sendBatch)] {
		size, err := encodeAddress(&s.sender.names[i], p.To, s.inet6)
		if err != nil {
			return i, err
		}
		s.sender.headers[i].hdr.Namelen = uint32(size)
		iovec := &s.sender.iovecs[i]
		iovec.Base = nil
		if len(p.Data) > 0 {
			iovec.Base = &p.Data[0]
		}
		iovec.SetLen(len(p.Data))
		filled++
	}
	return filled, nil
}

// flushLocked sends what was laid out.
func (s *Source) flushLocked(filled int) (sent int, err error) {
	defer func() {
		for i := range filled {
			s.sender.iovecs[i].Base = nil // the data is the caller's again
		}
	}()
	waited := false
	for sent < filled {
		n, err := sendmmsg(s.socket, s.sender.headers[sent:filled], unix.MSG_DONTWAIT)
		sent += n
		switch {
		case err == nil:
			waited = false
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN) && !waited:
			waited = true
			timeout := unix.NsecToTimespec(int64(sendPatience))
			s.sender.polls[0] = unix.PollFd{Fd: int32(s.socket), Events: unix.POLLOUT}
			if _, err := ppoll(s.sender.polls, &timeout); err != nil && !errors.Is(err, unix.EINTR) {
				return sent, err
			}
		default:
			return sent, err
		}
	}
	return sent, nil
}
