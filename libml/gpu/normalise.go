package gpu

import "math"

// The kernel's kinds of normalisation, as in gather.cu.
const (
	noNormalisation = 0
	divide          = 1
	multiply        = 2
)

// byMultiplying checks whether (v - mean) / std can be computed without a division,
// bit for bit, for each v from 0 to 255. It multiplies by the inverse of std,
// computes the remainder, and adds the remainder's part. That nearly always works
// (Markstein, IBM Journal of Research and Development 34, 1990); byMultiplying tests
// it.
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
	// The exact rounding error of the sum (Knuth).
	part := sum - product
	lost := (product - (sum - part)) + (addend - part)
	// Round to odd, so that a second rounding to fewer bits gives the same result as
	// a single one.
	if bits := math.Float64bits(sum); lost != 0 && bits&1 == 0 {
		if (lost > 0) == (sum > 0) {
			sum = math.Float64frombits(bits + 1)
		} else {
			sum = math.Float64frombits(bits - 1)
		}
	}
	return float32(sum)
}
