package answer

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/models"
)

func TestDistance(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		want, got []float32
		near      bool
	}{
		{[]float32{0.5, 0.25}, []float32{0.5, 0.25}, true},
		{[]float32{0.5, 0.25}, []float32{0.4, 0.3}, true},
		{[]float32{0.5, 0.25}, []float32{0.25, 0.5}, false},
		{[]float32{100, 1}, []float32{101, 20}, true},
		{[]float32{0.5, 0.25}, []float32{0.5, nan}, false},
		{[]float32{0, 0}, []float32{0, 0}, true},
		{[]float32{0, 0}, []float32{0, 1}, false},
	} {
		if d := distance(c.want, c.got); (d <= maxDistance) != c.near {
			t.Errorf("%v from %v: %g", c.got, c.want, d)
		}
	}
}

func TestSample(t *testing.T) {
	half := models.Input{Height: 1, Width: 1, Channels: 1, WireType: models.F32, WireLayout: models.HWC, TensorType: models.F16, TensorLayout: models.HWC}
	for v, want := range map[float32]uint16{0: 0, 1: 0x3c00, -2: 0xc000, 0.5: 0x3800, 65504: 0x7bff, 1e6: 0x7c00, 1e-9: 0} {
		got := make([]byte, 2)
		must.OK(t, cpu.Direct(half, binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)), got))
		if binary.LittleEndian.Uint16(got) != want {
			t.Errorf("%g is %#x in f16, not %#x", v, got, want)
		}
	}
	in := models.Input{
		Height: 8, Width: 8, Channels: 3, WireType: models.F32, WireLayout: models.CHW, TensorType: models.F32, TensorLayout: models.HWC,
		Mean: []float32{10, 20, 30}, Std: []float32{2, 3, 4},
	}
	tensor, err := Sample(&models.Card{Input: in}, 0)
	must.OK(t, err)
	different := map[float32]bool{}
	for i, v := range Floats(models.F32, tensor) {
		c := i % 3
		if pixel := v*in.Std[c] + in.Mean[c]; pixel < -0.01 || pixel > 255.01 || math.Abs(float64(pixel)-math.Round(float64(pixel))) > 0.01 {
			t.Errorf("value %d is %g, of a pixel of %g", i, v, pixel)
		}
		different[v] = true
	}
	if len(different) < 50 {
		t.Errorf("%d different values, want noise", len(different))
	}
}
