//go:build dpdk && cgo

package dpdk

import (
	"fmt"
	"net/netip"

	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/shm"
)

// Inline stops the polling lcore, runs f on it, and lets it poll again. f gets a function that
// does what the lcore does, that many turns. With it a benchmark measures what a datagram costs
// on one core. The group must have one queue.
func (g *Group) Inline(f func(poll func(turns int))) error {
	if len(g.pollers) != 1 {
		return fmt.Errorf("run on a polling core: %d poll this port, want 1", len(g.pollers))
	}
	return g.pollers[0].Do(f)
}

// MAC is the port's Ethernet address.
func (g *Group) MAC() [6]byte { return g.face.Load().host.MAC }

// Link reports whether the port's link is up now.
func (g *Group) Link() bool {
	g.mu.Lock() // a device leaves and returns under it
	defer g.mu.Unlock()
	up, _ := g.device.Link()
	return up
}

// Know records the path to a machine that has sent nothing yet, for a group that sends first.
func (g *Group) Know(addr netip.Addr, mac [6]byte) {
	g.table.Learn(addr, &frame.Link{Peer: mac, Own: g.face.Load().host.MAC}, netip.Addr{}, shm.Now())
}

// MACOf is the Ethernet address of a net_memif or net_tap port whose first address is own.
func MACOf(own netip.Addr) [6]byte { return [6]byte(stableMAC(own)) }
