package replay

// percentileMS returns the nearest-rank percentile of ascending seconds, in
// milliseconds; 0 if there are none.
func percentileMS(ascending []float64, percent int) float64 {
	if len(ascending) == 0 {
		return 0
	}
	rank := (len(ascending)*percent + 99) / 100
	return 1000 * ascending[max(rank, 1)-1]
}
