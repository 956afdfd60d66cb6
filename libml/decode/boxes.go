package decode

import (
	"cmp"
	"math"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// boxes decodes grids of cells. It scans the scores of every head for those at or above the threshold. Most
// scores are below it and cost no more than that.
//
// The styles differ in how a head's boxes are decoded.
type boxes struct {
	*models.Boxes
	suppression
	threshold     float32 // of the model's raw score
	sigmoid       bool    // the model's scores are logits
	width, height float32 // of the picture, in the unit of the boxes
	bins          int     // of style dfl, 0 for ssd-anchors
}

func newBoxes(f *models.Boxes) *boxes {
	return &boxes{Boxes: f, suppression: newSuppression(f.IoUThreshold, f.MaxBoxes, nil), threshold: float32(f.ScoreThreshold)}
}

func newAnchors(f *models.Anchors, in *models.Input) *boxes {
	d := newBoxes(&f.Boxes)
	d.width, d.height = float32(cmp.Or(f.Scale, float64(in.Width))), float32(cmp.Or(f.Scale, float64(in.Height)))
	if d.sigmoid = f.ScoreActivation == "sigmoid"; d.sigmoid {
		d.threshold = logit(f.ScoreThreshold)
	}
	return d
}

func newDistances(f *models.Distances) *boxes {
	d := newBoxes(&f.Boxes)
	d.width, d.height, d.bins = float32(f.Width), float32(f.Height), f.Bins
	return d
}

func (d *boxes) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	d.reset()
	for i := range d.Heads {
		h := &d.Heads[i]
		for first, last := d.rows(h.Scores, 0, h.Rows()); first < last; first, last = d.rows(h.Scores, last, h.Rows()) {
			if err := d.scan(i, outputs[h.Scores][:4*last*h.Classes], first); err != nil {
				return nil, err
			}
		}
	}
	return d.appendBoxes(dst, d, outputs, 0)
}

func (d *boxes) selections() (list []device.Selection) {
	for i := range d.Heads {
		h := &d.Heads[i]
		scores, boxes := columnsOf(h.Scores, 0, h.Classes, h.Classes), columnsOf(h.Boxes, 0, h.Columns, h.Columns)
		list = append(list, device.Selection{Rows: h.Rows(), Scores: scores, Threshold: d.threshold, Read: []device.Table{scores, boxes}})
	}
	return list
}

// columnsOf returns columns of an output with rows of this many elements.
func columnsOf(output, first, columns, row int) device.Table {
	return device.Table{Output: output, First: first, Columns: columns, RowStride: row, ColumnStride: 1}
}

// scan finds the scores of head i that are at least the threshold, from a row on.
func (d *boxes) scan(i int, scores []byte, row int) error {
	h := &d.Heads[i]
	a := newAbove(max(d.threshold, d.floor))
	for n := a.next(scores, row*h.Classes); 4*n < len(scores); n = a.next(scores, n+1) {
		v := element(scores, n)
		if v-v != 0 {
			return notFinite(h.Scores)
		}
		d.add(candidate{score: v, head: uint32(i), row: uint32(n / h.Classes), class: uint16(n % h.Classes)})
		a = newAbove(max(d.threshold, d.floor))
	}
	return nil
}

// locate clips the box: the boxes of these models are clipped before the suppression.
func (d *boxes) locate(c candidate, outputs [][]byte) (wire.Box, error) {
	h := &d.Heads[c.head]
	b := wire.Box{Class: c.class, Score: c.score}
	if d.sigmoid {
		b.Score = sigmoid(c.score)
	}
	output := outputs[h.Boxes][4*int(c.row)*h.Columns:]
	if !finite(output[:4*4*max(d.bins, 1)]) {
		return b, notFinite(h.Boxes)
	}
	cell := int(c.row) / h.Anchors
	column, line := float32(cell%h.CellsX)+0.5, float32(cell/h.CellsX)+0.5
	if d.bins > 0 {
		d.fromDistances(&b, output, column, line, float32(h.Stride))
	} else {
		d.fromCentre(&b, output, column/float32(h.CellsX), line/float32(h.CellsY))
	}
	b.X0, b.Y0, b.X1, b.Y1 = clip(b.X0), clip(b.Y0), clip(b.X1), clip(b.Y1)
	if sum := b.X0 + b.Y0 + b.X1 + b.Y1; sum != sum { // NaN: the numbers are so large that the corners are not finite
		return b, notFinite(h.Boxes)
	}
	return b, nil
}

// sigmoid converts a logit to a probability, logit the reverse.
func sigmoid(v float32) float32 { return float32(1 / (1 + math.Exp(-float64(v)))) }
func logit(p float64) float32   { return float32(math.Log(p / (1 - p))) }

// fromCentre decodes a raw box: centre and size. The centre is relative to that of the
// cell, which is at (x, y).
func (d *boxes) fromCentre(b *wire.Box, output []byte, x, y float32) {
	x, y = x+element(output, 0)/d.width, y+element(output, 1)/d.height
	width, height := element(output, 2)/d.width, element(output, 3)/d.height
	b.X0, b.Y0, b.X1, b.Y1 = x-width/2, y-height/2, x+width/2, y+height/2
}

// fromDistances decodes a raw box: distributions, over bins, of the distances to the left, top, right
// and bottom. They are in strides, from the middle of the cell. Other models count from the
// cell's corner; a test with pictures shows that NanoDet does not.
func (d *boxes) fromDistances(b *wire.Box, output []byte, column, line, stride float32) {
	x, y := column*stride, line*stride
	b.X0 = (x - d.distance(output, 0)*stride) / d.width
	b.Y0 = (y - d.distance(output, 1)*stride) / d.height
	b.X1 = (x + d.distance(output, 2)*stride) / d.width
	b.Y1 = (y + d.distance(output, 3)*stride) / d.height
}

// distance returns the mean of the distribution that one softmax over the bins yields.
func (d *boxes) distance(output []byte, side int) float32 {
	output = output[4*side*d.bins:][:4*d.bins]
	_, top := largest(output)
	var sum, mean float64
	for i := range d.bins {
		e := math.Exp(float64(element(output, i)) - float64(top))
		sum += e
		mean += e * float64(i)
	}
	return float32(mean / sum)
}
