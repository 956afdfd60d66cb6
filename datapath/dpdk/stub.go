//go:build !dpdk || !cgo

package dpdk

import "github.com/penstock/penstock/datapath/ingest"

// Group is a port with the sources that share it. Without DPDK there is none.
type Group struct{}

// Open returns ErrNotBuilt.
func Open(Options) (*Group, error) { return nil, ErrNotBuilt }

// Listen opens a function's UDP port as several sources.
func (*Group) Listen(uint16, int) ([]*Source, error) { return nil, ErrNotBuilt }

// Queues is the number of the port's receive queues.
func (*Group) Queues() int { return 0 }

// Stats reads the counters.
func (*Group) Stats() GroupStats { return GroupStats{} }

// Close closes the port. Its sources must be closed.
func (*Group) Close() error { return nil }

// Source is a function's part of a Group.
type Source struct{ ingest.Source }

// CloseSlab gives up the memory, after Close.
func (*Source) CloseSlab() error { return nil }
