package decode

import (
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// objects passes on what a model with the suppression inside has found. Rows that a model fills up its outputs
// with have a score of 0, or come after the count.
type objects struct {
	*models.Objects
	suppression
	width, height float32
}

func newObjects(f *models.Objects, in *models.Input) *objects {
	d := &objects{Objects: f, suppression: newSuppression(1, f.MaxBoxes, f.Only), width: 1, height: 1}
	if f.Unit == "pixels" {
		d.width, d.height = float32(in.Width), float32(in.Height)
	}
	return d
}

func (d *objects) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	d.reset()
	rows := d.Rows
	if d.CountOutput >= 0 {
		count := element(outputs[d.CountOutput], 0)
		if !(count >= 0) {
			return nil, notFinite(d.CountOutput)
		}
		rows = int(min(count, float32(rows)))
	}
	scores, labels := outputs[d.ScoresOutput], outputs[d.LabelsOutput]
	for row := range rows {
		score := element(scores, row)
		if score < float32(d.ScoreThreshold) || score == 0 {
			continue
		}
		class := element(labels, row) - float32(d.FirstClass)
		if !finite(scores[4*row:][:4]) || !finite(labels[4*row:][:4]) {
			return nil, notFinite(d.ScoresOutput)
		}
		if class >= 0 && class < maxClasses {
			d.add(candidate{score: score, row: uint32(row), class: uint16(class)})
		}
	}
	return d.appendBoxes(dst, d, outputs, d.BoxesOutput)
}

func (d *objects) locate(c candidate, outputs [][]byte) (wire.Box, error) {
	row := outputs[d.BoxesOutput][4*4*c.row:]
	x0, y0, x1, y1 := element(row, 0), element(row, 1), element(row, 2), element(row, 3)
	if d.Order == "yxyx" {
		x0, y0, x1, y1 = y0, x0, y1, x1
	}
	return wire.Box{Class: c.class, Score: c.score, X0: x0 / d.width, Y0: y0 / d.height, X1: x1 / d.width, Y1: y1 / d.height}, nil
}
