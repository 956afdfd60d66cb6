package decode

import (
	"encoding/binary"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func bytesOf(scores []float32) (b []byte) {
	for _, v := range scores {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// A scan finds the same scores as comparisons of floats.
func TestAbove(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.Float32Range(-2, 2), rapid.SampledFrom([]float32{
			0, float32(math.Copysign(0, -1)), 0.25, math.Nextafter32(0.25, 0), float32(math.Inf(1)), float32(math.Inf(-1)),
			float32(math.NaN()), math.Float32frombits(0xffc00000), math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32,
		}))
		scores := rapid.SliceOfN(value, 0, 40).Draw(t, "scores")
		threshold := rapid.SampledFrom([]float32{0.25, 1, math.SmallestNonzeroFloat32, 0, -1, -math.MaxFloat32, math.MaxFloat32, float32(math.Inf(-1))}).Draw(t, "threshold")
		a, raw := newAbove(threshold), bytesOf(scores)
		n := 0
		for i, v := range scores {
			if !(v >= threshold) && v-v == 0 {
				continue
			}
			if n = a.next(raw, n); n != i {
				t.Fatalf("found score %d, want %d: %v", n, i, v)
			}
			n++
		}
		if n = a.next(raw, n); n != len(scores) {
			t.Fatalf("found score %d of %v, want no more", n, scores)
		}
	})
}

// BenchmarkScan compares a scan of a detector's scores with a comparison of each.
func BenchmarkScan(b *testing.B) {
	scores := make([]byte, 4*8400*80)
	for i := range 300 {
		binary.LittleEndian.PutUint32(scores[4*i*2003:], math.Float32bits(0.9))
	}
	b.Run("above", func(b *testing.B) {
		a, found := newAbove(0.25), 0
		for b.Loop() {
			for n := a.next(scores, 0); n < len(scores)/4; n = a.next(scores, n+1) {
				found++
			}
		}
	})
	b.Run("each", func(b *testing.B) {
		found := 0
		for b.Loop() {
			for n := range len(scores) / 4 {
				if element(scores, n) >= 0.25 {
					found++
				}
			}
		}
	})
}
