// Package frame parses and builds Ethernet frames. For a port that DPDK owns,
// it does what the kernel does for a UDP socket. It has no I/O and no clock,
// keeps none of the bytes it is given, and allocates nothing.
//
// The path of a frame:
//
//  1. Parse       Ethernet (802.1Q, 802.1ad), IPv4 or IPv6, UDP. It checks whether the
//     frame is for the port's Host. It returns the payload's location, the sender and
//     the path, or the Reason why the frame is foreign
//  2. Learn       the path that the frame came by is recorded for the sender's address
//  3. Answer      frames that Parse reported as ARP or ICMP may need an answer (Responder)
//  4. PutUDP      a reply, by the recorded path (Neighbours.Find)
//
// Rules are those of RFC 791 and 8200 (IP), 768 (UDP), 1071 (checksums), 826
// and 5227 (ARP), 792 and 4443 (ICMP), 4861 (neighbour discovery), 3810
// (multicast listeners), IEEE 802.1Q.
package frame
