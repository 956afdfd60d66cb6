//go:build !dpdk || !cgo

package dpdk

// Version is the version of DPDK in this program, empty without DPDK.
func Version() string { return "" }
