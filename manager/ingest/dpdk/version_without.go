//go:build !dpdk || !cgo

package dpdk

// Version is that of the DPDK in this program, empty where there is none.
func Version() string { return "" }
