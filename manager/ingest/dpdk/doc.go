// Package dpdk receives datagrams from an Ethernet port that DPDK owns. A Group is
// the port; each function's UDP port on it is a Source, and all share one slab:
// DPDK's own packet memory.
//
// The way of a datagram:
//
//  1. an EAL lcore takes a burst from a queue and sorts it by UDP port (package eal)
//  2. Source.Receive parses each frame (package frame), counts what is none of ours
//     by reason, and hands out where the payload lies in its mbuf
//  3. Release gives the mbufs back in bulk; nothing was copied
//  4. what no function's port takes (ARP, neighbour discovery, echo, strays) goes to
//     the group's own thread, which answers and counts
//
// Which queue a frame comes by does not matter to what is received: where the NIC
// takes rules (rte_flow), each UDP port has a queue, and so an lcore, of its own;
// else flows are spread by their hash (RSS), which keeps a client's datagrams in one
// queue; and what comes by another queue is sorted all the same. A function may have
// several sources (ListenSeveral): the pollers give each client's frames to one of them, by
// a hash of its address and port, so that no request is split.
//
// # When mbufs run low
//
// A source's datagrams hold their mbufs. When few are left, the source that holds
// the most, of the function whose sources do, returns from Receive with nothing and NoRoom
// raised, and its owner lets the function's oldest request that waits for pieces go. If that does not help within a
// millisecond, every source is asked.
//
// Lock order: Group.mu, then Source.mu, then a sender's.
package dpdk
