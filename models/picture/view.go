package picture

import (
	"image"
	"image/color"

	"golang.org/x/image/draw"
	"golang.org/x/image/math/f64"
)

// viewed is a decoded photo, upright and on white. A large photo is not copied for that: Resize turns
// the few pixels of the model's input, and At turns one pixel.
type viewed struct {
	photo       image.Image
	orientation int // EXIF
	opaque      bool
}

// view returns a photo as its orientation says, on white.
func view(photo image.Image, orientation int) image.Image {
	o, ok := photo.(interface{ Opaque() bool })
	opaque := ok && o.Opaque()
	if opaque && orientation == 1 {
		return photo
	}
	return &viewed{photo, orientation, opaque}
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
	red, green, blue, alpha := v.photo.At(b.Min.X+x, b.Min.Y+y).RGBA()
	white := 0xffff - alpha
	return color.RGBA{uint8((red + white) >> 8), uint8((green + white) >> 8), uint8((blue + white) >> 8), 0xff}
}

// part returns a part of a photo.
func part(photo image.Image, r image.Rectangle) image.Image {
	switch p := photo.(type) {
	case *viewed:
		return &viewed{part(p.photo, p.turned(r)), p.orientation, p.opaque}
	case interface {
		SubImage(image.Rectangle) image.Image
	}:
		return p.SubImage(r)
	}
	return &cut{photo, r}
}

// cut is a part of a photo that cannot make one itself.
type cut struct {
	image.Image
	bounds image.Rectangle
}

func (c *cut) Bounds() image.Rectangle { return c.bounds }

// turned returns the place in the file's photo of a rectangle of the upright one.
func (v *viewed) turned(r image.Rectangle) image.Rectangle {
	b := v.photo.Bounds()
	if v.orientation >= 5 {
		r = image.Rect(r.Min.Y, r.Min.X, r.Max.Y, r.Max.X)
	}
	switch v.orientation {
	case 2, 3, 7, 8:
		r.Min.X, r.Max.X = b.Dx()-r.Max.X, b.Dx()-r.Min.X
	}
	switch v.orientation {
	case 3, 4, 6, 7:
		r.Min.Y, r.Max.Y = b.Dy()-r.Max.Y, b.Dy()-r.Min.Y
	}
	return r.Add(b.Min)
}

// place scales a photo into a part of a sheet.
func place(sheet *image.RGBA, inside image.Rectangle, photo image.Image) {
	v, ok := photo.(*viewed)
	if !ok {
		scaleInto(sheet, inside, photo)
		return
	}
	size := inside.Size()
	if v.orientation >= 5 {
		size.X, size.Y = size.Y, size.X
	}
	small := image.NewRGBA(image.Rectangle{Max: size})
	if !v.opaque {
		draw.Draw(small, small.Rect, image.White, image.Point{}, draw.Src)
	}
	scaleInto(small, small.Rect, v.photo)
	draw.Draw(sheet, inside, upright(small, v.orientation), image.Point{}, draw.Src)
}

// Kernel.Scale of x/image/draw holds each row of the photo as wide as the result.
const (
	scalePixelBytes = 4 * 8 // of such a row
	maxScaleBytes   = 64 << 20
)

// scaleInto scales a photo to a rectangle. For a large one it does not hold the rows, which takes longer.
func scaleInto(to *image.RGBA, inside image.Rectangle, photo image.Image) {
	from := photo.Bounds()
	if inside.Dx()*from.Dy() <= maxScaleBytes/scalePixelBytes {
		draw.BiLinear.Scale(to, inside, photo, from, draw.Over, nil)
		return
	}
	x, y := float64(inside.Dx())/float64(from.Dx()), float64(inside.Dy())/float64(from.Dy())
	matrix := f64.Aff3{
		x, 0, float64(inside.Min.X) - x*float64(from.Min.X),
		0, y, float64(inside.Min.Y) - y*float64(from.Min.Y),
	}
	draw.BiLinear.Transform(to, matrix, photo, from, draw.Over, nil)
}

// upright undoes an EXIF orientation. Orientations 5 to 8 exchange width and height.
func upright(from *image.RGBA, orientation int) *image.RGBA {
	if orientation == 1 {
		return from
	}
	width, height := from.Rect.Dx(), from.Rect.Dy()
	const pixel = 4 // bytes

	// In pixels, (x, y) goes to begin + x*right + y*down.
	last := width*height - 1
	size := image.Rect(0, 0, width, height)
	if orientation >= 5 {
		size = image.Rect(0, 0, height, width)
	}
	var begin, right, down int
	switch orientation {
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

	out := image.NewRGBA(size)
	for y := range height {
		for x := range width {
			to, at := pixel*(begin+x*right+y*down), pixel*(y*width+x)
			copy(out.Pix[to:to+pixel], from.Pix[at:at+pixel])
		}
	}
	return out
}
