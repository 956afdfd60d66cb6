//go:build dpdk && cgo

package dpdk

import "github.com/penstock/penstock/datapath/dpdk/eal"

// Version is the version of DPDK in this program, empty without DPDK.
func Version() string { return eal.Version() }
