//go:build dpdk && cgo

package dpdk

import "fmt"

// Inline stops the lcore that polls, runs f on it, and lets it poll again. Meanwhile
// poll does what it did, that many turns, and drain receives bursts of the first
// queue and frees them, which is the floor: a benchmark measures with them what a
// datagram costs on one core. The group has one queue.
func (g *Group) Inline(f func(poll func(turns int), drain func(turns int) uint64)) error {
	if len(g.pollers) != 1 {
		return fmt.Errorf("run on a polling core: %d poll this port, want 1", len(g.pollers))
	}
	return g.pollers[0].Do(func(turns func(int)) {
		f(turns, func(turns int) uint64 { return g.device.Drain(0, turns) })
	})
}

// MAC is the port's Ethernet address.
func (g *Group) MAC() [6]byte { return g.host.MAC }
