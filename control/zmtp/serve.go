package zmtp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/go-zeromq/zmq4"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/unixsock"
)

// maxConnections is the max number of peers of an endpoint. Others are closed, and try again.
const maxConnections = 64

// socketMode is the mode of an ipc address: the user and the group of the process may connect.
const socketMode = 0o660

// ParseAddress returns the network and the place of an address of ZeroMQ that only this machine
// reaches. Peers are not authenticated: ZMTP has only its NULL mechanism here.
func ParseAddress(address string) (network, place string, err error) {
	if path, ok := strings.CutPrefix(address, "ipc://"); ok && filepath.IsAbs(path) && len(path) <= unixsock.MaxPath {
		return "unix", path, nil
	}
	host, ok := strings.CutPrefix(address, "tcp://")
	if at, err := netip.ParseAddrPort(host); ok && err == nil && at.Addr().IsLoopback() {
		return "tcp", host, nil
	}
	return "", "", fmt.Errorf("is %q, want ipc:///PATH of at most %d bytes, or tcp://127.0.0.1:PORT; other machines need a tunnel, like ssh -L", address, unixsock.MaxPath)
}

// Listen listens on an address. It removes the socket file of a process that was killed.
func Listen(address string) (net.Listener, error) {
	network, place, err := ParseAddress(address)
	if err != nil {
		return nil, fmt.Errorf("listen for ZeroMQ: address %w", err)
	}
	var l net.Listener
	if network == "unix" {
		l, err = unixsock.Listen(network, place, socketMode)
	} else {
		l, err = net.Listen(network, place)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for ZeroMQ: %w", err)
	}
	return l, nil
}

// Serve accepts peers until l is closed, as a socket of the type own. handle has one goroutine per
// peer, and returns why the connection ends. When ctx ends, Serve closes l and all connections. It
// returns when all have ended.
func Serve(ctx context.Context, l net.Listener, own zmq4.SocketType, limits Limits, log zerolog.Logger, handle func(*Conn) error) {
	var mu sync.Mutex
	last := "" // why a connection ended; peers connect again, and each reason is logged once
	note := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		normal := slices.ContainsFunc([]error{io.EOF, net.ErrClosed, syscall.EPIPE, syscall.ECONNRESET}, func(end error) bool { return errors.Is(err, end) })
		if err != nil && !normal && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			log.Warn().Err(err).Msg("peer of ZeroMQ disconnected")
		}
	}
	failed := func(err error) { note(fmt.Errorf("accept peer: %w", err)) }
	unixsock.Serve(ctx, l, maxConnections, failed, func(c net.Conn) {
		defer c.Close()
		z, err := Open(c, own, true, limits)
		if err == nil {
			err = handle(z)
		}
		note(err)
	})
}
