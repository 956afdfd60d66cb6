//go:build !dpdk || !cgo

package bench

import (
	"context"

	"github.com/penstock/penstock/datapath/dpdk"
)

// RunIngestDPDK needs a build with DPDK.
func RunIngestDPDK(context.Context, DPDKOptions) (IngestDPDK, error) {
	return IngestDPDK{}, dpdk.ErrNotBuilt
}
