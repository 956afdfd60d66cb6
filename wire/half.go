package wire

import "math"

// HalfToFloat widens an IEEE 754 binary16. Every value, including the NaNs'
// payloads, survives the conversion and its inverse.
func HalfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exponent, fraction := uint32(h>>10)&0x1f, uint32(h&0x3ff)
	switch exponent {
	case 0x1f: // infinity, NaN
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	case 0: // zero, subnormal: fraction * 2^-24, exact in f32
		f := float32(fraction) * 0x1p-24
		return math.Float32frombits(sign | math.Float32bits(f))
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}

// FloatToHalf rounds to the nearest binary16, ties to even; values that are too
// large become infinity.
func FloatToHalf(f float32) uint16 {
	bits := math.Float32bits(f)
	sign, magnitude := uint16(bits>>16)&0x8000, bits&0x7fffffff
	switch {
	case magnitude > 0x7f800000: // NaN: keep the payload's head, never make it infinity
		payload := uint16(magnitude>>13) & 0x3ff
		if payload == 0 {
			payload = 0x200
		}
		return sign | 0x7c00 | payload
	case magnitude >= 0x477ff000: // 65520 and more round to infinity
		return sign | 0x7c00
	case magnitude < 0x38800000: // below 2^-14: subnormal, in steps of 2^-24
		// Adding 0.5, whose last fraction bit is worth 2^-24, rounds there.
		sum := math.Float32frombits(magnitude) + 0.5
		return sign | uint16(math.Float32bits(sum)-math.Float32bits(0.5))
	}
	// Drop 13 bits: add just under half a step, and the last bit kept for ties.
	rounded := magnitude + 0xfff + magnitude>>13&1
	return sign | uint16((rounded-(127-15)<<23)>>13)
}
