package frame

// Reason says what Parse made of a frame: OK, or why it is no datagram for a port
// of ours. Those after BadSource are for whoever owns the port to give; all have a
// name, to count them by.
type Reason uint8

const (
	// OK is a UDP datagram.
	OK Reason = iota
	// ARP and ICMP (of either version) are for Responder.Answer.
	ARP
	ICMP
	// NotIP carries neither IPv4 nor IPv6.
	NotIP
	// NotUDP is IP with something else inside.
	NotUDP
	// Fragment is a piece of an IP packet. Datagrams are made to fit a frame.
	Fragment
	// Truncated ends before its headers say that it does.
	Truncated
	// BadHeader has lengths or versions that contradict each other.
	BadHeader
	// BadChecksum is damage, or a checksum that a virtual link left unfilled where
	// the Checks do not allow for that.
	BadChecksum
	// BadSource comes from an address that no answer can go to: a multicast,
	// broadcast, loopback or unspecified one, or port 0.
	BadSource

	// ForeignAddress is for another machine, ForeignPort for a UDP port that no
	// function has.
	ForeignAddress
	ForeignPort
	// Scattered lies in several buffers: it is larger than one of the port's.
	Scattered

	// Reasons is how many there are.
	Reasons
)

var reasonNames = [Reasons]string{
	OK: "ok", ARP: "arp", ICMP: "icmp", NotIP: "not_ip", NotUDP: "not_udp", Fragment: "fragment",
	Truncated: "truncated", BadHeader: "bad_header", BadChecksum: "bad_checksum", BadSource: "bad_source",
	ForeignAddress: "foreign_address", ForeignPort: "foreign_port", Scattered: "scattered",
}

// String is the reason's name in metrics: lower case, words joined by '_'.
func (r Reason) String() string {
	if r < Reasons {
		return reasonNames[r]
	}
	return "unknown"
}
