package check

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// port opens and closes the port of a function.
func port(c configs.Config, f configs.Function, running control.Status) (notes []string, err error) {
	if f.Port == 0 || f.Replay.File != "" || c.Source.DPDK != nil {
		return nil, nil
	}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: c.Listen.AsSlice(), Zone: c.Listen.Zone(), Port: int(f.Port)})
	if err == nil {
		return nil, conn.Close()
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		for _, has := range running.Functions {
			if has.Port == int(f.Port) && has.Replay == "" {
				return []string{fmt.Sprintf("port %d of %s: function %s of the node in %s uses it; configure another port", f.Port, f.Name, has.Name, c.RuntimeDir)}, nil
			}
		}
		return nil, fmt.Errorf("port %d is in use by another process; find it with ss -ulpn 'sport = :%d' and stop it, or configure another port", f.Port, f.Port)
	}
	return nil, fmt.Errorf("open UDP port: %w", err)
}

// httpAddress opens and closes the address of metrics and status; running says that a node with the
// same runtime folder may have it.
func httpAddress(c configs.Config, running bool) (notes []string, err error) {
	l, err := net.Listen("tcp", c.HTTP.String())
	switch {
	case err == nil:
		return nil, l.Close()
	case running && errors.Is(err, syscall.EADDRINUSE):
		return []string{fmt.Sprintf("http %s: in use, and a node runs in %s; configure another address", c.HTTP, c.RuntimeDir)}, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another process; find it with ss -ltnp 'sport = :%d' and stop it, or configure another address", c.HTTP, c.HTTP.Port())
	}
	return nil, err
}
