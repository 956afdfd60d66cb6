package frame

// Reason is the result of Parse: OK, or why the frame is not a datagram for one
// of our ports. The port's owner sets those after BadSource. All have a name
// for counters.
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
	// Fragment is a fragment of an IP packet. Clients make datagrams that fit
	// one frame.
	Fragment
	// Truncated frames end before the length in their headers.
	Truncated
	// BadHeader means that lengths or versions contradict each other.
	BadHeader
	// BadChecksum means damage, or a checksum that a virtual link left unfilled
	// although the Checks do not allow that.
	BadChecksum
	// BadSource means that no answer can go to the sender: a multicast,
	// broadcast, loopback or unspecified address, or port 0.
	BadSource

	// ForeignAddress means that the frame is for another machine, ForeignPort
	// that no function has its UDP port.
	ForeignAddress
	ForeignPort
	// Scattered frames use several buffers: they are larger than one of the
	// port's.
	Scattered

	// Reasons is the number of reasons.
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
