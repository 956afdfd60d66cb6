// Package eal wraps the part of DPDK 22.11 that Penstock uses: the environment
// (EAL), packet memory, Ethernet ports, and a loop that polls them. It builds
// with the tag dpdk and Debian's libdpdk-dev. Without the tag it is empty.
//
// EAL, pools and rings come from github.com/yerden/go-dpdk. Its Ethernet part
// does not compile against 22.11, so that part is one C file, shim.c, behind a
// Go interface.
//
// The path of a frame, until Go sees it:
//
//  1. poll      a pinned EAL lcore stays in C: it takes a burst of up to 64 mbufs from
//     each of its queues, until Poller.Stop
//  2. classify  the UDP destination port selects the Sink. A frame that is not a plain
//     UDP datagram for a function's port goes to the first sink (Control)
//  3. hand over an Entry (the frame's location and length) goes into a ring of one
//     producer and one consumer; a sleeping consumer is woken once per burst
//  4. Sink.Take Go reads entries; the frames stay in place
//  5. Pool.Free mbufs return in bulk, from any thread
//
// Memory is one file, whose first byte is offset 0 of every span (Memory).
package eal
