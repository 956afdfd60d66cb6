package frame

import (
	"net/netip"
	"slices"
)

// Host is a port's network identity: its Ethernet address and its few IP addresses.
type Host struct {
	MAC       MAC
	Addresses []netip.Addr
}

func (h *Host) has(addr netip.Addr) bool { return slices.Contains(h.Addresses, addr) }
