package wire

// SerialBefore reports whether request id a was given out before b, counting
// round the wrap as RFC 1982 section 3.2 does with 32-bit serial numbers. Of
// two ids that lie exactly 2^31 apart, which the RFC leaves undefined, neither
// is before the other.
func SerialBefore(a, b uint32) bool {
	distance := b - a
	return distance != 0 && distance < 1<<31
}
