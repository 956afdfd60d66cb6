//go:build !dpdk || !cgo

package bench

import (
	"context"

	"github.com/penstock/penstock/datapath/dpdk"
)

// RunDPDKNode needs a build with DPDK.
func RunDPDKNode(context.Context, DPDKNodeOptions) (DPDKNode, error) {
	return DPDKNode{}, dpdk.ErrNotBuilt
}
