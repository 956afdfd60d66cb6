package unixsock

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// Link is one end of a connection that carries JSON: one message per packet, which may have files. Any goroutine may
// send; only one at a time may receive.
type Link struct {
	*net.UnixConn
	limits Limits
	buf    []byte
}

// Limits bound the messages of a Link. They must fit the socket's send buffer: Linux refuses a larger packet. The buffer
// usually has 212,992 bytes (net.core.wmem_default), part of which is overhead.
type Limits struct {
	SendBytes, ReceiveBytes int
	Files                   int // of a received message; 0: files are dropped silently
}

// NewLink takes ownership of c.
func NewLink(c *net.UnixConn, l Limits) *Link { return &Link{UnixConn: c, limits: l} }

// OpenLink is NewLink for a file. It closes f, also if it fails.
func OpenLink(f *os.File, l Limits) (*Link, error) {
	c, err := Conn(f)
	if err != nil {
		return nil, err
	}
	return NewLink(c, l), nil
}

// Send encodes and sends a message with files, which remain the caller's.
func (l *Link) Send(message any, files ...*os.File) error {
	text, err := l.Encode(message)
	if err != nil {
		return err
	}
	return Send(l.UnixConn, text, files...)
}

// Encode returns a message as Send sends it.
func (l *Link) Encode(message any) ([]byte, error) {
	text, err := json.Marshal(message)
	if err == nil && len(text) > l.limits.SendBytes {
		err = fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, len(text), l.limits.SendBytes)
	}
	return text, err
}

// Receive waits for a message, like the function Receive. Its text is valid until the next call. io.EOF also means that
// this end was closed.
func (l *Link) Receive() (text []byte, files []*os.File, err error) {
	if l.buf == nil {
		l.buf = make([]byte, l.limits.ReceiveBytes)
	}
	text, files, err = Receive(l.UnixConn, l.buf, l.limits.Files)
	if errors.Is(err, net.ErrClosed) {
		err = io.EOF
	}
	return text, files, err
}

// CloseAll closes the files of a message.
func CloseAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
