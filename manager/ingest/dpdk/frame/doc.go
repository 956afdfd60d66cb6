// Package frame takes Ethernet frames apart and puts them together: what the
// kernel does for a UDP socket, for a port that DPDK owns. It has no I/O, no clock
// and no memory of its own, keeps nothing of the bytes it is given, and allocates
// nothing.
//
// The way of a frame:
//
//  1. Parse       Ethernet (802.1Q, 802.1ad), IPv4 or IPv6, UDP, and whether it is for
//     the port's Host: where the payload lies, who sent it and which way, or the
//     Reason why it is none of ours
//  2. Learn       the sender's address is reached the way that the frame came
//  3. Answer      what Parse called ARP or ICMP may want an answer (Responder)
//  4. PutUDP      a reply: back the way that was learned (Neighbours.Find)
//
// Rules are those of RFC 791 and 8200 (IP), 768 (UDP), 1071 (checksums), 826 and
// 5227 (ARP), 792 and 4443 (ICMP), 4861 (neighbour discovery), 3810 (multicast
// listeners), IEEE 802.1Q.
package frame
