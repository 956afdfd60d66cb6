package sampling

import (
	"math"
	"slices"
)

// axis says which pixels of a row (or which rows of a picture) a row of the tensor depends on, and how much.
type axis struct {
	// at are the pixels that are read, ascending.
	at []int32
	// first is, for each result, the index in at of its first pixel. The others follow.
	first []int32
	// weights has per weights for each result. They add up to one, as an integer of as many bits as newAxis was given.
	weights []uint32
	per     int
}

// newAxis interpolates count results from the part of a row that begins at begin and is length long. Pixels beyond the
// row's limit do not exist. A result is the mean of a box around its centre. With area the box is what the result covers, as
// OpenCV's INTER_AREA. Otherwise, and if it covers less than a pixel, the box is one pixel long: the weights are INTER_LINEAR's.
func newAxis(begin, length float64, count, limit int, area bool, bits uint) *axis {
	a := &axis{per: 2}
	step, box := length/float64(count), 1.0
	if area && step > 1 {
		box = step
		a.per = int(math.Ceil(step)) + 1
	}
	taps := make([]float64, a.per)
	starts, weights, used := make([]int, count), make([][]uint32, count), 1
	for i := range count {
		centre := begin + (float64(i)+0.5)*step
		starts[i] = overlaps(taps, centre-box/2, centre+box/2, limit)
		weights[i] = integers(taps, bits)
		for used < a.per && slices.ContainsFunc(weights[i][used:], func(w uint32) bool { return w != 0 }) {
			used++
		}
	}
	a.per = used // with a step of 3 the second of two weights is always 0
	for i, start := range starts {
		a.weights = append(a.weights, weights[i][:a.per]...)
		// The pixels of the next result begin at this one's or later, so each is added once.
		next := 0
		if n := len(a.at); n > 0 {
			next = int(a.at[n-1]) + 1
		}
		for at := max(start, next); at < start+a.per; at++ {
			a.at = append(a.at, int32(at))
		}
		a.first = append(a.first, int32(len(a.at)-int(a.at[len(a.at)-1])-1+start))
	}
	for i := range a.at {
		a.at[i] = min(a.at[i], int32(limit-1)) // it has no weight
	}
	return a
}

// overlaps sets the weights of the pixels from begin to end, and returns the first.
func overlaps(taps []float64, begin, end float64, limit int) int {
	clear(taps)
	begin, end = max(begin, 0), min(end, float64(limit))
	first := min(int(begin), limit-1)
	for i := range taps {
		low, high := max(begin, float64(first+i)), min(end, float64(first+i+1))
		taps[i] = max(high-low, 0) / max(end-begin, 1e-9)
	}
	return first
}

// integers returns weights as integers that add up to 1 << bits. An error of one is made up for by the next.
func integers(taps []float64, bits uint) []uint32 {
	out := make([]uint32, len(taps))
	sum, before := 0.0, uint32(0)
	for i, w := range taps {
		sum += w
		until := uint32(math.Round(sum * float64(uint32(1)<<bits)))
		out[i], before = until-before, until
	}
	return out
}

// interpolate sets the results of a row from its pixels that are read.
func (a *axis) interpolate(to, pixels []uint64) {
	to = to[:len(a.first)]
	switch a.per {
	case 1:
		weights := a.weights[:len(a.first)]
		for x, first := range a.first {
			to[x] = pixels[first] * uint64(weights[x])
		}
	case 2:
		for x, first := range a.first {
			pair, weights := pixels[first:][:2], a.weights[2*x:][:2]
			to[x] = pair[0]*uint64(weights[0]) + pair[1]*uint64(weights[1])
		}
	default:
		for x, first := range a.first {
			sum := uint64(0)
			for i, weight := range a.weights[x*a.per:][:a.per] {
				sum += pixels[int(first)+i] * uint64(weight)
			}
			to[x] = sum
		}
	}
}
