// Package eal is what Penstock takes of DPDK 22.11: the environment (EAL), packet
// memory, Ethernet ports, and a loop that polls them. It builds with the tag dpdk
// and Debian's libdpdk-dev; without the tag it is empty.
//
// EAL, pools and rings are github.com/yerden/go-dpdk's. Its Ethernet part does not
// compile against 22.11, so that part is one C file, shim.c, with a face in Go.
//
// The way of a frame, until Go sees it:
//
//  1. poll      an EAL lcore, pinned, stays in C: a burst of up to 64 mbufs from
//     each of its queues, for ever, or until Poller.Stop
//  2. classify  by UDP destination port: whose Sink it is. What is no plain UDP
//     datagram for somebody's port goes to the first sink (Control)
//  3. hand over an Entry (where the frame lies, how long it is) goes into a ring of
//     one producer and one consumer; a consumer that sleeps is woken once a burst
//  4. Sink.Take Go reads entries; the frames stay where they are
//  5. Pool.Free mbufs go back in bulk, from any thread
//
// Memory is one file, whose first byte is offset 0 of every span (Memory).
package eal
