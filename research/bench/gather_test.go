//go:build cgo

package bench

import (
	"runtime"
	"testing"

	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/gputest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

func TestMain(m *testing.M) { cudafake.Main(m, cudafake.Kernels(gputest.Twins)) }

// The figures of the fake driver mean nothing. The test checks that the
// benchmark measures, and that it leaves nothing behind.
func TestGather(t *testing.T) {
	cudafake.Check(t)
	runtime.LockOSThread()
	slab, err := newGatherSlab()
	must.OK(t, err)
	defer slab.close()
	b := gatherBench{
		in:       models.Input{Height: 224, Width: 224, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F16, TensorLayout: models.CHW},
		pictures: 2, slab: slab, n: 1,
	}
	c, _, err := b.run("cuda", true)
	must.OK(t, err)
	if c.Kernel != "gather_three_f16_planes" || c.Alignment != "odd" || c.PictureBytes != 150528 {
		t.Errorf("measured %+v", c)
	}
	if c.GigabytesPerSecond <= 0 || c.CopyGBPerSecond <= 0 || c.FragmentCopyGBPerSecond <= 0 || c.CPUCopyGBPerSecond <= 0 || c.Ratio <= 0 || c.Call.P50 <= 0 || c.Seen.P50 < c.Call.P50 {
		t.Errorf("a figure is missing: %+v", c)
	}
}

// A camera's pictures are sampled.
func TestGatherPairs(t *testing.T) {
	cudafake.Check(t)
	runtime.LockOSThread()
	slab, err := newGatherSlab()
	must.OK(t, err)
	defer slab.close()
	b := gatherBench{
		in:      models.Input{Height: 64, Width: 64, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW},
		picture: wire.Picture{Format: wire.FormatNV12, Width: 192, Height: 108}, pictures: 2, slab: slab,
	}
	c, err := b.pairs("cuda", false, 2)
	must.OK(t, err)
	if c.Kernel != "sample" || c.PictureBytes != 31104 || c.GatherMicros <= 0 || c.CopyMicros <= 0 || c.Ratio <= 0 || c.Spread[0] > c.Spread[1] {
		t.Errorf("measured %+v", c)
	}
}
