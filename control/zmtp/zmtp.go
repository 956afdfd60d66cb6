// Package zmtp has connections of ZeroMQ: ZMTP 3.0 (rfc.zeromq.org/spec/23).
//
// A connection is one of zmq4 without zmq4's sockets, which do not survive a hostile peer
// (docs/adr/0020-zeromq-without-sockets.md). zmq4 shakes hands and writes. This package reads,
// so that no memory depends on a length that a peer wrote.
//
//  1. Open completes the handshake, within a time (handshake).
//  2. Next waits for a message, and answers heartbeats (Conn.header).
//  3. Message reads its parts as they arrive, within limits (Message).
//
// Listen and Serve are for endpoints that many peers may use (serve.go).
package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"

	"github.com/penstock/penstock/internal/unixsock"
)

// Sentinels. Every error that a peer can cause wraps one of them, or one of package io or net.
var (
	// ErrBadMessage is returned for bytes that are no message of ZMTP, or none that is allowed.
	ErrBadMessage = errors.New("bad message")
	// ErrTooLong is returned for a message above Limits.
	ErrTooLong = unixsock.ErrTooLong
	// ErrPeerTimeout is returned if the peer did not send in time.
	ErrPeerTimeout = errors.New("peer is silent")
)

// HandshakeTimeout is the max time for a peer's part of the handshake. The peer needs almost
// no time for it, but a busy machine may delay it.
const HandshakeTimeout = 2 * time.Second

// A greeting has 64 bytes. Frames follow: a byte of flags, a length of 1 byte or of 8 bytes
// (big-endian), and a body.
const (
	greetingBytes   = 64
	flagMore        = 0x01
	flagLong        = 0x02
	flagCommand     = 0x04
	maxCommandBytes = 1 << 10
)

// Limits bound what a peer can send.
type Limits struct {
	// Bytes is the max length of a message, Parts the max number of its parts.
	Bytes, Parts int
	// Timeout is the max time from the call of Next to the end of the message, and for each
	// message to be written.
	Timeout time.Duration
	// Idle lets Timeout begin when a message begins: a peer may be silent between messages.
	Idle bool
}

// Conn is a connection. One goroutine at a time may read. Any goroutine may send or close.
type Conn struct {
	limits Limits
	timed  *timedConn
	in     *bufio.Reader

	mu   sync.Mutex // guards writes
	zmtp *zmq4.Conn
	out  *bufio.Writer
}

// Open completes the handshake within HandshakeTimeout, as a socket of the type own. It takes
// ownership of conn, and closes conn on an error.
func Open(conn net.Conn, own zmq4.SocketType, server bool, l Limits) (_ *Conn, err error) {
	defer func() {
		// zmq4 v0.17.0 slices a handshake's properties by lengths that the peer wrote, and
		// panics if they are wrong.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: handshake: %v", ErrBadMessage, r)
		}
		if err != nil {
			conn.Close()
		}
	}()
	timed := &timedConn{Conn: conn}
	timed.limitReads(HandshakeTimeout)
	timed.limitWrites(HandshakeTimeout)
	c := &Conn{limits: l, timed: timed, in: bufio.NewReader(timed), out: bufio.NewWriter(timed)}
	if c.zmtp, err = zmq4.Open(&handshake{Conn: timed, c: c}, null.Security(), own, nil, server, nil); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return c, nil
}

// handshake is the peer for zmq4. zmq4 allocates whatever length a frame claims, so it gets
// only frames that have arrived, and reads nothing after the handshake.
type handshake struct {
	net.Conn
	c       *Conn
	greeted bool
	arrived []byte
}

func (h *handshake) Read(p []byte) (int, error) {
	if err := h.c.out.Flush(); err != nil {
		return 0, err
	}
	if len(h.arrived) == 0 {
		if err := h.receive(); err != nil {
			return 0, err
		}
	}
	n := copy(p, h.arrived)
	h.arrived = h.arrived[n:]
	return n, nil
}

func (h *handshake) receive() (err error) {
	if !h.greeted {
		h.greeted = true
		h.arrived = make([]byte, greetingBytes)
		_, err = io.ReadFull(h.c.in, h.arrived)
		return err
	}
	flags, size, err := h.c.header()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 {
		return fmt.Errorf("%w: a message before the handshake", ErrBadMessage)
	}
	h.arrived = binary.BigEndian.AppendUint64([]byte{flagCommand | flagLong}, size)
	h.arrived, err = h.c.command(h.arrived, size)
	return err
}

func (h *handshake) Write(p []byte) (int, error) { return h.c.out.Write(p) }

