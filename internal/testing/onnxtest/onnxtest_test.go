package onnxtest

import "testing"

func TestFarRows(t *testing.T) {
	want := []float32{1, 2, 3, 4, 5, 6}
	for _, c := range []struct {
		name string
		n    int
		got  []float32
		far  int
	}{
		{"equal", 3, []float32{1, 2, 3, 4, 5, 6}, 0},
		{"one value of a row", 3, []float32{1, 2, 30, 4, 5, 6}, 1},
		{"both values of a row", 3, []float32{1, 2, 30, 40, 5, 6}, 1},
		{"two rows", 3, []float32{10, 2, 3, 4, 5, 60}, 2},
		{"within the tolerance", 2, []float32{1.01, 2, 3, 4, 5, 6}, 0},
	} {
		if far := farRows(c.n, want, c.got, 0.02); far != c.far {
			t.Errorf("%s: %d rows, want %d", c.name, far, c.far)
		}
	}
	if !isIndex(want) || isIndex([]float32{1, 0.5}) {
		t.Error("whole numbers are indices, and others are not")
	}
}
