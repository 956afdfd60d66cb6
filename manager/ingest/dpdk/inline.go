//go:build dpdk && cgo

package dpdk

import (
	"fmt"
	"net/netip"

	"github.com/penstock/penstock/manager/ingest/dpdk/frame"
	"github.com/penstock/penstock/shm"
)

// Inline stops the lcore that polls, runs f on it, and lets it poll again. Meanwhile
// poll does what it did, that many turns, and drain receives bursts of the first
// queue and frees them, which is the floor; read reads each frame's headers, too. A
// benchmark measures with them what a datagram costs on one core. The group has one queue.
func (g *Group) Inline(f func(poll func(turns int), drain, read func(turns int) uint64)) error {
	if len(g.pollers) != 1 {
		return fmt.Errorf("run on a polling core: %d poll this port, want 1", len(g.pollers))
	}
	return g.pollers[0].Do(func(turns func(int)) {
		f(turns, func(turns int) uint64 { return g.device.Drain(0, turns) },
			func(turns int) uint64 { return g.device.DrainRead(0, turns) })
	})
}

// MAC is the port's Ethernet address.
func (g *Group) MAC() [6]byte { return g.face.Load().host.MAC }

// Link reports whether the port's link is up now.
func (g *Group) Link() bool {
	g.mu.Lock() // a device that comes and goes does so under it
	defer g.mu.Unlock()
	up, _ := g.device.Link()
	return up
}

// Know notes the way to a machine that has said nothing yet: for whoever sends first.
func (g *Group) Know(addr netip.Addr, mac [6]byte) {
	g.table.Learn(addr, &frame.Link{Peer: mac, Own: g.face.Load().host.MAC}, shm.Now())
}

// MACOf is the Ethernet address of a net_memif or net_tap port whose first address is own.
func MACOf(own netip.Addr) [6]byte { return [6]byte(stableMAC(own)) }
