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

// Accept reports whether a datagram is for the host (OK), for another machine
// (ForeignAddress), or claims to come from the host itself (BadSource).
func (h *Host) Accept(d *Datagram) Reason {
	switch {
	case d.Link.Own != h.MAC, !h.has(d.To.Addr()):
		return ForeignAddress
	case h.has(d.From.Addr()):
		return BadSource
	}
	return OK
}

func (h *Host) has(addr netip.Addr) bool { return slices.Contains(h.Addresses, addr) }
