package gpu

import "math"

// How the kernel normalises, as gather.cu has it.
const (
	asItIs   = 0
	divide   = 1
	multiply = 2
)

// byMultiplying says whether (v - mean) / std can be had without a division for each
// v from 0 to 255, bit for bit: by a multiplication with the inverse of std, what
// that leaves over, and its share of it. It nearly always can (Markstein, IBM Journal
// of Research and Development 34, 1990); here it is seen.
func byMultiplying(mean, std float32) (inverse float32, ok bool) {
	inverse = 1 / std
	for v := range 256 {
		f := float32(v) - mean
		q := f * inverse
		got := fma(fma(-q, std, f), inverse, q)
		if math.Float32bits(got) != math.Float32bits(f/std) {
			return 0, false
		}
	}
	return inverse, true
}

// fma is a * b + c, rounded once.
func fma(a, b, c float32) float32 {
	product, addend := float64(a)*float64(b), float64(c) // exact
	sum := product + addend
	// What rounding the sum has lost, exactly (Knuth).
	part := sum - product
	lost := (product - (sum - part)) + (addend - part)
	// Rounded to odd, so that rounding again to fewer bits is as if it were the first
	// time.
	if bits := math.Float64bits(sum); lost != 0 && bits&1 == 0 {
		if (lost > 0) == (sum > 0) {
			sum = math.Float64frombits(bits + 1)
		} else {
			sum = math.Float64frombits(bits - 1)
		}
	}
	return float32(sum)
}
