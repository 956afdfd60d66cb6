package decode

import (
	"cmp"
	"math"
	"slices"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// polygons finds places of text in a map of probabilities (Liao et al., Real-time Scene Text Detection with
// Differentiable Binarization, 2020):
//
//  1. Find the groups of neighbouring cells above the threshold.
//  2. Find the smallest rectangle, at any angle, around each group.
//  3. Its score is the mean of the cells in it. Drop it if that is too low.
//  4. Widen it: the model was trained with places that were shrunk.
type polygons struct {
	*models.Polygons

	seen        []bool       // scratch: of each cell
	stack       []int32      // scratch: cells whose neighbours are to be visited
	left, right []int32      // scratch: of the group in each row
	points      []wire.Point // scratch: of the group's outline, then of its hull
	hull        []wire.Point // scratch
	found       []place      // scratch
}

// place is a rectangle with its score.
type place struct {
	score   float32
	corners [4]wire.Point
}

const (
	// minPlace is the shorter side of the smallest rectangle, in cells. A widened one is larger. Both are from
	// PaddleOCR.
	minPlace        = 3
	minWidenedPlace = minPlace + 2
	// maxPlaces bounds the groups of a picture.
	maxPlaces = 1000
)

func newPolygons(f *models.Polygons) *polygons {
	return &polygons{
		Polygons: f, seen: make([]bool, f.Rows*f.Columns), stack: make([]int32, 0, f.Rows*f.Columns),
		left: make([]int32, f.Rows), right: make([]int32, f.Rows), points: make([]wire.Point, 0, 2*(f.Rows+1)), hull: make([]wire.Point, 0, 4*(f.Rows+1)),
		found: make([]place, 0, maxPlaces),
	}
}

func (d *polygons) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	if err := allFinite(outputs); err != nil {
		return nil, err
	}
	output := outputs[0]
	clear(d.seen)
	d.found = d.found[:0]
	groups := 0
	for cell := range d.seen {
		if d.seen[cell] || element(output, cell) <= float32(d.CellThreshold) {
			continue
		}
		if groups++; groups > maxPlaces {
			break
		}
		d.visit(output, cell)
		d.outline()
		if p, ok := d.place(output); ok {
			d.found = append(d.found, p)
		}
	}
	slices.SortStableFunc(d.found, func(a, b place) int { return cmp.Compare(b.score, a.score) })
	for _, p := range d.found[:min(len(d.found), d.MaxBoxes)] {
		dst = wire.AppendPolygon(dst, 0, p.score, p.corners[:])
	}
	return dst, nil
}

// visit finds the group of a cell: the first and last of its cells in each row. A cell has eight neighbours.
func (d *polygons) visit(output []byte, cell int) {
	for i := range d.left {
		d.left[i], d.right[i] = math.MaxInt32, -1
	}
	d.seen[cell] = true
	d.stack = append(d.stack[:0], int32(cell))
	for len(d.stack) > 0 {
		cell := int(d.stack[len(d.stack)-1])
		d.stack = d.stack[:len(d.stack)-1]
		row, column := cell/d.Columns, cell%d.Columns
		d.left[row], d.right[row] = min(d.left[row], int32(column)), max(d.right[row], int32(column))
		for y := max(0, row-1); y <= min(d.Rows-1, row+1); y++ {
			for x := max(0, column-1); x <= min(d.Columns-1, column+1); x++ {
				if next := y*d.Columns + x; !d.seen[next] && element(output, next) > float32(d.CellThreshold) {
					d.seen[next] = true
					d.stack = append(d.stack, int32(next))
				}
			}
		}
	}
}

// outline sets hull to the convex hull of the group's cells, which are squares (Andrew's monotone chain).
func (d *polygons) outline() {
	d.points = d.points[:0]
	for y := range d.Rows + 1 { // the line above row y
		left, right := int32(math.MaxInt32), int32(-1)
		for row := max(0, y-1); row <= min(d.Rows-1, y); row++ {
			left, right = min(left, d.left[row]), max(right, d.right[row])
		}
		if right >= 0 {
			d.points = append(d.points, wire.Point{X: float32(left), Y: float32(y)}, wire.Point{X: float32(right + 1), Y: float32(y)})
		}
	}
	d.hull = d.hull[:0]
	add := func(p wire.Point, least int) {
		for n := len(d.hull); n > least && turn(d.hull[n-2], d.hull[n-1], p) <= 0; n = len(d.hull) {
			d.hull = d.hull[:n-1]
		}
		d.hull = append(d.hull, p)
	}
	for _, p := range d.points {
		add(p, 1)
	}
	least := len(d.hull)
	for i := len(d.points) - 2; i >= 0; i-- {
		add(d.points[i], least)
	}
	if len(d.hull) > 1 {
		d.hull = d.hull[:len(d.hull)-1] // the first point again
	}
}

