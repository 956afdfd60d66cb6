package decode

import (
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// objects passes on what a model with the suppression inside has found. Rows that a model fills up its outputs
// with have a score of 0, or come after the count.
type objects struct {
	models.Objects
	suppression
	declared      []declared
	width, height float32
}

func newObjects(f *models.Objects, card *models.Card) *objects {
	d := &objects{Objects: *f, suppression: newSuppression(1, f.MaxBoxes, f.Only), declared: declaredOutputs(card), width: 1, height: 1}
	if f.Unit == "pixels" {
		d.width, d.height = float32(card.Input.Width), float32(card.Input.Height)
	}
	return d
}

func (d *objects) MaxBytes() int { return d.ResultBytes() }

func (d *objects) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
	if err := checkSizes(d.declared, outputs); err != nil {
		return dst, 0, err
	}
	d.reset()
	rows := d.Rows
	if d.CountOutput >= 0 {
		count := element(outputs[d.CountOutput], 0)
		if !(count >= 0) {
			return dst, 0, d.declared[d.CountOutput].notFinite
		}
		rows = int(min(count, float32(rows)))
	}
	scores, labels := outputs[d.ScoresOutput], outputs[d.LabelsOutput]
	for row := range rows {
		score := element(scores, row)
		if score < float32(d.ScoreThreshold) {
			continue
		}
		class := element(labels, row) - float32(d.FirstClass)
		if !finite(scores[4*row:][:4]) || !finite(labels[4*row:][:4]) {
			return dst, 0, d.declared[d.ScoresOutput].notFinite
		}
		if class >= 0 && class < maxClasses {
			d.add(candidate{score: score, row: uint32(row), class: uint16(class)})
		}
	}
	if err := d.keep(d, outputs, d.declared[d.BoxesOutput].notFinite); err != nil {
		return dst, 0, err
	}
	return wire.AppendBoxes(dst, d.kept), uint8(wire.KindBoxes), nil
}

func (d *objects) locate(c candidate, outputs [][]byte) (wire.Box, error) {
	row := outputs[d.BoxesOutput][4*4*c.row:]
	x0, y0, x1, y1 := element(row, 0), element(row, 1), element(row, 2), element(row, 3)
	if d.Order == "yxyx" {
		x0, y0, x1, y1 = y0, x0, y1, x1
	}
	return wire.Box{Class: c.class, Score: c.score, X0: x0 / d.width, Y0: y0 / d.height, X1: x1 / d.width, Y1: y1 / d.height}, nil
}
