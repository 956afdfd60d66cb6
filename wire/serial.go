package wire

// SerialBefore reports whether request id a was given out before b. It handles
// the wrap like RFC 1982 section 3.2 for 32-bit serial numbers. The RFC does
// not define the order of two ids exactly 2^31 apart; here neither is before
// the other.
func SerialBefore(a, b uint32) bool {
	distance := b - a
	return distance != 0 && distance < 1<<31
}
