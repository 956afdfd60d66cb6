// Package generate makes requests inside a port's receive call: what a NIC with an
// endless sender on its wire would bring, on a port of memory (net_null), for
// benchmarks. The frames have real headers, Ethernet to Penstock's own; each request
// is whole, its fragments are in order, and no two have the same id.
//
// It is a receive callback of DPDK's, so that whoever polls the port, a bare loop or a
// source, gets the same frames at the same cost, on its own core.
//
// It builds with the tag dpdk; without the tag it is empty.
package generate
