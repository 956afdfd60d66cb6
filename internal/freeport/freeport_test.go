package freeport

import (
	"net"
	"net/netip"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestFind(t *testing.T) {
	first, err := Find()
	must.OK(t, err)
	second, err := Find()
	if err != nil || second == first {
		t.Errorf("the second call returned %v, %v; the first %v", second, err, first)
	}
	if first.Port()%2 != 0 || second.Port()%2 != 0 {
		t.Errorf("found %v and %v, want even ports", first, second)
	}
}

func TestFindSkipsTakenPorts(t *testing.T) {
	for _, c := range []struct {
		name, network string
		offset        uint16
	}{
		{"TCP", "tcp", 0},
		{"UDP", "udp", 0},
		{"TCP of the odd port", "tcp", 1},
		{"UDP of the odd port", "udp", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, err := Find()
			must.OK(t, err)
			taken := netip.AddrPortFrom(at.Addr(), at.Port()+c.offset).String()
			switch c.network {
			case "tcp":
				l, err := net.Listen("tcp", taken)
				must.OK(t, err)
				defer l.Close()
			case "udp":
				l, err := net.ListenPacket("udp", taken)
				must.OK(t, err)
				defer l.Close()
			}

			found.Add(^uint32(0)) // Find tries the same pair first
			if got, err := Find(); err != nil || got == at {
				t.Errorf("found %v, %v; it is taken", got, err)
			}
		})
	}
}
