package sampling

import "math"

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
// row's limit are those at its ends. With area, a result is the mean of what it covers, as OpenCV's INTER_AREA; else it is
// between the two pixels next to its centre (INTER_LINEAR).
func newAxis(begin, length float64, count, limit int, area bool, bits uint) *axis {
	a := &axis{per: 2}
	step := length / float64(count)
	if area = area && step > 1; area {
		a.per = int(math.Ceil(step)) + 1
	}
	taps := make([]float64, a.per)
	starts := make([]int, count)
	for i := range count {
		starts[i] = linearTaps(taps, begin+(float64(i)+0.5)*step-0.5, limit)
		if area {
			starts[i] = areaTaps(taps, begin+float64(i)*step, begin+float64(i+1)*step, limit)
		}
		a.weights = append(a.weights, integers(taps, bits)...)
	}
	for _, start := range starts {
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

// linearTaps sets the weights of two pixels, and returns the first.
func linearTaps(taps []float64, centre float64, limit int) int {
	clear(taps)
	first := int(math.Floor(centre))
	fraction := centre - float64(first)
	switch {
	case first < 0:
		first, fraction = 0, 0
	case first >= limit-1:
		first, fraction = limit-1, 0
	}
	taps[0], taps[1] = 1-fraction, fraction
	return first
}

// areaTaps sets the weights of the pixels from begin to end, and returns the first.
func areaTaps(taps []float64, begin, end float64, limit int) int {
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
