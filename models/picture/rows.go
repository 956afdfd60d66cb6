package picture

import (
	"image"
	"image/color"

	"github.com/penstock/penstock/wire"
)

// rows is a decoded photo as package sampling reads it. Photos of other types than those that it has formats for become RGB,
// row by row.
type rows struct {
	photo image.Image
	shape wire.Picture
	row   []byte
}

func newRows(photo image.Image) *rows {
	size := photo.Bounds().Size()
	r := &rows{photo: photo, shape: wire.Picture{Format: wire.FormatRGB8, Width: size.X, Height: size.Y}}
	switch photo.(type) {
	case *image.Gray:
		r.shape.Format = wire.FormatGrey8
	case *image.NRGBA:
		r.shape.Format = wire.FormatRGBA8
	default:
		r.row = make([]byte, 3*size.X)
	}
	r.shape.Stride = r.shape.RowBytes()
	return r
}

// Bytes implements sampling.Source.
func (r *rows) Bytes(_, place, count int) []byte {
	b := r.photo.Bounds()
	y := b.Min.Y + place/r.shape.Stride
	switch p := r.photo.(type) {
	case *image.Gray:
		return p.Pix[p.PixOffset(b.Min.X, y):][:count]
	case *image.NRGBA:
		return p.Pix[p.PixOffset(b.Min.X, y):][:count]
	case *image.YCbCr:
		for x := range b.Dx() {
			luma, chroma := p.YOffset(b.Min.X+x, y), p.COffset(b.Min.X+x, y)
			r.row[3*x], r.row[3*x+1], r.row[3*x+2] = color.YCbCrToRGB(p.Y[luma], p.Cb[chroma], p.Cr[chroma])
		}
	case *image.RGBA:
		pixels := p.Pix[p.PixOffset(b.Min.X, y):]
		for x := range b.Dx() {
			pixel := pixels[4*x:][:4]
			white := 255 - pixel[3]
			r.row[3*x], r.row[3*x+1], r.row[3*x+2] = pixel[0]+white, pixel[1]+white, pixel[2]+white
		}
	case image.RGBA64Image: // all other types of package image: At would allocate
		for x := range b.Dx() {
			r.row[3*x], r.row[3*x+1], r.row[3*x+2] = onWhite(p.RGBA64At(b.Min.X+x, y).RGBA())
		}
	default:
		for x := range b.Dx() {
			r.row[3*x], r.row[3*x+1], r.row[3*x+2] = onWhite(p.At(b.Min.X+x, y).RGBA())
		}
	}
	return r.row
}

// onWhite returns a colour in front of white.
func onWhite(r, g, b, alpha uint32) (red, green, blue uint8) {
	white := 0xffff - alpha
	return uint8((r + white) >> 8), uint8((g + white) >> 8), uint8((b + white) >> 8)
}
