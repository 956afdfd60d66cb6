package functions

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

// A photo of twice the width, for an input of 2 × 2 pixels.
func TestPrepare(t *testing.T) {
	photo := image.NewRGBA(image.Rect(0, 0, 8, 4))
	draw.Draw(photo, photo.Rect, image.NewUniform(color.RGBA{9, 9, 9, 0xff}), image.Point{}, draw.Src)
	for _, c := range []struct {
		fit     string
		pad     []int
		heights []int
		want    []byte // rows of one channel
	}{
		{"", nil, nil, []byte{9, 9, 0, 0}},
		{"letterbox", []int{5}, nil, []byte{9, 9, 5, 5}},
		{"stretch", []int{5}, nil, []byte{9, 9, 9, 9}},
		{"crop", []int{5}, nil, []byte{9, 9, 9, 9}},
		{"letterbox", []int{5}, []int{1, 2}, []byte{9, 9}},
	} {
		in := models.Input{Height: 2, Width: 2, Channels: 1, WireType: models.U8, WireLayout: models.HWC, Fit: c.fit, Pad: c.pad}
		if c.heights != nil {
			in.Heights, in.Widths = c.heights, []int{2}
		}
		f := Function{Card: &models.Card{Input: in}}
		got, err := f.Prepare(photo)
		if must.OK(t, err); !bytes.Equal(got.pixels, c.want) {
			t.Errorf("%q on %v: %v, want %v", c.fit, c.pad, got.pixels, c.want)
		}
		if said := got.shape.Height; said != len(c.want)/2 && c.heights != nil || said > 0 && c.heights == nil {
			t.Errorf("%q on %v: the request says %+v", c.fit, c.pad, got.shape)
		}
	}
}
