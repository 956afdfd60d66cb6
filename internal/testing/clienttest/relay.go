// Package clienttest has the peers that a client is tested against. A Relay is
// a network that loses, repeats and delays datagrams on purpose. A Manager
// answers pictures as docs/wire.md specifies, without inference.
package clienttest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/wire"
)

// Faults say what happens to a datagram in transit. The faults are independent.
type Faults struct {
	// Lose, Repeat and Delay are probabilities, 0 to 1. A delayed datagram
	// arrives after up to MaxDelay, possibly after others that were sent later.
	Lose, Repeat, Delay float64
	MaxDelay            time.Duration
	// Drop, if not nil, drops the datagrams for which it returns true. One
	// goroutine per client and direction calls it.
	Drop func(datagram []byte) bool
	// Seed makes the faults repeatable, except for their dependence on the
	// order of arrival.
	Seed uint64
}

// SmallBuffer returns a Faults.Drop that has room for that many datagrams, and forwards one each 10 µs. It drops
// the rest of a longer burst, as a socket's receive buffer does.
func SmallBuffer(datagrams int) func([]byte) bool {
	const each = 10 * time.Microsecond
	empty := time.Now() // when the buffer is or was empty
	return func([]byte) bool {
		now := time.Now()
		if empty.Before(now) {
			empty = now
		}
		if empty.Sub(now) > time.Duration(datagrams)*each {
			return true
		}
		empty = empty.Add(each)
		return false
	}
}

// Relay forwards between clients and a manager, with its own port per client.
// The zero Faults forward everything.
type Relay struct {
	conn     *net.UDPConn
	to       netip.AddrPort
	up, down Faults
	// Lost, Repeated and Delayed count in both directions.
	Lost, Repeated, Delayed atomic.Uint64

	loops sync.WaitGroup
	mu    sync.Mutex // guards below
	links map[netip.AddrPort]*net.UDPConn
	end   bool
}

// NewRelay listens on a port of 127.0.0.1. It forwards datagrams to a manager,
// with the faults in up, and the answers back, with the faults in down. The
// caller closes it.
func NewRelay(to netip.AddrPort, up, down Faults) (*Relay, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		return nil, fmt.Errorf("open relay: %w", err)
	}
	_ = conn.SetReadBuffer(4 << 20) // the kernel grants what it allows
	r := &Relay{conn: conn, to: to, up: up, down: down, links: make(map[netip.AddrPort]*net.UDPConn)}
	r.loops.Add(1)
	go func() {
		defer r.loops.Done()
		r.listen()
	}()
	return r, nil
}

// Addr returns the address that clients send to.
func (r *Relay) Addr() netip.AddrPort { return r.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// Close drops datagrams in transit and returns when its goroutines have ended.
func (r *Relay) Close() {
	r.mu.Lock()
	r.end = true
	r.conn.Close()
	for _, link := range r.links {
		link.Close()
	}
	r.mu.Unlock()
	r.loops.Wait()
}

func (r *Relay) listen() {
	random := rand.New(rand.NewPCG(r.up.Seed, 1))
	b := make([]byte, 64<<10)
	for {
		n, from, err := r.conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		link := r.link(from)
		if link == nil {
			continue
		}
		r.pass(&r.up, random, b[:n], func(d []byte) { _, _ = link.Write(d) })
	}
}

// link returns the socket that represents a client, or nil if none can be
// opened.
func (r *Relay) link(client netip.AddrPort) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if link := r.links[client]; link != nil || r.end {
		return link
	}
	link, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(r.to))
	if err != nil {
		return nil
	}
	_ = link.SetReadBuffer(4 << 20)
	r.links[client] = link
	r.loops.Add(1)
	go func() {
		defer r.loops.Done()
		random := rand.New(rand.NewPCG(r.down.Seed, uint64(client.Port())))
		b := make([]byte, 64<<10)
		for {
			n, err := link.Read(b)
			if err != nil {
				r.mu.Lock()
				end := r.end
				r.mu.Unlock()
				if end {
					return
				}
				continue // no process listens on the manager's port at the moment
			}
			r.pass(&r.down, random, b[:n], func(d []byte) { _, _ = r.conn.WriteToUDPAddrPort(d, client) })
		}
	}()
	return link
}

// pass forwards a datagram once, twice, later, or not at all.
func (r *Relay) pass(f *Faults, random *rand.Rand, b []byte, send func([]byte)) {
	if f.Drop != nil && f.Drop(b) || random.Float64() < f.Lose {
		r.Lost.Add(1)
		return
	}
	if random.Float64() < f.Repeat {
		r.Repeated.Add(1)
		send(b)
	}
	if random.Float64() >= f.Delay {
		send(b)
		return
	}
	r.Delayed.Add(1)
	late := append([]byte(nil), b...)
	r.loops.Add(1)
	time.AfterFunc(time.Duration(random.Float64()*float64(f.MaxDelay)), func() {
		defer r.loops.Done()
		send(late)
	})
}

// DropOnce returns a Faults.Drop that drops the first transmission of each
// fragment with that index.
func DropOnce(index uint16) func([]byte) bool {
	return func(b []byte) bool {
		h, err := wire.DecodeHeader(b)
		return err == nil && h.Type == wire.TypeData && h.Index == index && h.Flags&wire.FlagRetransmitted == 0
	}
}
