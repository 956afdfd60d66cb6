//go:build !linux

package client

import (
	"net"
	"time"
)

func newSocket(conn *net.UDPConn, o *Options) (socket, error) { return newPlainSocket(conn, o), nil }

func nap(d time.Duration) { time.Sleep(d) }
