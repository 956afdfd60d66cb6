// Package dpdk receives datagrams from an Ethernet port that DPDK owns. A Group is the port.
// Each function's UDP port on it is a Source. All sources share one slab: DPDK's own packet
// memory.
//
// The path of a datagram:
//
//  1. an EAL lcore takes a burst from a queue and sorts it by UDP port (package eal)
//  2. Source.Receive parses each frame (package frame), counts foreign frames by reason,
//     and returns the payload's location in its mbuf
//  3. Release returns the mbufs in bulk; nothing was copied
//  4. frames for no function's port (ARP, neighbour discovery, echo, strays) go to the
//     group's own thread, which answers and counts them
//
// A frame is received correctly whichever queue it comes by. If the NIC accepts rules
// (rte_flow), each UDP port has its own queue, and so its own lcore. Otherwise the NIC
// spreads flows by their hash (RSS), which keeps a client's datagrams in one queue. Frames
// from any other queue are sorted in the same way. A function may have several sources
// (ListenSeveral). The pollers give each client's frames to one of them, by a hash of its
// address and port, so that no request is split.
//
// # When mbufs run low
//
// A source's datagrams hold their mbufs. When few are left, Receive returns nothing for one
// source and counts NoRoom. That is the source that holds the most, of the function whose
// sources hold the most. Its owner then evicts the function's oldest request that waits for
// fragments. If that does not help within a millisecond, every source is asked.
//
// Lock order: Group.mu, then Source.mu, then a sender's.
package dpdk
