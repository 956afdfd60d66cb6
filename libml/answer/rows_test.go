package answer

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

func encode(values ...float32) (data []byte) {
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return data
}

// learn returns a comparison of one output, with these answers to the samples alone.
func learn(t models.DType, alone [Samples][]float32, again []float32) *Rows {
	r := NewRows(&models.Card{Input: models.Input{TensorType: t}, Outputs: []models.Tensor{{Name: "y", Type: models.F32, Shape: []int64{int64(len(again))}}}})
	for _, a := range append(alone[:], again) {
		r.Learn([][]byte{encode(a...)})
	}
	return r
}

func TestCompare(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	labels := make([]float32, 100)
	for i := range labels {
		labels[i] = float32(i % 7)
	}
	other := slices.Repeat([]float32{9}, 100)
	flipped := slices.Clone(labels)
	flipped[3], flipped[50] = 0, 6
	plain := [Samples][]float32{{100, 1}, {50, 2}, {10, 3}}

	for name, c := range map[string]struct {
		dtype    models.DType
		alone    [Samples][]float32
		again    []float32
		together [Samples][]float32
		mixed    bool
	}{
		"equal":             {models.F32, plain, plain[0], plain, false},
		"f32 rounding":      {models.F32, plain, plain[0], [Samples][]float32{{100.01, 1.01}, {50, 2.01}, {10, 3}}, false},
		"others' answers":   {models.F32, plain, plain[0], [Samples][]float32{{50, 2}, {10, 3}, {100, 1}}, true},
		"a tenth of others": {models.F32, plain, plain[0], [Samples][]float32{{89, 1}, {40, 2}, {10, 3}}, true},
		"f16 rounding":      {models.F16, plain, plain[0], [Samples][]float32{{94, 1}, {47, 2}, {10, 3}}, false},
		"f16 mixed":         {models.F16, plain, plain[0], [Samples][]float32{{70, 1}, {20, 2}, {10, 3}}, true},
		"one flips":         {models.F32, plain, plain[0], [Samples][]float32{{1, 100}, {50, 2}, {10, 3}}, false},
		"labels flip":       {models.F32, [Samples][]float32{labels, other, labels}, labels, [Samples][]float32{flipped, other, flipped}, false},
		"labels mixed":      {models.F32, [Samples][]float32{labels, other, labels}, labels, [Samples][]float32{other, labels, labels}, true},
		"random":            {models.F32, plain, []float32{90, 1}, [Samples][]float32{{1, 1}, {2, 2}, {3, 3}}, false},
		"not numbers":       {models.F32, [Samples][]float32{{nan, inf}, {nan, inf}, {0, inf}}, []float32{nan, inf}, [Samples][]float32{{nan, inf}, {nan, inf}, {0, inf}}, false},
		"numbers to none":   {models.F32, plain, plain[0], [Samples][]float32{{nan, 1}, {50, nan}, {10, 3}}, true},
		"hardly different":  {models.F32, [Samples][]float32{{100, 1}, {100.001, 1}, {100, 1}}, []float32{100, 1}, [Samples][]float32{{100.01, 1}, {100.02, 1}, {100, 1}}, false},
		"constant":          {models.F32, [Samples][]float32{{0, 0}, {0, 0}, {0, 0}}, []float32{0, 0}, [Samples][]float32{{0, 0}, {0, 0}, {0, 0}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := learn(c.dtype, c.alone, c.again)
			err := r.Compare([][]byte{encode(slices.Concat(c.together[:]...)...)}, []int{0, 1, 2})
			if errors.Is(err, ErrMixed) != c.mixed || (err != nil) != c.mixed {
				t.Errorf("got %v, want mixed: %v", err, c.mixed)
			}
			if random := len(r.Random()) > 0; random != (name == "random") {
				t.Errorf("the output is random: %v", random)
			}
		})
	}
}

// Over all orders, each image has each sample, and each batch of two or more has different ones.
func TestPictures(t *testing.T) {
	for images := 1; images <= 64; images++ {
		for image := range images {
			seen := 0
			for order := range Samples {
				p := Pictures(order, images)
				seen |= 1 << p[image]
				if images > 1 && p[0] == p[1] {
					t.Errorf("%d images, order %d: %v", images, order, p)
				}
			}
			if seen != 1<<Samples-1 {
				t.Errorf("image %d of %d gets the samples %03b", image, images, seen)
			}
		}
	}
}

// Samples differ, also those of small pictures.
func TestSamples(t *testing.T) {
	for _, side := range []int{2, 4, 28, 224} {
		in := models.Input{Height: side, Width: side, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.CHW}
		var sums []int
		for k := range Samples {
			tensor, err := Sample(&models.Card{Input: in}, k)
			must.OK(t, err)
			sum := 0
			for _, v := range tensor {
				sum += int(v)
			}
			if mean := sum / len(tensor); slices.Contains(sums, mean) {
				t.Errorf("side %d: two samples have the mean %d", side, mean)
			}
			sums = append(sums, sum/len(tensor))
		}
	}
}
