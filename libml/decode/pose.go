package decode

import (
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// pose finds the key points of the one thing in a picture. Its box is the whole picture, its score the mean of its
// points'.
type pose struct {
	*models.Pose
	points []wire.Point // scratch
	box    [1]wire.Box  // scratch
}

func newPose(f *models.Pose) *pose {
	return &pose{Pose: f, points: make([]wire.Point, f.Points)}
}

func (d *pose) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	if err := allFinite(outputs); err != nil {
		return nil, err
	}
	sum := float32(0)
	for i := range d.points {
		d.points[i] = d.point(i, outputs)
		sum += d.points[i].Score / float32(len(d.points))
	}
	d.box[0] = wire.Box{Score: sum, X1: 1, Y1: 1}
	return wire.AppendPoints(dst, d.box[:], d.points, len(d.points)), nil
}

// point returns the place of the largest value of both distributions. Its score is the mean of the two.
func (d *pose) point(i int, outputs [][]byte) wire.Point {
	x, topX := largest(outputs[d.XOutput][4*i*d.Columns:][:4*d.Columns])
	y, topY := largest(outputs[d.YOutput][4*i*d.Lines:][:4*d.Lines])
	return wire.Point{X: float32(x) / float32(d.Columns), Y: float32(y) / float32(d.Lines), Score: topX/2 + topY/2}
}
