package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// runningNode is a node whose ports count as free.
type runningNode struct {
	dir      string // runtime folder; empty if there is no such node
	sameFile bool   // it runs with the configuration that is checked
	status   control.Status
}

// findRunning finds the node with the configuration's runtime folder, or a node that runs with the same
// file.
func findRunning(ctx context.Context, c configs.Config) runningNode {
	for _, dir := range append([]string{c.RuntimeDir}, control.Nodes()...) {
		status, err := control.ReadStatus(ctx, dir)
		if err != nil {
			continue
		}
		same := c.File != "" && status.Configuration.File == c.File
		if same || dir == c.RuntimeDir {
			return runningNode{dir, same, status}
		}
	}
	return runningNode{}
}

// port opens and closes the port of a function.
func port(c configs.Config, f configs.Function, running runningNode) (notes []string, err error) {
	if f.Port == 0 || c.Source.DPDK != nil {
		return nil, nil
	}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: c.Listen.AsSlice(), Zone: c.Listen.Zone(), Port: int(f.Port)})
	if err == nil {
		return nil, conn.Close()
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		for _, has := range running.status.Functions {
			switch {
			case has.Port != int(f.Port):
			case running.sameFile:
				return nil, nil
			default:
				return []string{fmt.Sprintf("port %d of %s: function %s of the node in %s uses it; configure another port", f.Port, f.Name, has.Name, running.dir)}, nil
			}
		}
		return nil, fmt.Errorf("port %d is in use by another process; find it with ss -ulpn 'sport = :%d' and stop it, or configure another port", f.Port, f.Port)
	}
	return nil, fmt.Errorf("open UDP port: %w", err)
}

// httpAddress opens and closes the address of metrics and status. A running node may have it.
func httpAddress(c configs.Config, running runningNode) (notes []string, err error) {
	l, err := net.Listen("tcp", c.HTTP.String())
	switch {
	case err == nil:
		return nil, l.Close()
	case running.sameFile && errors.Is(err, syscall.EADDRINUSE):
		return nil, nil
	case running.dir != "" && errors.Is(err, syscall.EADDRINUSE):
		return []string{fmt.Sprintf("http %s: in use, and a node runs in %s; configure another address", c.HTTP, running.dir)}, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another process; find it with ss -ltnp 'sport = :%d' and stop it, or configure another address", c.HTTP, c.HTTP.Port())
	}
	return nil, err
}
