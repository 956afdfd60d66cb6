package client

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/wire"
)

// Several nodes. Each has a path. New requests take the path of the present node:
//
//	home ──moved──> away, for a lifetime ──> home
//	home ──silent──> the next given address, which is home from now on
//
// A request that was moved, or whose node is silent, is queued again, and begins on another path.

const (
	// maxHops bounds how often a request goes to another node. Then it stays.
	maxHops = 4
	// silences is how many times ResendAfter a silent node gets: the second question is due then.
	silences = 3
	// minMoved and maxMoved bound the lifetime of a move.
	minMoved = time.Second
	maxMoved = time.Minute
	// maxAway bounds the nodes to which others may move the client.
	maxAway = 8
)

// path is the way to one node. Client.mu guards the fields that are not atomic and change.
type path struct {
	to            netip.AddrPort
	conn          *net.UDPConn
	socket        socket
	fragmentBytes int
	heard         atomic.Int64 // when the last datagram came, 0: none
	unreachable   atomic.Uint64

	credit     credit
	cookie     uint64 // of the last answer that had one
	renewAt    int64  // when to ask for another token; 0: cookie is none
	hello      hello
	largest    int // LargestPicture of the last answer
	inFlight   int
	staysUntil int64 // until then, no request says that the client follows
}

// resolve returns the addresses of a list with commas, each once.
func resolve(ctx context.Context, addresses string) (all []netip.AddrPort, err error) {
	for address := range strings.SplitSeq(addresses, ",") {
		host, service, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		port, err := net.DefaultResolver.LookupPort(ctx, "udp", service)
		if err != nil {
			return nil, err
		}
		found := []netip.Addr{netip.IPv4Unspecified()} // an empty host is this machine
		if host != "" {
			if found, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
				return nil, err
			}
		}
		for _, a := range found {
			if to := netip.AddrPortFrom(a.Unmap(), uint16(port)); !slices.Contains(all, to) {
				all = append(all, to)
			}
		}
	}
	return all, nil
}

// openLocked returns the path to an address. It opens the path if there is none.
func (c *Client) openLocked(to netip.AddrPort) (*path, error) {
	if at := slices.IndexFunc(c.paths, func(p *path) bool { return p.to == to }); at >= 0 {
		return c.paths[at], nil
	}
	if len(c.paths) >= len(c.given)+maxAway {
		at := slices.IndexFunc(c.paths, func(p *path) bool { return p.inFlight == 0 && p != c.home && p != c.away })
		if at < 0 {
			return nil, errors.New("too many nodes are in use")
		}
		c.paths[at].conn.Close()
		c.paths = slices.Delete(c.paths, at, at+1)
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return nil, err
	}
	p := &path{to: to, conn: conn, fragmentBytes: c.options.FragmentBytes, credit: credit{more: c.options.InFlight}, largest: math.MaxUint32}
	if len(c.paths) > 0 {
		p.credit.more = min(c.options.InFlight, 1) // other clients may come at the same time, each with all its requests
	}
	if isLocal(conn) {
		p.fragmentBytes = c.options.LocalFragmentBytes
	}
	_ = conn.SetWriteBuffer(c.options.socketBytes) // a smaller buffer is slower, not wrong
	if p.socket, err = newSocket(conn, &c.options); err != nil {
		conn.Close()
		return nil, err
	}
	c.paths = append(c.paths, p)
	c.loops.Go(func() { c.receive(p) })
	return p, nil
}

// pathLocked returns the path of new requests.
func (c *Client) pathLocked(now int64) *path {
	if c.away != nil && now >= c.awayUntil {
		c.away = nil
	}
	if c.away != nil {
		return c.away
	}
	return c.home
}

// followsLocked reports whether r may be moved.
func (c *Client) followsLocked(r *request, now int64) bool {
	return c.follows && r.hops < maxHops && now >= r.path.staysUntil
}

// moveLocked sends a request to the node that the answer of another node names, and new ones for the lifetime. If the
// client does not trust it, they stay.
func (c *Client) moveLocked(r *request, answer *wire.Result, at int64) {
	if !r.follows { // it did not allow the answer
		c.counts.foreign.Add(1)
		return
	}
	until := at + int64(min(max(answer.Lifetime, minMoved), maxMoved))
	var to *path
	if slices.Contains(c.given, answer.Moved) || slices.ContainsFunc(c.options.Trusted, func(n netip.Prefix) bool { return n.Contains(answer.Moved.Addr()) }) {
		to, _ = c.openLocked(answer.Moved)
	}
	switch to {
	case nil, r.path:
		r.path.staysUntil = until
	case c.home: // which must not move the client again
		c.away, to.staysUntil = nil, until
	default:
		c.away, c.awayUntil = to, until
	}
	c.queueAgainLocked(r)
}

// mayLeaveLocked reports whether another node could take a request in flight.
func (c *Client) mayLeaveLocked(r *request) bool {
	return r.hops < maxHops && (len(c.given) > 1 || r.path != c.home)
}

// silentAtLocked returns when a request in flight shows that its node is silent.
func (c *Client) silentAtLocked(r *request) int64 {
	left := r.recovery.LeftAt()
	if left == 0 || !c.mayLeaveLocked(r) {
		return never
	}
	return max(left, r.path.heard.Load()) + max(silences*int64(c.options.ResendAfter), c.queued.objective)
}

// leaveLocked goes on to another node, with all requests that are in flight at this one.
func (c *Client) leaveLocked(p *path) {
	if c.away == p {
		c.away = nil
	}
	for at, tries := slices.Index(c.given, p.to), 1; c.home == p && tries < len(c.given); tries++ {
		if next, err := c.openLocked(c.given[(at+tries)%len(c.given)]); err == nil {
			c.home = next
		}
	}
	for r, before := c.flying.tail, (*request)(nil); r != nil; r = before {
		before = r.links[stageList].prev
		if r.path == p && r.hops < maxHops {
			c.queueAgainLocked(r)
		}
	}
}

// queueAgainLocked makes a request in flight wait for credit again, before those that were not sent.
func (c *Client) queueAgainLocked(r *request) {
	c.landLocked(r)
	if !r.probe {
		r.path.credit.recordUnanswered()
	}
	r.flying, r.probe, r.needsToken, r.path = false, false, false, nil
	r.next, r.resend.left, r.proof = 0, 0, proof{}
	clear(r.resend.bits)
	r.answer = answer{bytes: r.answer.bytes, present: r.answer.present}
	r.hops++
	c.queued.pushFront(r)
	c.queued.checkAt = 0
}
