package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// maxMessageBytes is the max length of a Desired or Observed. A process takes about 200
// bytes in either, so there is room for about 5,000 processes.
const maxMessageBytes = 1 << 20

// ZMTP 3.0 (rfc.zeromq.org/spec/23): a greeting of 64 bytes, then frames. A frame has a byte
// of flags, a length of 1 byte or of 8 bytes (big-endian), and a body.
const (
	greetingBytes   = 64
	flagMore        = 0x01
	flagLong        = 0x02
	flagCommand     = 0x04
	maxCommandBytes = 1 << 10
)

// zmtpConn is one ZeroMQ connection between PAIR sockets, over a Unix socket.
//
// It is a connection of zmq4 without zmq4's sockets, which do not survive a hostile peer
// (docs/adr/0020-zeromq-without-sockets.md). The link has one peer at a time, and deadlines.
type zmtpConn struct {
	zmtp  *zmq4.Conn
	timed *timedConn
}

// openZMTP completes the handshake within handshakeTimeout. It takes ownership of c, and
// closes c on an error.
func openZMTP(c net.Conn, server bool) (_ *zmtpConn, err error) {
	defer func() {
		// zmq4 v0.17.0 slices a handshake's properties by lengths that the peer wrote, and
		// panics if they are wrong.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: handshake: %v", ErrBadMessage, r)
		}
		if err != nil {
			c.Close()
		}
	}()
	timed := &timedConn{Conn: c}
	guard := &frameGuard{Conn: timed, body: greetingBytes}
	timed.limitReads(handshakeTimeout)
	timed.limitWrites(handshakeTimeout)
	z, err := zmq4.Open(guard, null.Security(), zmq4.Pair, zmq4.SocketIdentity("penstock"), server, nil)
	if err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	guard.established = true
	return &zmtpConn{zmtp: z, timed: timed}, nil
}

// send writes one message. Only one goroutine may call it at a time. It returns an error if
// the peer does not read for PeerTimeout.
func (c *zmtpConn) send(message []byte) error {
	c.timed.limitWrites(PeerTimeout)
	return c.zmtp.SendMsg(zmq4.NewMsg(message))
}

// receive reads one message. Only one goroutine may call it at a time. The whole message has
// to arrive within PeerTimeout.
func (c *zmtpConn) receive() ([]byte, error) {
	c.timed.limitReads(PeerTimeout)
	m, err := c.zmtp.RecvMsg()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("%w: no message for %v", ErrPeerTimeout, PeerTimeout)
	}
	if err != nil {
		return nil, err
	}
	return m.Bytes(), nil
}

func (c *zmtpConn) close() { c.zmtp.Close() }

// frameGuard inspects the frame headers in the stream, and ends the stream before zmq4 acts
// on a bad one. zmq4 allocates whatever length a header claims, and collects parts without
// limit.
type frameGuard struct {
	net.Conn
	established bool // after the handshake: commands are no longer allowed

	body   uint64 // remaining bytes of the greeting or of the frame's body
	header [9]byte
	have   int // bytes of the header received so far
}

func (g *frameGuard) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if bad := g.check(p[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

func (g *frameGuard) check(p []byte) error {
	for len(p) > 0 {
		if g.body > 0 {
			n := min(g.body, uint64(len(p)))
			g.body -= n
			p = p[n:]
			continue
		}
		g.header[g.have] = p[0]
		g.have++
		p = p[1:]
		flags := g.header[0]
		switch {
		case flags&^(flagMore|flagLong|flagCommand) != 0:
			return fmt.Errorf("%w: frame flags %#x", ErrBadMessage, flags)
		case flags&flagMore != 0:
			return fmt.Errorf("%w: a message of several parts", ErrBadMessage)
		case flags&flagCommand != 0 && g.established:
			return fmt.Errorf("%w: a command after the handshake", ErrBadMessage)
		case flags&flagLong != 0 && g.have == 9:
			g.body = binary.BigEndian.Uint64(g.header[1:])
		case flags&flagLong == 0 && g.have == 2:
			g.body = uint64(g.header[1])
		default:
			continue // the header is not complete yet
		}
		limit := uint64(maxMessageBytes)
		if flags&flagCommand != 0 {
			limit = maxCommandBytes
		}
		if g.body > limit {
			return fmt.Errorf("%w: a frame of %d bytes, want at most %d", ErrTooLong, g.body, limit)
		}
		g.have = 0
	}
	return nil
}
