package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// GatherPairs is the report of `penstock-lab gather --pairs`: how long a gather takes, compared with one copy of the same number
// of contiguous bytes. Gather and copy take turns.
type GatherPairs struct {
	Machine       testbed.Machine  `json:"machine"`
	Device        string           `json:"device"`
	FragmentBytes int              `json:"piece_bytes"`
	HugePages     bool             `json:"huge_pages"`
	Cases         []GatherPairCase `json:"cases"`
}

// GatherPairCase is one kind of picture. Times are medians. Ratio is the median of gather / copy in a pair, and Spread the 10th
// and the 90th percentile.
type GatherPairCase struct {
	Picture      string     `json:"picture"`
	Tensor       string     `json:"tensor"`
	Kernel       string     `json:"kernel"`
	Pictures     int        `json:"pictures"`
	PictureBytes int        `json:"picture_bytes"`
	Alignment    string     `json:"alignment"` // as in GatherCase
	Pairs        int        `json:"pairs"`
	GatherMicros float64    `json:"gather_us"`
	CopyMicros   float64    `json:"contiguous_copy_us"`
	Ratio        float64    `json:"ratio"`
	Spread       [2]float64 `json:"spread"`
}

// RunGatherPairs measures n pairs of each case.
func RunGatherPairs(ctx context.Context, penstock, deviceName string, n int) (GatherPairs, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := GatherPairs{Machine: testbed.ThisMachine(penstock), FragmentBytes: gatherPayload}
	slab, err := newGatherSlab()
	if err != nil {
		return r, err
	}
	defer slab.close()
	r.HugePages = slab.huge
	square := func(side int, tensor models.DType) models.Input {
		return models.Input{
			Height: side, Width: side, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: tensor, TensorLayout: models.CHW,
			Mean: []float32{0, 0, 0}, Std: []float32{255, 255, 255}, Pad: []int{114, 114, 114},
		}
	}
	nv12 := wire.Picture{Format: wire.FormatNV12, Width: 1920, Height: 1080}
	antialias := square(640, models.F32)
	antialias.Antialias = true
	for _, b := range []gatherBench{
		{in: square(640, models.F32), picture: nv12, pictures: 8},
		{in: square(640, models.F16), picture: nv12, pictures: 8},
		{in: square(640, models.F32), picture: nv12, pictures: 1},
		{in: antialias, picture: nv12, pictures: 8},
		{in: square(640, models.F32), picture: wire.Picture{Format: wire.FormatBayerRG12Packed, Width: 1920, Height: 1200}, pictures: 8},
		{in: square(224, models.F16), pictures: 8},
		{in: square(224, models.F16), pictures: 32},
		{in: square(416, models.F32), pictures: 8},
	} {
		for _, odd := range []bool{false, true} {
			if err := ctx.Err(); err != nil {
				return r, err
			}
			b.slab = slab
			c, err := b.pairs(deviceName, odd, n)
			if err != nil {
				return r, fmt.Errorf("gather %d pictures of %s: %w", c.Pictures, c.Picture, err)
			}
			r.Device = b.device.Name()
			r.Cases = append(r.Cases, c)
		}
	}
	return r, nil
}

// pairs measures one case.
func (b *gatherBench) pairs(name string, odd bool, n int) (c GatherPairCase, err error) {
	closeAll, err := b.open(name)
	defer func() {
		if e := closeAll(); err == nil {
			err = e
		}
	}()
	p := b.picture
	if p.Format == 0 {
		p = wire.Picture{Format: wire.FormatRGB8, Width: b.in.Width, Height: b.in.Height}
	}
	c = GatherPairCase{
		Picture: fmt.Sprintf("%d x %d %s", p.Width, p.Height, p.Format), Pictures: b.pictures, PictureBytes: b.bytes, Pairs: n, Alignment: "aligned",
		Tensor: fmt.Sprintf("%d x %d %s %s", b.in.Width, b.in.Height, b.in.TensorType, b.in.TensorLayout), Kernel: "sample",
	}
	if odd {
		c.Alignment = "odd"
	}
	if b.in.Antialias {
		c.Tensor += ", antialias"
	}
	if err != nil {
		return c, err
	}
	if b.picture.Format == 0 {
		c.Kernel = b.device.Kernel()
	}
	b.lay(odd)
	var gathers, copies []time.Duration
	var ratios []float64
	for i := range n + n/4 + 1 {
		gather, err := b.timeOf(b.gather)
		if err != nil {
			return c, err
		}
		copied, err := b.timeOf(b.copyOnce)
		if err != nil {
			return c, err
		}
		if i > n/4 { // the first ones are warm-up
			gathers, copies = append(gathers, gather), append(copies, copied)
			ratios = append(ratios, float64(gather)/float64(copied))
		}
	}
	slices.Sort(ratios)
	c.GatherMicros, c.CopyMicros = micros(gathers).P50, micros(copies).P50
	c.Ratio, c.Spread = ratios[n/2], [2]float64{ratios[n/10], ratios[n*9/10]}
	return c, nil
}
