package decode

import (
	"math"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// rotated is a box in pixels: centre, size, and the angle in radians, clockwise.
type rotated struct {
	x, y, width, height, angle float64
	class                      uint16
}

// appendRotated is keep for rotated boxes. It appends their corners.
func (d *yolo) appendRotated(dst []byte, output []byte) ([]byte, error) {
	d.best()
	d.rotated = d.rotated[:0]
	payload, kept := dst, 0
	for _, c := range d.found {
		if kept == d.max {
			break
		}
		v := func(column int) float64 { return float64(d.value(output, c.row, column)) }
		r := rotated{v(0), v(1), v(2), v(3), v(d.extra()), c.class}
		corners := r.corners()
		for i := range corners {
			p := &corners[i]
			if p.X, p.Y = p.X/d.width, p.Y/d.height; (p.X+p.Y)*0 != 0 { // NaN, also of an infinity
				return nil, notFinite(d.Output)
			}
		}
		if r.width <= 0 || r.height <= 0 {
			continue
		}
		suppressed := d.Style != models.YOLOv10 && d.suppressedRotated(&r)
		if d.rotated = append(d.rotated, r); suppressed {
			continue
		}
		kept++
		payload = wire.AppendPolygon(payload, c.class, c.score, corners[:])
	}
	return payload, nil
}

// suppressedRotated reports whether a better box of the same class is alike. That one may be suppressed itself (Fast
// NMS; Bolya et al., YOLACT, 2019).
func (d *yolo) suppressedRotated(r *rotated) bool {
	for i := range d.rotated {
		if k := &d.rotated[i]; k.class == r.class && similarity(k, r) > float64(d.overlap) {
			return true
		}
	}
	return false
}

// corners returns the corners in pixels, in order around the box.
func (r *rotated) corners() [4]wire.Point {
	sin, cos := math.Sincos(r.angle)
	ax, ay := r.width/2*cos, r.width/2*sin
	bx, by := -r.height/2*sin, r.height/2*cos
	at := func(x, y float64) wire.Point { return wire.Point{X: float32(r.x + x), Y: float32(r.y + y)} }
	return [4]wire.Point{at(ax+bx, ay+by), at(ax-bx, ay-by), at(-ax-bx, -ay-by), at(bx-ax, by-ay)}
}

// similarity is how much two rotated boxes are alike, from 0 to 1. It is one minus the Hellinger distance of the normal
// distributions with their means and covariances (Llerena et al., Gaussian Bounding Boxes and Probabilistic
// Intersection-over-Union, 2021).
func similarity(p, q *rotated) float64 {
	const tiny = 1e-7
	a1, b1, c1 := p.covariance()
	a2, b2, c2 := q.covariance()
	a, b, c := a1+a2, b1+b2, c1+c2
	x, y := q.x-p.x, p.y-q.y
	determinant := a*b - c*c
	distance := (a*y*y+b*x*x)/(determinant+tiny)/4 + c*x*y/(determinant+tiny)/2
	spread := 4*math.Sqrt(max(0, a1*b1-c1*c1)*max(0, a2*b2-c2*c2)) + tiny
	distance += math.Log(determinant/spread+tiny) / 2
	distance = max(tiny, min(100, distance))
	return 1 - math.Sqrt(1-math.Exp(-distance)+tiny)
}

// covariance returns the variances along x and y of the box's area, and their covariance.
func (r *rotated) covariance() (a, b, c float64) {
	sin, cos := math.Sincos(r.angle)
	w, h := r.width*r.width/12, r.height*r.height/12
	return w*cos*cos + h*sin*sin, w*sin*sin + h*cos*cos, (w - h) * cos * sin
}
