package sampling

import (
	"image"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

func BenchmarkLetterbox1080p(b *testing.B) {
	in := models.Input{Width: 640, Height: 640, Channels: 3, TensorType: models.F32, TensorLayout: models.CHW, Mean: []float32{0, 0, 0}, Std: []float32{255, 255, 255}, Pad: []int{114, 114, 114}}
	for _, f := range []wire.PictureFormat{wire.FormatNV12, wire.FormatRGB8, wire.FormatBayerRG8, wire.FormatGrey12} {
		b.Run(f.String(), func(b *testing.B) {
			p, data := randomPicture(f, 1920, 1080, 1)
			from := bytesOf(data)
			s := must.Get(New(in))(b)
			tensor := make([]byte, in.TensorBytes())
			region := Region{image.Rect(0, 0, 1920, 1080), image.Rect(0, 140, 640, 500)}
			for b.Loop() {
				must.OK(b, s.Sample(tensor, p, region, from))
			}
		})
	}
}
