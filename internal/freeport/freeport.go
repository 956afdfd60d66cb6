// Package freeport finds ports for programs that are started later.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
)

// The ports are below those that the kernel gives to sockets without a port (Linux's default is
// 32768 to 60999). So no such socket takes a port between Find and its use.
const (
	lowest = 20000
	pairs  = 6000
)

// found counts pairs, from a random one. So Find never repeats a port that a program of this
// process has not bound yet, and other processes are unlikely to try the same one.
var found atomic.Uint32

func init() { found.Store(rand.Uint32N(pairs)) }

// Find returns an even port of the loopback address. It is free for TCP and UDP, as is the next
// port: RTP and RTCP need such a pair.
func Find() (netip.AddrPort, error) {
	for range pairs {
		port := lowest + 2*uint16(found.Add(1)%pairs)
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
		switch err := errors.Join(try(at), try(netip.AddrPortFrom(at.Addr(), port+1))); {
		case err == nil:
			return at, nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return netip.AddrPort{}, fmt.Errorf("find a free port: %w", err)
		}
	}
	return netip.AddrPort{}, fmt.Errorf("find a free port: all from %d to %d are taken", lowest, lowest+2*pairs-1)
}

// try binds an address for a moment.
func try(at netip.AddrPort) error {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	l.Close()

	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	return c.Close()
}
