package picture

import (
	"image"
	"image/color"
)

// viewed is a decoded photo, upright, for its viewers on white. A large photo is not copied for that: Resize turns
// the few pixels of the model's input, and At turns one pixel.
type viewed struct {
	photo       image.Image
	orientation int // EXIF
}

// view returns a photo as its orientation says, on white.
func view(photo image.Image, orientation int) image.Image {
	if orientation == 1 && opaque(photo) {
		return photo
	}
	return &viewed{photo, orientation}
}

func (v *viewed) ColorModel() color.Model { return color.RGBAModel }

func (v *viewed) Bounds() image.Rectangle {
	size := v.photo.Bounds().Size()
	if v.orientation >= 5 {
		size.X, size.Y = size.Y, size.X
	}
	return image.Rectangle{Max: size}
}

func (v *viewed) At(x, y int) color.Color {
	if !(image.Point{x, y}).In(v.Bounds()) {
		return color.RGBA{}
	}
	b := v.photo.Bounds()
	if v.orientation >= 5 {
		x, y = y, x
	}
	switch v.orientation {
	case 2, 3, 7, 8:
		x = b.Dx() - 1 - x
	}
	switch v.orientation {
	case 3, 4, 6, 7:
		y = b.Dy() - 1 - y
	}
	red, green, blue := onWhite(v.photo.At(b.Min.X+x, b.Min.Y+y).RGBA())
	return color.RGBA{red, green, blue, 0xff}
}

// turned returns the place in the file's photo, or in an image made of it, of a rectangle of the upright one. That has this size.
func (v *viewed) turned(r image.Rectangle, upright image.Point) image.Rectangle {
	if v.orientation >= 5 {
		r, upright = image.Rect(r.Min.Y, r.Min.X, r.Max.Y, r.Max.X), image.Pt(upright.Y, upright.X)
	}
	switch v.orientation {
	case 2, 3, 7, 8:
		r.Min.X, r.Max.X = upright.X-r.Max.X, upright.X-r.Min.X
	}
	switch v.orientation {
	case 3, 4, 6, 7:
		r.Min.Y, r.Max.Y = upright.Y-r.Max.Y, upright.Y-r.Min.Y
	}
	return r
}

// upright undoes an EXIF orientation of pixels with so many bytes each. Orientations 5 to 8 exchange width and height.
func upright(from []byte, size image.Point, bytes, orientation int) []byte {
	width, height := size.X, size.Y

	// In pixels, (x, y) goes to begin + x*right + y*down.
	last := width*height - 1
	var begin, right, down int
	switch orientation {
	case 1:
		begin, right, down = 0, 1, width
	case 2: // mirrored left to right
		begin, right, down = width-1, -1, width
	case 3: // turned by 180°
		begin, right, down = last, -1, -width
	case 4: // mirrored top to bottom
		begin, right, down = last-(width-1), 1, -width
	case 5: // mirrored along the diagonal from the upper left
		begin, right, down = 0, height, 1
	case 6: // turned by 90° to the left
		begin, right, down = height-1, height, -1
	case 7: // mirrored along the diagonal from the upper right
		begin, right, down = last, -height, -1
	case 8: // turned by 90° to the right
		begin, right, down = last-(height-1), -height, 1
	}

	out := make([]byte, len(from))
	for y := range height {
		for x := range width {
			to, at := bytes*(begin+x*right+y*down), bytes*(y*width+x)
			copy(out[to:to+bytes], from[at:at+bytes])
		}
	}
	return out
}
