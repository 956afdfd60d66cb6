package decode

import (
	"encoding/binary"
	"math"
)

// Most scores of a picture are below the threshold: a detector of 640 x 640 pixels and 80 classes has 672,000, of which
// a few hundred are not. So a scan compares bits, four pairs of scores at a time. A float that is no less than a
// positive one has no smaller bits.

// above finds scores of at least a threshold.
type above struct {
	bits     uint32 // of a positive threshold, else 0
	negative uint32 // the bits of a negative threshold or -0, else 0
	add      uint64 // adding it sets the highest bit of a half that is at least bits
}

const (
	// signs are the highest bits of two scores.
	signs = 1<<63 | 1<<31
	// negativeInfinity is the smallest of the bits of negative values that are not finite.
	negativeInfinity = 0xff800000
)

func newAbove(threshold float32) (a above) {
	if threshold > 0 {
		a.bits = math.Float32bits(threshold)
	} else {
		a.negative = math.Float32bits(threshold) | 1<<31
	}
	a.add = uint64(1<<31-a.bits) * (1<<32 | 1)
	return a
}

// next returns the place of the first score from place n on that is at least the threshold or not finite. It returns the number
// of scores if there is none.
func (a above) next(scores []byte, n int) int {
	count := len(scores) / 4
	for n < count {
		for ; n+8 <= count; n += 8 {
			block := (*[32]byte)(scores[4*n:])
			s, t := binary.LittleEndian.Uint64(block[0:]), binary.LittleEndian.Uint64(block[8:])
			u, v := binary.LittleEndian.Uint64(block[16:]), binary.LittleEndian.Uint64(block[24:])
			if (s|t|u|v|(s+a.add)|(t+a.add)|(u+a.add)|(v+a.add))&signs != 0 { // or one of them is negative
				break
			}
		}
		for end := min(n+8, count); n < end; n++ {
			b := binary.LittleEndian.Uint32(scores[4*n:])
			if b < 1<<31 && b >= a.bits || b >= 1<<31 && b <= a.negative || b >= negativeInfinity {
				return n
			}
		}
	}
	return count
}
