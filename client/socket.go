package client

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/penstock/penstock/wire"
)

const (
	// burstDatagrams and burstSize are the max of what one flush sends.
	burstDatagrams = 256
	burstSize      = 256 << 10
	// messageBytes is the max size of what one read returns: a datagram, or as many as UDP_GRO packs.
	messageBytes = 64 << 10
)

// socket sends and receives datagrams. One goroutine may send while another receives.
//
//	add ──> add ──> … ──> flush
type socket interface {
	// room reports whether one more datagram may be added.
	room() bool
	// add takes one datagram and returns its size in bytes; there must be room. The fragment must not change until
	// flush has returned. (The headers are values, because pointers would put them on the heap.)
	add(h wire.Header, e wire.Extension, fragment []byte) int
	// flush sends the datagrams. It counts those that the kernel refuses, and leaves them to the protocol like
	// others that are lost. It returns how often no process listened at the address, and an error only when the socket is
	// closed.
	flush(n *counts) (refused uint64, err error)
	// receive waits for datagrams, and passes each to handle with the time of its arrival.
	receive(handle func(datagram []byte, at int64)) error
	// receiveBytes is the size of the receive buffer.
	receiveBytes() int
}

// isRefused reports whether the error is the ICMP response "port unreachable" to an earlier datagram.
func isRefused(err error) bool {
	const connectionReset = syscall.Errno(10054) // WSAECONNRESET, which Windows reports instead
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, connectionReset)
}

// plainSocket is a socket for any system: one system call per datagram.
type plainSocket struct {
	conn     *net.UDPConn
	granted  int    // bytes of the receive buffer
	burst    []byte // the datagrams to send
	ends     []int  // the end of each
	received []byte
}

func newPlainSocket(conn *net.UDPConn, o *Options) *plainSocket {
	s := &plainSocket{conn: conn, burst: make([]byte, 0, burstSize+wire.MaxDatagram), received: make([]byte, messageBytes)}
	// Some systems refuse a buffer that is too large.
	for s.granted = o.socketBytes; s.granted > messageBytes && conn.SetReadBuffer(s.granted) != nil; {
		s.granted /= 2
	}
	return s
}

func (s *plainSocket) receiveBytes() int { return s.granted }

func (s *plainSocket) room() bool { return len(s.ends) < burstDatagrams && len(s.burst) < burstSize }

func (s *plainSocket) add(h wire.Header, e wire.Extension, fragment []byte) int {
	from, size := len(s.burst), wire.DatagramSize(&h)
	s.burst = s.burst[:from+size]
	datagram := s.burst[from:]
	h.Put(datagram)
	if h.Flags&wire.FlagExtension != 0 {
		e.Put(datagram[wire.HeaderSize:])
	}
	copy(datagram[wire.PayloadOffset(&h):], fragment)
	s.ends = append(s.ends, len(s.burst))
	return size
}

func (s *plainSocket) flush(n *counts) (unreachable uint64, err error) {
	from, refused := 0, false
	for _, end := range s.ends {
		_, err := s.conn.Write(s.burst[from:end])
		n.sends.Add(1)
		if isRefused(err) && !refused { // the response to an earlier datagram: this one was not tried
			refused = true
			unreachable++
			_, err = s.conn.Write(s.burst[from:end])
			n.sends.Add(1)
		}
		switch {
		case errors.Is(err, net.ErrClosed):
			return unreachable, fmt.Errorf("send datagrams: %w", err)
		case err != nil:
			n.sendErrors.Add(1)
		default:
			refused = false
			n.datagrams.Add(1)
			n.bytes.Add(uint64(end - from))
		}
		from = end
	}
	s.burst, s.ends = s.burst[:0], s.ends[:0]
	return unreachable, nil
}

func (s *plainSocket) receive(handle func(datagram []byte, at int64)) error {
	n, err := s.conn.Read(s.received)
	if err != nil {
		return err
	}
	handle(s.received[:n], nanotime())
	return nil
}
