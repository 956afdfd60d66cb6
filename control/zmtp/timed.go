package zmtp

import (
	"net"
	"time"

	"github.com/penstock/penstock/control/runclock"
)

// timedConn is a stream connection whose time limits count only this process's running
// time. A deadline that passed while the process was stopped says nothing about the
// peer. Only one goroutine at a time may read or set the read limit, and only one may
// write or set the write limit.
type timedConn struct {
	net.Conn
	readBy, writeBy time.Duration // in the time of runclock.Now; 0: no limit
}

// limitReads bounds the total time of all reads from now on; 0 removes the limit.
func (c *timedConn) limitReads(limit time.Duration) { c.readBy = endOf(limit) }

// limitWrites is limitReads for writes.
func (c *timedConn) limitWrites(limit time.Duration) { c.writeBy = endOf(limit) }

func endOf(limit time.Duration) time.Duration {
	if limit == 0 {
		return 0
	}
	return runclock.Now() + limit
}

func (c *timedConn) Read(p []byte) (n int, err error) {
	err = until(c.readBy, c.SetReadDeadline, func() (err error) {
		n, err = c.Conn.Read(p)
		return err
	})
	return n, err
}

func (c *timedConn) Write(p []byte) (n int, err error) {
	err = until(c.writeBy, c.SetWriteDeadline, func() error {
		m, err := c.Conn.Write(p[n:])
		n += m
		return err
	})
	return n, err
}

// until is runclock.Until, or op alone if there is no limit.
func until(by time.Duration, setDeadline func(time.Time) error, op func() error) error {
	if by != 0 {
		return runclock.Until(by, setDeadline, op)
	}
	if err := setDeadline(time.Time{}); err != nil {
		return err
	}
	return op()
}
