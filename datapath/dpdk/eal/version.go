//go:build dpdk && cgo

package eal

// #include <rte_version.h>
import "C"

// Version is the version of DPDK that this program runs with, as "DPDK
// 22.11.11".
func Version() string { return C.GoString(C.rte_version()) }
