package replay

import "math"

// student are the 97.5 % quantiles of Student's t for 1 degree of freedom on.
var student = [...]float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
	2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
	2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042}

// meanAndHalf is the mean of independent runs and half of its 95 % interval;
// infinite for a single run. Requests of one run are not independent (who waits
// makes others wait), runs are: so the interval is taken over runs.
func meanAndHalf(x []float64) (mean, half float64) {
	for _, v := range x {
		mean += v
	}
	mean /= float64(len(x))
	if len(x) < 2 {
		return mean, math.Inf(1)
	}
	var squares float64
	for _, v := range x {
		squares += (v - mean) * (v - mean)
	}
	free := len(x) - 1
	// Beyond the table t is within 4 % of its last.
	t := student[min(free, len(student))-1]
	return mean, t * math.Sqrt(squares/float64(free)/float64(len(x)))
}

// percentileMS is the nearest-rank percentile of ascending seconds, in
// milliseconds; 0 of none.
func percentileMS(ascending []float64, percent int) float64 {
	if len(ascending) == 0 {
		return 0
	}
	rank := (len(ascending)*percent + 99) / 100
	return 1000 * ascending[max(rank, 1)-1]
}
