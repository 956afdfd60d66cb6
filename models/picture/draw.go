package picture

import (
	"image"
	"image/color"

	"golang.org/x/image/draw"
	"golang.org/x/image/font"
	"golang.org/x/image/font/basicfont"
	"golang.org/x/image/math/fixed"
)

// Mark is something found in a photo.
type Mark struct {
	// Box is in the photo's pixels.
	Box image.Rectangle
	// Text is drawn next to the box; the font has ASCII only.
	Text string
	// Colour is that of the box and of the text's background.
	Colour color.RGBA
	// Shape is drawn, too. An outline is drawn in place of the box.
	Shape
}

// Palette has one colour per function that found something. Each is dark enough
// for white text.
var Palette = []color.RGBA{
	{0xd6, 0x27, 0x28, 0xff},
	{0x1f, 0x77, 0xb4, 0xff},
	{0x2c, 0xa0, 0x2c, 0xff},
	{0x94, 0x67, 0xbd, 0xff},
	{0x8c, 0x56, 0x4b, 0xff},
}

// legible is the length of a photo's shorter side for which lines and letters
// are drawn 1:1, in pixels. The 13-pixel font is then a thirtieth of that side.
const legible = 400

// Draw returns a copy of the photo with the marks drawn on it, the first on
// top. Lines and letters grow with the photo. A mark with an empty box is not
// drawn.
func Draw(photo image.Image, marks []Mark) *image.RGBA {
	bounds := photo.Bounds()
	var canvas *image.RGBA
	if raw, ok := photo.(*Raw); ok {
		canvas = raw.RGBA(bounds.Size())
	} else {
		canvas = image.NewRGBA(bounds)
		draw.Draw(canvas, bounds, photo, bounds.Min, draw.Src)
	}
	unit := max(1, (min(bounds.Dx(), bounds.Dy())+legible/2)/legible)
	for i := len(marks) - 1; i >= 0; i-- {
		if !marks[i].Box.Empty() {
			marks[i].Shape.draw(canvas, unit, marks[i].Colour)
			if len(marks[i].Outline) == 0 {
				outline(canvas, marks[i].Box, 2*unit, marks[i].Colour)
			}
			caption(canvas, marks[i], unit)
		}
	}
	return canvas
}

// draw tints the mask, and draws the outline and the points.
func (s *Shape) draw(canvas *image.RGBA, unit int, colour color.RGBA) {
	const tint = 0x60
	half := image.NewUniform(color.NRGBA{colour.R, colour.G, colour.B, tint})
	for _, r := range s.Mask {
		draw.Draw(canvas, r, half, image.Point{}, draw.Over)
	}
	ink := image.NewUniform(colour)
	dot := func(p image.Point, radius int) {
		draw.Draw(canvas, image.Rectangle{Min: p, Max: p.Add(image.Pt(1, 1))}.Inset(-radius), ink, image.Point{}, draw.Src)
	}
	for i, a := range s.Outline {
		b := s.Outline[(i+1)%len(s.Outline)]
		steps := max(abs(b.X-a.X), abs(b.Y-a.Y), 1)
		for n := range steps {
			dot(image.Pt(a.X+(b.X-a.X)*n/steps, a.Y+(b.Y-a.Y)*n/steps), unit)
		}
	}
	for _, p := range s.Points {
		dot(p, 2*unit)
	}
}

func abs(n int) int { return max(n, -n) }

// outline draws a frame of the given width inside the box.
func outline(canvas *image.RGBA, box image.Rectangle, width int, colour color.RGBA) {
	ink := image.NewUniform(colour)
	inner := box.Inset(width)
	if inner.Empty() {
		draw.Draw(canvas, box, ink, image.Point{}, draw.Src)
		return
	}
	for _, side := range []image.Rectangle{
		{box.Min, image.Pt(box.Max.X, inner.Min.Y)},
		{image.Pt(box.Min.X, inner.Max.Y), box.Max},
		{image.Pt(box.Min.X, inner.Min.Y), image.Pt(inner.Min.X, inner.Max.Y)},
		{image.Pt(inner.Max.X, inner.Min.Y), image.Pt(box.Max.X, inner.Max.Y)},
	} {
		draw.Draw(canvas, side, ink, image.Point{}, draw.Src)
	}
}

// caption writes the text above the box, or inside its top if there is no room
// above.
func caption(canvas *image.RGBA, mark Mark, unit int) {
	if mark.Text == "" {
		return
	}
	face := basicfont.Face7x13
	small := image.NewRGBA(image.Rect(0, 0, font.MeasureString(face, mark.Text).Ceil()+4, face.Height+2))
	draw.Draw(small, small.Bounds(), image.NewUniform(mark.Colour), image.Point{}, draw.Src)
	pen := font.Drawer{Dst: small, Src: image.White, Face: face, Dot: fixed.P(2, face.Ascent+1)}
	pen.DrawString(mark.Text)

	bounds := canvas.Bounds()
	size := small.Bounds().Size().Mul(unit)
	corner := image.Pt(mark.Box.Min.X, mark.Box.Min.Y-size.Y)
	corner.Y = max(corner.Y, bounds.Min.Y)
	corner.X = max(min(corner.X, bounds.Max.X-size.X), bounds.Min.X)
	draw.NearestNeighbor.Scale(canvas, image.Rectangle{corner, corner.Add(size)}, small, small.Bounds(), draw.Src, nil)
}
