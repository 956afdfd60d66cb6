package picture

import (
	"image"
	"image/color"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/sampling"
	"github.com/penstock/penstock/wire"
)

// Raw is a picture as a camera or a decoder makes it. Shape.Check is nil for it.
type Raw struct {
	Shape wire.Picture
	Pix   []byte
}

// ColorModel implements image.Image.
func (r *Raw) ColorModel() color.Model { return color.RGBAModel }

// Bounds implements image.Image.
func (r *Raw) Bounds() image.Rectangle { return image.Rect(0, 0, r.Shape.Width, r.Shape.Height) }

// Opaque reports that a raw picture has no transparent pixels: those of FormatRGBA8 are on white.
func (r *Raw) Opaque() bool { return true }

// At implements image.Image. RGBA is faster for many pixels.
func (r *Raw) At(x, y int) color.Color {
	if !image.Pt(x, y).In(r.Bounds()) {
		return color.RGBA{}
	}
	pixel := r.rgb(image.Rect(x, y, x+1, y+1), image.Pt(1, 1))
	return color.RGBA{pixel[0], pixel[1], pixel[2], 0xff}
}

// rgb returns a part of the picture in a size, with 3 bytes per pixel.
func (r *Raw) rgb(part image.Rectangle, size image.Point) []byte {
	in := models.Input{Height: size.Y, Width: size.X, Channels: 3, TensorType: models.U8, TensorLayout: models.HWC, Antialias: true}
	return sampled(r, in, sampling.Region{Part: part, Inside: image.Rectangle{Max: size}})
}

// Bytes implements sampling.Source.
func (r *Raw) Bytes(_, place, count int) []byte { return r.Pix[place:][:count] }

// RGBA returns the picture in another size.
func (r *Raw) RGBA(size image.Point) *image.RGBA {
	pixels := r.rgb(r.Bounds(), size)
	out := image.NewRGBA(image.Rectangle{Max: size})
	for from, to := 0, 0; from < len(pixels); from, to = from+3, to+4 {
		copy(out.Pix[to:], pixels[from:from+3])
		out.Pix[to+3] = 0xff
	}
	return out
}