// turn is positive if the way from a over b to c turns in one direction, negative in the other, 0 if it is straight.
func turn(a, b, c wire.Point) float32 { return (b.X-a.X)*(c.Y-a.Y) - (b.Y-a.Y)*(c.X-a.X) }

// rectangle is a rectangle at any angle: its axes have length 1, and it extends from least to most along them.
type rectangle struct {
	ux, uy                     float64 // the first axis; the second is (-uy, ux)
	least, most, least2, most2 float64
}

// smallest returns the rectangle of the smallest area around the hull. One of its sides lies on an edge of the hull.
func (d *polygons) smallest() (best rectangle) {
	area := math.Inf(1)
	for i, a := range d.hull {
		b := d.hull[(i+1)%len(d.hull)]
		r := rectangle{ux: float64(b.X - a.X), uy: float64(b.Y - a.Y), least: math.Inf(1), most: math.Inf(-1), least2: math.Inf(1), most2: math.Inf(-1)}
		if length := math.Hypot(r.ux, r.uy); length > 0 {
			r.ux, r.uy = r.ux/length, r.uy/length
		}
		for _, p := range d.hull {
			x, y := float64(p.X), float64(p.Y)
			u, v := x*r.ux+y*r.uy, y*r.ux-x*r.uy
			r.least, r.most, r.least2, r.most2 = min(r.least, u), max(r.most, u), min(r.least2, v), max(r.most2, v)
		}
		if a := (r.most - r.least) * (r.most2 - r.least2); a < area {
			best, area = r, a
		}
	}
	return best
}

// sides returns the lengths of the sides.
func (r *rectangle) sides() (a, b float64) { return r.most - r.least, r.most2 - r.least2 }

// corners returns the corners in cells, in order around the rectangle.
func (r *rectangle) corners() [4]wire.Point {
	at := func(u, v float64) wire.Point {
		return wire.Point{X: float32(u*r.ux - v*r.uy), Y: float32(u*r.uy + v*r.ux)}
	}
	return [4]wire.Point{at(r.least, r.least2), at(r.most, r.least2), at(r.most, r.most2), at(r.least, r.most2)}
}

// place returns the widened rectangle of the group, in fractions of the picture; false if it is too small or its
// score is too low.
func (d *polygons) place(output []byte) (p place, ok bool) {
	r := d.smallest()
	a, b := r.sides()
	if min(a, b) < minPlace {
		return p, false
	}
	if p.score = d.mean(output, r.corners()); p.score < float32(d.ScoreThreshold) {
		return p, false
	}
	by := a * b * d.Unclip / (2 * (a + b))
	r.least, r.most, r.least2, r.most2 = r.least-by, r.most+by, r.least2-by, r.most2+by
	if a, b = r.sides(); min(a, b) < minWidenedPlace {
		return p, false
	}
	p.corners = r.corners()
	first := 0 // the upper left
	for i := range p.corners {
		if c := &p.corners[i]; c.X+c.Y < p.corners[first].X+p.corners[first].Y {
			first = i
		}
	}
	corners := p.corners
	for i := range corners {
		c := corners[(first+i)%4]
		p.corners[i] = wire.Point{X: clip(c.X / float32(d.Columns)), Y: clip(c.Y / float32(d.Rows))}
	}
	return p, true
}

// mean returns the mean of the cells in a rectangle, with the cells on its sides.
func (d *polygons) mean(output []byte, corners [4]wire.Point) float32 {
	x0, y0, x1, y1 := math.MaxInt32, math.MaxInt32, 0, 0
	for i := range corners {
		c := &corners[i]
		c.X, c.Y = float32(math.Trunc(float64(c.X))), float32(math.Trunc(float64(c.Y)))
		x0, y0, x1, y1 = min(x0, int(c.X)), min(y0, int(c.Y)), max(x1, int(c.X)), max(y1, int(c.Y))
	}
	sum, n := 0.0, 0
	for y := max(0, y0); y <= min(d.Rows-1, y1); y++ {
		for x := max(0, x0); x <= min(d.Columns-1, x1); x++ {
			inside, p := true, wire.Point{X: float32(x), Y: float32(y)}
			for i, a := range corners {
				b := corners[(i+1)%4]
				inside = inside && turn(a, b, p) >= -max(abs(b.X-a.X), abs(b.Y-a.Y))/2
			}
			if inside {
				sum += float64(element(output, y*d.Columns+x))
				n++
			}
		}
	}
	return float32(sum / float64(max(1, n)))
}

func abs(v float32) float32 { return max(v, -v) }
