//go:build dpdk && cgo

package dpdk

// #cgo pkg-config: libdpdk
// #include <rte_version.h>
import "C"

// Version is the version of DPDK that this program runs with, as "DPDK 22.11.11"; empty without
// DPDK.
func Version() string { return C.GoString(C.rte_version()) }
