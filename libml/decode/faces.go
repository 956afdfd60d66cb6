package decode

import (
	"math"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// faces decodes boxes with points, in grids of cells. A box and its points are relative to an anchor.
type faces struct {
	*models.Faces
	suppression
	width, height float32
	points        []wire.Point // scratch
}

func newFaces(f *models.Faces, in *models.Input) *faces {
	return &faces{
		Faces: f, suppression: newSuppression(f.IoUThreshold, f.MaxBoxes, nil),
		width: float32(in.Width), height: float32(in.Height), points: make([]wire.Point, 0, f.MaxBoxes*models.FacePoints),
	}
}

func (d *faces) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	d.reset()
	for i := range d.Levels {
		if err := d.scan(i, outputs); err != nil {
			return nil, err
		}
	}
	if err := d.keep(d, outputs, 0); err != nil {
		return nil, err
	}
	d.points = d.points[:0]
	for _, c := range d.from {
		l := &d.Levels[c.head]
		x, y, unit := d.anchor(l, int(c.row))
		row := outputs[l.Points][4*2*models.FacePoints*(l.First+int(c.row)):]
		for i := range models.FacePoints {
			p := wire.Point{X: (x + unit*element(row, 2*i)) / d.width, Y: (y + unit*element(row, 2*i+1)) / d.height, Score: 1}
			if (p.X+p.Y)*0 != 0 {
				return nil, notFinite(l.Points)
			}
			d.points = append(d.points, p)
		}
	}
	return wire.AppendPoints(dst, d.kept, d.points, models.FacePoints), nil
}

// scan finds the scores of a level that are at least the threshold.
func (d *faces) scan(level int, outputs [][]byte) error {
	l := &d.Levels[level]
	scores, end := outputs[l.Scores[0]], l.First+l.Rows
	for first, last := d.rows(l.Scores[0], l.First, end); first < last; first, last = d.rows(l.Scores[0], last, end) {
		for row := first; row < last; row++ {
			var score float32
			switch d.Style {
			case models.RetinaFace: // of no face, of a face
				score = element(scores, 2*row+1)
			case models.SCRFD:
				score = element(scores, row)
			case models.YuNet: // the geometric mean of two
				a, b := element(scores, row), element(outputs[l.Scores[1]], row)
				score = float32(math.Sqrt(float64(clip(a)*clip(b)))) + 0*(a+b) // NaN, also of an infinity
			}
			if score*0 != 0 {
				return notFinite(l.Scores[0])
			}
			if score >= float32(d.ScoreThreshold) {
				d.add(candidate{score: score, head: uint32(level), row: uint32(row - l.First)})
			}
		}
	}
	return nil
}

// selections returns none for yunet, whose score is of two outputs.
func (d *faces) selections() (list []device.Selection) {
	for i := range d.Levels {
		l := &d.Levels[i]
		scores := columnsOf(l.Scores[0], 0, 1, 1)
		switch {
		case d.Style == models.YuNet:
			return nil
		case d.Style == models.RetinaFace:
			scores = columnsOf(l.Scores[0], 1, 1, 2)
			if i < len(d.Levels)-1 {
				continue // the levels share the outputs
			}
		}
		list = append(list, device.Selection{
			Rows: l.First + l.Rows, Scores: scores, Threshold: float32(d.ScoreThreshold),
			Read: []device.Table{scores, columnsOf(l.Boxes, 0, 4, 4), columnsOf(l.Points, 0, 2*models.FacePoints, 2*models.FacePoints)},
		})
	}
	return list
}

// anchor returns the place of a row's anchor in pixels, and the unit of its box and points. Anchors of retinaface are in the
// middle of the cell and have sizes; their unit is a tenth of that (the variance 0.1).
func (d *faces) anchor(l *models.FaceLevel, row int) (x, y, unit float32) {
	cell, stride := row/l.Anchors, float32(l.Stride)
	x, y, unit = float32(cell%l.Columns)*stride, float32(cell/l.Columns)*stride, stride
	if d.Style == models.RetinaFace { // sizes 16 and 32 for stride 8, 64 and 128 for 16, 256 and 512 for 32
		size := stride * stride / 4 * float32(1+row%l.Anchors)
		return x + stride/2, y + stride/2, size / 10
	}
	return x, y, unit
}

func (d *faces) locate(c candidate, outputs [][]byte) (wire.Box, error) {
	l := &d.Levels[c.head]
	row := outputs[l.Boxes][4*4*(l.First+int(c.row)):][:4*4]
	x, y, unit := d.anchor(l, int(c.row))
	v0, v1, v2, v3 := unit*element(row, 0), unit*element(row, 1), element(row, 2), element(row, 3)

	b := wire.Box{Score: c.score}
	if d.Style == models.SCRFD { // distances to the sides
		b.X0, b.Y0, b.X1, b.Y1 = x-v0, y-v1, x+unit*v2, y+unit*v3
	} else { // offset of the centre, logarithm of the size
		width, height := unit*exp(v2), unit*exp(v3)
		if d.Style == models.RetinaFace { // the variance 0.2
			width, height = 10*unit*exp(v2/5), 10*unit*exp(v3/5)
		}
		b.X0, b.Y0, b.X1, b.Y1 = x+v0-width/2, y+v1-height/2, x+v0+width/2, y+v1+height/2
	}
	b.X0, b.Y0, b.X1, b.Y1 = b.X0/d.width, b.Y0/d.height, b.X1/d.width, b.Y1/d.height
	if !finite(row) || (b.X0+b.Y0+b.X1+b.Y1)*0 != 0 {
		return b, notFinite(l.Boxes)
	}
	return b, nil
}
