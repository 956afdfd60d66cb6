//go:build dpdk && cgo

package dpdk

import "github.com/penstock/penstock/manager/ingest/dpdk/eal"

// Version is that of the DPDK in this program, empty where there is none.
func Version() string { return eal.Version() }
