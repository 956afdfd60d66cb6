// Package udp receives datagrams from a kernel UDP socket straight into a slab.
//
// The way of a datagram:
//
//  1. plan      free runs of the slab become the iovecs of a few messages, each
//     with room for the largest chain of datagrams that GRO makes
//  2. read      one recvmmsg, which does not wait; where there is nothing, ppoll
//     on the socket and an eventfd (Wake, Close) until the deadline
//  3. keep      the bytes really written are held in the slab; the rest of each
//     run is received into again by the next read
//  4. split     a chain is cut at the segment size that the kernel tells
//     (UDP_GRO), each datagram a span, or two where it straddles runs
//  5. Release   from anywhere, at any time
//
// While more comes than Receive takes, a filter has the kernel drop whole requests before
// step 1 (shed.go decides how many, filter.go which).
//
// Nothing is copied after the kernel's copy out of the socket, but for a
// datagram that fell into three runs or more (a jumbo in a slab full of holes),
// which is joined; nothing is allocated.
//
// Lock order: mu (held for reading by every call that uses the socket), then
// a sender's, then the slab's.
package udp
