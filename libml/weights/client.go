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

// holderLease is memory that the holder keeps for this process.
type holderLease struct {
	Loaded
	memory *os.File
	conn   *net.UnixConn
}

// getWeights asks the holder at a socket for a file, and waits at most timeout; the holder may
// have to read it first. The lease is the caller's until Close, or until the process
// ends. errRefused has the holder's reason; any other error says that there is no holder
// that answers.
func getWeights(socket, file string, timeout time.Duration) (_ *holderLease, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("ask for weights: %w", err)
	}
	defer f.Close()
	c, err := dial(socket)
	if err != nil {
		return nil, fmt.Errorf("ask for weights: %w", err)
	}
	defer func() {
		if err != nil {
			c.Close()
			err = fmt.Errorf("ask for weights: %w", err)
		}
	}()
	if err := send(c, ask{Version: version}, f); err != nil {
		return nil, hungUp(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	var a answer
	memory, err := receive(c, &a)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("no answer for %v", timeout)
	}
	if err != nil {
		return nil, hungUp(err)
	}
	l := &holderLease{Loaded: a.Loaded, memory: memory, conn: c}
	switch {
	case a.Version != version:
		err = fmt.Errorf("%w: it speaks version %d, this process %d", errRefused, a.Version, version)
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

// hungUp says of an error that it is the end of the holder, where it is.
func hungUp(err error) error {
	for _, end := range []error{io.EOF, unix.ECONNRESET, unix.EPIPE} {
		if errors.Is(err, end) {
			return fmt.Errorf("the holder hung up before it answered: %w", err)
		}
	}
	return err
}

// startTimeout is how long a holder is waited for that does not listen: it starts together
// with the first processes, or anew.
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

// Close hangs up: the holder counts one process fewer. Memory that is mapped stays so.
func (l *holderLease) Close() error {
	return errors.Join(l.memory.Close(), l.conn.Close())
}
