// Package zmtptest has peers for tests of ZeroMQ endpoints: hostile ones, and libzmq.
package zmtptest

import (
	"bufio"
	_ "embed"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"

	"github.com/penstock/penstock/control/zmtp"
	"github.com/penstock/penstock/internal/testing/must"
)

// The parts of ZMTP that hostile peers need.
const (
	GreetingBytes = 64
	FlagMore      = 0x01
	FlagLong      = 0x02
	FlagCommand   = 0x04
)

// Frame is a frame of up to 255 bytes.
func Frame(flags byte, body string) []byte {
	return append([]byte{flags, byte(len(body))}, body...)
}

// Claim is the header of a frame of so many bytes.
func Claim(flags byte, bytes uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | FlagLong}, bytes)
}

// BadHandshake has a property that ends before the length of its value.
func BadHandshake() []byte {
	greeting := make([]byte, GreetingBytes)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	return append(greeting, Frame(FlagCommand, "\x05READY\x03abc")...)
}

// Hostile is a peer that an endpoint hangs up on.
type Hostile struct {
	Name  string
	Early bool // Bytes are sent instead of a handshake
	Bytes []byte
	Want  string // in the endpoint's error
}

// HostilePeers are those of any endpoint with these limits.
func HostilePeers(l zmtp.Limits) []Hostile {
	parts := make([]byte, 0, 2*l.Parts)
	for range l.Parts {
		parts = append(parts, FlagMore, 0)
	}
	return []Hostile{
		{"no ZeroMQ", true, []byte(strings.Repeat("GET / HTTP/1.1\r\n", 4)), "handshake"},
		{"zeros", true, make([]byte, GreetingBytes), "handshake"},
		{"a property that overruns", true, BadHandshake(), "bad message"},
		{"a long command in the handshake", true, append(BadHandshake()[:GreetingBytes], Claim(FlagCommand, 1<<40)...), "message too long"},
		{"a long message", false, Claim(0, uint64(l.Bytes)+1), "message too long"},
		{"a length that overruns", false, Claim(0, 1<<63-1), "message too long"},
		{"a length that wraps", false, Claim(0, 1<<64-1), "message too long"},
		{"many parts", false, parts, "of several parts"},
		{"a long command", false, Claim(FlagCommand, 1<<40), "message too long"},
		{"unknown flags", false, []byte{0xf0, 1, 'x'}, "flags"},
	}
}

// Send connects to a listener, and sends what the peer sends. A peer that is not early is a
// socket of that kind.
func (h *Hostile) Send(t *testing.T, address net.Addr, kind zmq4.SocketType) net.Conn {
	t.Helper()
	c, err := net.Dial(address.Network(), address.String())
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	if !h.Early {
		Shake(t, c, kind)
	}
	must.Get(c.Write(h.Bytes))(t)
	return c
}

// Shake completes the handshake of a client.
func Shake(t *testing.T, c net.Conn, kind zmq4.SocketType) *zmq4.Conn {
	t.Helper()
	z, err := zmq4.Open(c, null.Security(), kind, zmq4.SocketIdentity("x"), false, nil)
	must.OK(t, err)
	return z
}

// WaitEnd waits until the peer has closed the connection.
func WaitEnd(t *testing.T, c net.Conn) {
	t.Helper()
	must.OK(t, c.SetReadDeadline(time.Now().Add(patience)))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the endpoint does not hang up")
	}
}

// patience bounds every wait. Only a hang takes that long.
const patience = 20 * time.Second

//go:embed peer.py
var peer string

// Libzmq is a peer with another implementation of ZMTP (peer.py).
type Libzmq struct {
	Stdin  io.Writer
	stdout *bufio.Reader
}

// StartLibzmq starts a peer. The arguments are those of peer.py.
func StartLibzmq(t *testing.T, arguments ...string) *Libzmq {
	t.Helper()
	cmd := Python(t, peer, arguments...)
	stdin, err := cmd.StdinPipe()
	must.OK(t, err)
	stdout, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &Libzmq{stdin, bufio.NewReaderSize(stdout, 4<<20)}
}

// Python is a program that uses pyzmq.
func Python(t *testing.T, program string, arguments ...string) *exec.Cmd {
	t.Helper()
	python := os.Getenv("PENSTOCK_ZMQ_PYTHON")
	if python == "" {
		t.Skip("not on this machine: PENSTOCK_ZMQ_PYTHON names no python3 with pyzmq (.ci/run installs it)")
	}
	cmd := exec.Command(python, append([]string{"-c", program}, arguments...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Send makes the peer send a message from now on. Tabs are between its parts.
func (p *Libzmq) Send(t *testing.T, message string) {
	t.Helper()
	must.Get(io.WriteString(p.Stdin, message+"\n"))(t)
}

// Receive returns the next message that the peer got, with blanks between its parts.
func (p *Libzmq) Receive(t *testing.T) string {
	t.Helper()
	line, err := p.stdout.ReadString('\n')
	must.OK(t, err)
	return strings.TrimSuffix(line, "\n")
}
