package picture

import (
	"image"

	"github.com/penstock/penstock/wire"
)

// Shape is what an answer says about something besides its box, in the photo's pixels. Each may be empty.
type Shape struct {
	// Points are its key points.
	Points []image.Point
	// Outline is a polygon around it, like a rotated box.
	Outline []image.Point
	// Mask has rectangles that cover it.
	Mask []image.Rectangle
}

// Found is something that an answer says is in a photo.
type Found struct {
	// Index is that of the box or polygon in the answer.
	Index int
	Class uint16
	Score float32
	// Box is in the photo's pixels. It is not empty.
	Box image.Rectangle
	Shape
}

// Find returns what an answer has found in the photo, best first.
func (f Frame) Find(c *wire.Content) (found []Found) {
	add := func(i int, b wire.Box, s func() Shape) {
		if box := f.Locate(float64(b.X0), float64(b.Y0), float64(b.X1), float64(b.Y1)); !box.Empty() {
			found = append(found, Found{i, b.Class, b.Score, box, s()})
		}
	}
	for i, b := range c.Boxes {
		add(i, b, func() (s Shape) {
			if c.PerBox > 0 {
				s.Points = f.points(c.Points[i*c.PerBox:][:c.PerBox])
			}
			if len(c.Masks) > 0 {
				s.Mask = f.mask(&c.Masks[i], c.Rows, c.Columns)
			}
			return s
		})
	}
	for i := range c.Polygons {
		p := &c.Polygons[i]
		add(i, p.Outline(), func() Shape { return Shape{Outline: f.points(p.Points)} })
	}
	return found
}

// points maps points to the photo's pixels. Those far outside are moved nearer.
func (f Frame) points(points []wire.Point) (mapped []image.Point) {
	for _, p := range points {
		mapped = append(mapped, f.at(float64(p.X), float64(p.Y)))
	}
	return mapped
}

// mask returns a rectangle for each run of cells in a row.
func (f Frame) mask(m *wire.Mask, rows, columns int) (covered []image.Rectangle) {
	set := func(x, y int) bool {
		i := y*int(m.Columns) + x
		return m.Bits[i/8]>>(i%8)&1 == 1
	}
	for y := range int(m.Rows) {
		for x := 0; x < int(m.Columns); x++ {
			first := x
			for x < int(m.Columns) && set(x, y) {
				x++
			}
			if x > first {
				left, right := float64(int(m.X)+first)/float64(columns), float64(int(m.X)+x)/float64(columns)
				top, bottom := float64(int(m.Y)+y)/float64(rows), float64(int(m.Y)+y+1)/float64(rows)
				covered = append(covered, f.Locate(left, top, right, bottom))
			}
		}
	}
	return covered
}
