package webserver

import (
	"crypto/tls"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxFiles is the number of files that this process may have open.
func maxFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	return int(min(limit.Cur, math.MaxInt))
}

// listener bounds the connections of a listener.
type listener struct {
	net.Listener
	max, perAddress int

	mu    sync.Mutex
	conns map[*conn]bool
	count map[netip.Prefix]int // connections by address
}

func newListener(l net.Listener, connections int) *listener {
	b := &listener{Listener: l, max: connections, perAddress: max(1, connections/2), conns: map[*conn]bool{}, count: map[netip.Prefix]int{}}
	if l.Addr().Network() != "tcp" {
		b.perAddress = b.max // all clients of a Unix socket are this user
	}
	return b
}

// Accept returns the next connection that has a place.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: accepted, listener: l, address: addressOf(accepted), waiting: true, since: time.Now()}
		loser := l.enter(c)
		if loser != nil {
			loser.Conn.Close()
		}
		if loser != c {
			return c, nil
		}
	}
}

// enter gives a connection a place. It returns the connection that lost its place, or has none.
func (l *listener) enter(c *conn) (loser *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	full := l.count[c.address] >= l.perAddress
	if full || len(l.conns) >= l.max {
		if loser = l.longestLocked(full, c.address); loser == nil {
			return c
		}
		l.leaveLocked(loser)
	}
	l.conns[c] = true
	l.count[c.address]++
	return loser
}

// longestLocked returns the connection that has waited longest for a complete request: of that
// address, or else of the address with the most connections among those with one that waits.
func (l *listener) longestLocked(ofAddress bool, address netip.Prefix) (found *conn) {
	for c := range l.conns {
		switch {
		case !c.waiting, ofAddress && c.address != address:
		case found == nil, l.count[c.address] > l.count[found.address],
			l.count[c.address] == l.count[found.address] && c.since.Before(found.since):
			found = c
		}
	}
	return found
}

func (l *listener) leaveLocked(c *conn) {
	if !l.conns[c] {
		return
	}
	delete(l.conns, c)
	if l.count[c.address]--; l.count[c.address] == 0 {
		delete(l.count, c.address)
	}
}

// addressOf is the client's address. An IPv6 client chooses the last 64 bits itself.
func addressOf(c net.Conn) netip.Prefix {
	at, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	address := at.AddrPort().Addr().Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() && !address.IsLoopback() {
		bits = 64
	}
	prefix, _ := address.Prefix(bits) // bits are in range
	return prefix
}

// conn is an accepted connection. Its writes have deadlines.
type conn struct {
	net.Conn
	listener *listener
	address  netip.Prefix

	// Guarded by listener.mu:
	waiting bool // for a complete request
	since   time.Time
}

// own returns the conn of a server's connection.
func own(c net.Conn) *conn {
	if encrypted, ok := c.(*tls.Conn); ok {
		c = encrypted.NetConn()
	}
	return c.(*conn)
}

// wait notes that the connection has no request.
func (c *conn) wait() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.waiting, c.since = true, time.Now()
}

// work notes that a request is complete.
func (c *conn) work() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.waiting = false
}

// Write sends in parts, each within writeTimeout: a large answer takes a slow network longer.
func (c *conn) Write(b []byte) (sent int, err error) {
	for {
		if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return sent, err
		}
		n, err := c.Conn.Write(b[sent:min(sent+writePart, len(b))])
		sent += n
		if err != nil || sent == len(b) {
			return sent, err
		}
	}
}

// CloseWrite is for net/http, which lets a client read the last answer.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close also frees the connection's place.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	c.listener.leaveLocked(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
