package weights

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// serverLease is memory that the weight server keeps for this process.
type serverLease struct {
	Loaded
	memory *os.File
	conn   *net.UnixConn
}

// getWeights asks the weight server at a socket for a file, and waits at most timeout: the
// server may have to read the file first. The caller owns the lease until Close, or until
// the process ends. The error is errRefused with the server's reason if the server refuses.
// Otherwise the file cannot be opened, or the server does not answer as it should.
func getWeights(socket, file string, timeout time.Duration) (_ *serverLease, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("request weights: %w", err)
	}
	defer f.Close()
	conn, err := dial(socket)
	if err != nil {
		return nil, fmt.Errorf("request weights: %w", err)
	}
	c := newLink(conn)
	defer func() {
		if err != nil {
			c.Close()
			err = fmt.Errorf("request weights: %w", err)
		}
	}()
	if err := c.send(request{Version: version}, f); err != nil {
		return nil, hungUp(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	var a response
	memory, err := c.receive(&a)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("no answer within %v", timeout)
	}
	if err != nil {
		return nil, hungUp(err)
	}
	l := &serverLease{Loaded: a.Loaded, memory: memory, conn: conn}
	switch {
	case a.Version != version:
		err = fmt.Errorf("%w: it has protocol version %d, this process has %d", errRefused, a.Version, version)
	case a.Refused != "":
		err = fmt.Errorf("%w: %s", errRefused, a.Refused)
	case memory == nil || a.Bytes <= 0 || a.MemoryBytes < a.Bytes:
		err = fmt.Errorf("%w: %d bytes in %d", errBadMessage, a.Bytes, a.MemoryBytes)
	}
	if err != nil {
		if memory != nil {
			memory.Close()
		}
		return nil, err
	}
	return l, nil
}

// hungUp describes an error that means that the weight server has closed the connection.
func hungUp(err error) error {
	for _, end := range []error{io.EOF, unix.ECONNRESET, unix.EPIPE} {
		if errors.Is(err, end) {
			return fmt.Errorf("weight server closed the connection without an answer: %w", err)
		}
	}
	return err
}

// startTimeout is how long dial waits for a weight server that does not listen yet. The
// server starts together with the first processes, or restarts.
const startTimeout = 300 * time.Millisecond

func dial(socket string) (*net.UnixConn, error) {
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: socket})
		coming := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
		if !coming || time.Now().After(deadline) {
			return c, err
		}
	}
}

// Close ends the lease. Memory that is mapped stays mapped.
func (l *serverLease) Close() error {
	return errors.Join(l.memory.Close(), l.conn.Close())
}
