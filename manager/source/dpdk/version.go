//go:build dpdk && cgo

package dpdk

import "github.com/penstock/penstock/manager/source/dpdk/eal"

// Version is that of the DPDK in this program, empty where there is none.
func Version() string { return eal.Version() }
