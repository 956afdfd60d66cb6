// Package confidence says how well a mean is known: the 95 % confidence interval of
// independent measurements, by Student's t.
package confidence

import "math"

// Mean is the mean of independent samples and half the width of its 95 % confidence
// interval; infinite for a single sample. There is at least one.
func Mean(samples []float64) (mean, half float64) {
	for _, s := range samples {
		mean += s
	}
	n := float64(len(samples))
	mean /= n
	if len(samples) < 2 {
		return mean, math.Inf(1)
	}
	var squares float64
	for _, s := range samples {
		squares += (s - mean) * (s - mean)
	}
	return mean, studentT(len(samples)-1) * math.Sqrt(squares/(n-1)/n)
}

// studentT is the 0.975 quantile of Student's t distribution: the tabulated values,
// and from 30 degrees of freedom on the first terms of its expansion about the normal
// distribution's (Abramowitz and Stegun 26.7.5), which is right to three digits there.
func studentT(degrees int) float64 {
	table := [...]float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
		2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
		2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045}
	if degrees <= len(table) {
		return table[degrees-1]
	}
	const z = 1.959964
	const z3, z5 = z * z * z, z * z * z * z * z
	n := float64(degrees)
	return z + (z3+z)/(4*n) + (5*z5+16*z3+3*z)/(96*n*n)
}
