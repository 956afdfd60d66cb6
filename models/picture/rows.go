package picture

import (
	"image"
	"image/color"

	"github.com/penstock/penstock/models/sampling"
	"github.com/penstock/penstock/wire"
)

// rows is a decoded photo as package sampling reads it. Photos of other types than those that it has formats for become RGB,
// or RGBA if parts are transparent, row by row.
type rows struct {
	photo image.Image
	shape wire.Picture
	row   []byte
}

// newRows returns a photo as package sampling reads it, and its shape.
func newRows(photo image.Image) (sampling.Source, wire.Picture) {
	if raw, ok := photo.(*Raw); ok {
		return raw, raw.Shape
	}
	size := photo.Bounds().Size()
	r := &rows{photo: photo, shape: wire.Picture{Format: wire.FormatRGBA8, Width: size.X, Height: size.Y}}
	switch photo.(type) {
	case *image.Gray:
		r.shape.Format = wire.FormatGrey8
	case *image.Gray16:
		r.shape.Format = wire.FormatGrey16
	default:
		if opaque(photo) {
			r.shape.Format = wire.FormatRGB8
		}
	}
	r.shape.Stride = r.shape.RowBytes()
	r.row = make([]byte, r.shape.Stride)
	return r, r.shape
}

// opaque reports whether a photo is known to have no transparent parts.
func opaque(photo image.Image) bool {
	o, ok := photo.(interface{ Opaque() bool })
	return ok && o.Opaque()
}

// Bytes implements sampling.Source.
func (r *rows) Bytes(_, place, count int) []byte {
	b := r.photo.Bounds()
	y := b.Min.Y + place/r.shape.Stride
	step := r.shape.Stride / r.shape.Width
	switch p := r.photo.(type) {
	case *image.Gray:
		return p.Pix[p.PixOffset(b.Min.X, y):][:count]
	case *image.Gray16:
		for i, v := range p.Pix[p.PixOffset(b.Min.X, y):][:count] {
			r.row[i^1] = v // little-endian
		}
		return r.row
	case *image.YCbCr:
		for x := range b.Dx() {
			luma, chroma := p.YOffset(b.Min.X+x, y), p.COffset(b.Min.X+x, y)
			r.row[3*x], r.row[3*x+1], r.row[3*x+2] = color.YCbCrToRGB(p.Y[luma], p.Cb[chroma], p.Cr[chroma])
		}
		return r.row
	case *image.NRGBA:
		if step == 4 {
			return p.Pix[p.PixOffset(b.Min.X, y):][:count]
		}
	case *image.RGBA:
		if step == 3 {
			pixels := p.Pix[p.PixOffset(b.Min.X, y):]
			for x := range b.Dx() {
				copy(r.row[3*x:][:3], pixels[4*x:])
			}
			return r.row
		}
	}
	fast, isFast := r.photo.(image.RGBA64Image) // all types of package image: At would allocate
	for x := range b.Dx() {
		var red, green, blue, alpha uint32
		if isFast {
			red, green, blue, alpha = fast.RGBA64At(b.Min.X+x, y).RGBA()
		} else {
			red, green, blue, alpha = r.photo.At(b.Min.X+x, y).RGBA()
		}
		// Colours have been multiplied by alpha.
		scale := max(alpha, 1) << 8
		pixel := [4]byte{uint8(min(red*0xffff/scale, 255)), uint8(min(green*0xffff/scale, 255)), uint8(min(blue*0xffff/scale, 255)), uint8(alpha >> 8)}
		copy(r.row[step*x:][:step], pixel[:])
	}
	return r.row
}

// onWhite returns a colour in front of white.
func onWhite(r, g, b, alpha uint32) (red, green, blue uint8) {
	white := 0xffff - alpha
	return uint8((r + white) >> 8), uint8((g + white) >> 8), uint8((b + white) >> 8)
}
