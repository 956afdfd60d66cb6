//go:build !linux

package client

import (
	"net"
	"time"
)

func newSocket(conn *net.UDPConn, _ *Options) (socket, error) { return newPlainSocket(conn), nil }

func nap(d time.Duration) { time.Sleep(d) }
