package confidence

import (
	"math"
	"testing"
)

func TestStudentsT(t *testing.T) {
	for degrees, want := range map[int]float64{1: 12.706, 4: 2.776, 29: 2.045, 30: 2.042, 60: 2.000, 120: 1.980} {
		if got := studentT(degrees); math.Abs(got-want) > 0.0015 {
			t.Errorf("%d degrees: %.4f, want %.3f", degrees, got, want)
		}
	}
}

func TestMean(t *testing.T) {
	if mean, half := Mean([]float64{9, 10, 11}); mean != 10 || math.Abs(half-4.303/math.Sqrt(3)) > 1e-9 {
		t.Errorf("9, 10, 11: %g ± %g", mean, half)
	}
	if mean, half := Mean([]float64{7, 7}); mean != 7 || half != 0 {
		t.Errorf("7, 7: %g ± %g", mean, half)
	}
	if mean, half := Mean([]float64{1}); mean != 1 || !math.IsInf(half, 1) {
		t.Errorf("a single sample: %g ± %g", mean, half)
	}
}
