// Package udp receives datagrams from a kernel UDP socket straight into a slab.
//
// The path of a datagram:
//
//  1. plan      free runs of the slab become the iovecs of a few messages, each
//     with room for the largest chain of datagrams that GRO makes
//  2. read      one recvmmsg, which does not wait; if there is nothing, ppoll on
//     the socket and an eventfd (Wake, Close) until the deadline
//  3. keep      the bytes that were written are held in the slab; the next read
//     receives into the rest of each run again
//  4. split     a chain is cut at the segment size that the kernel reports
//     (UDP_GRO); each datagram is one span, or two if it crosses runs
//  5. Release   from any goroutine, at any time
//
// While more arrives than Receive takes, a filter makes the kernel drop whole
// requests before step 1 (shed.go decides how many, filter.go which).
//
// After the kernel's copy out of the socket, nothing is copied, with one
// exception. A datagram that was received into three runs or more is joined: a
// jumbo in a fragmented slab. Nothing is allocated.
//
// Lock order: mu (held for reading by every call that uses the socket), then
// a sender's, then the slab's.
package udp
