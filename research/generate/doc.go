// Package generate makes requests inside a port's receive call, for benchmarks. The
// port is one of memory (net_null). It then behaves like a NIC whose link always has
// more packets. The frames have real headers, from Ethernet to Penstock's own. Each
// request is complete, its fragments are in order, and no two requests have the same
// id.
//
// The package is a receive callback of DPDK. A bare loop and a source that poll the
// port therefore get the same frames at the same cost, on their own core.
//
// It builds with the tag dpdk; without the tag it is empty.
package generate