// header reads the flags and the length of a frame.
func (c *Conn) header() (flags byte, size uint64, err error) {
	if flags, err = c.in.ReadByte(); err != nil {
		return 0, 0, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 || flags&flagMore != 0 && flags&flagCommand != 0 {
		return 0, 0, fmt.Errorf("%w: frame flags %#x", ErrBadMessage, flags)
	}
	var length [8]byte
	n := 7 // the last byte alone
	if flags&flagLong != 0 {
		n = 0
	}
	if _, err := io.ReadFull(c.in, length[n:]); err != nil {
		return 0, 0, noEOF(err)
	}
	return flags, binary.BigEndian.Uint64(length[:]), nil
}

// command appends the body of a command.
func (c *Conn) command(dst []byte, size uint64) ([]byte, error) {
	if size > maxCommandBytes {
		return nil, fmt.Errorf("%w: a command of %d bytes, want at most %d", ErrTooLong, size, maxCommandBytes)
	}
	start := len(dst)
	dst = append(dst, make([]byte, size)...)
	_, err := io.ReadFull(c.in, dst[start:])
	return dst, noEOF(err)
}

// obey answers a command. Only heartbeats need an answer, with what they bring after a time.
func (c *Conn) obey(command []byte) error {
	const ttlBytes = 2
	beat, ok := bytes.CutPrefix(command, []byte("\x04"+zmq4.CmdPing))
	if !ok || len(beat) < ttlBytes {
		return nil
	}
	return c.write(func() error { return c.zmtp.SendCmd(zmq4.CmdPong, beat[ttlBytes:]) })
}

// noEOF is for reads that end within a message.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Send writes one message. It returns an error if the peer does not read it within the
// timeout; the connection is then of no more use.
func (c *Conn) Send(parts ...[]byte) error {
	return c.write(func() error { return c.zmtp.SendMsg(zmq4.NewMsgFrom(parts...)) })
}

func (c *Conn) write(send func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timed.limitWrites(c.limits.Timeout)
	if err := send(); err != nil {
		return err
	}
	return c.out.Flush()
}

// Exchange reads and writes at the same time until one of both ends, and returns why. Then it closes the connection, which
// ends the other. write also ends when ended is closed.
func (c *Conn) Exchange(read func() error, write func(ended <-chan struct{}) error) error {
	ended, written := make(chan struct{}), make(chan error, 1)
	go func() {
		err := write(ended)
		c.Close()
		written <- err
	}()
	err := read()
	close(ended)
	c.Close()
	if failed := <-written; failed != nil && errors.Is(err, net.ErrClosed) {
		return failed
	}
	return err
}

// Close ends the connection, and with it each read and write.
func (c *Conn) Close() error { return c.timed.Close() }

// Message is a message that arrives.
type Message struct {
	c     *Conn
	left  uint64 // bytes of the present part
	more  bool   // parts follow it
	parts int
	bytes uint64
	err   error // why no part can follow
}

// Next waits for the next message. The caller has read all of the one before. io.EOF means that
// the peer has closed its end.
func (c *Conn) Next() (*Message, error) {
	limit := c.limits.Timeout
	if c.limits.Idle {
		limit = 0
	}
	c.timed.limitReads(limit)
	m := &Message{c: c}
	err := m.next()
	if c.limits.Idle {
		c.timed.limitReads(c.limits.Timeout)
	}
	return m, err
}

func (c *Conn) explain(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: no message for %v", ErrPeerTimeout, c.limits.Timeout)
	}
	return err
}

// next begins the next part. After an error none can follow.
func (m *Message) next() error {
	if m.err == nil {
		m.err = m.c.explain(m.begin())
	}
	return m.err
}

func (m *Message) begin() error {
	flags, size, err := m.c.header()
	for err == nil && flags&flagCommand != 0 {
		var command []byte
		if command, err = m.c.command(nil, size); err == nil {
			err = m.c.obey(command)
		}
		if err == nil {
			flags, size, err = m.c.header()
		}
	}
	if err != nil {
		return err
	}
	m.parts++
	m.bytes += size
	switch most := uint64(m.c.limits.Bytes); {
	case m.parts > m.c.limits.Parts || flags&flagMore != 0 && m.parts == m.c.limits.Parts:
		return fmt.Errorf("%w: a message of several parts, want at most %d", ErrBadMessage, m.c.limits.Parts)
	case size > most || m.bytes > most:
		return fmt.Errorf("%w: a message of %d bytes, want at most %d", ErrTooLong, m.bytes, most)
	}
	m.left, m.more = size, flags&flagMore != 0
	return nil
}

// Part reads the rest of the present part, of at most so many bytes. It reads nothing of a longer one.
func (m *Message) Part(most int) (part []byte, last bool, err error) {
	if m.left > uint64(most) {
		return nil, false, fmt.Errorf("%w: part %d has %d bytes, want at most %d", ErrTooLong, m.parts, m.left, most)
	}
	part = make([]byte, m.left)
	m.left = 0
	if _, err = io.ReadFull(m.c.in, part); err == nil && m.more {
		return part, false, noEOF(m.next())
	}
	return part, true, m.c.explain(noEOF(err))
}

// Read reads the rest of the message: all parts without a gap. It returns io.EOF at its end.
func (m *Message) Read(p []byte) (int, error) {
	for m.left == 0 {
		if !m.more {
			return 0, io.EOF
		}
		if err := m.next(); err != nil {
			return 0, noEOF(err)
		}
	}
	n, err := m.c.in.Read(p[:min(uint64(len(p)), m.left)])
	m.left -= uint64(n)
	return n, m.c.explain(noEOF(err))
}
