package decode

import (
	"math"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// detr decodes the queries of a transformer. A query may be of several classes.
type detr struct {
	*models.DETR
	suppression
	threshold float32 // of the model's raw score; of the probability with softmax
}

func newDETR(f *models.DETR) *detr {
	d := &detr{DETR: f, suppression: newSuppression(1, f.MaxBoxes, f.Only), threshold: float32(f.ScoreThreshold)}
	if f.Activation == "sigmoid" {
		d.threshold = logit(f.ScoreThreshold)
	}
	return d
}

func (d *detr) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	d.reset()
	output := outputs[d.ScoresOutput]
	columns := len(output) / 4 / d.Rows
	for row := range d.Rows {
		scores := output[4*(row*columns+d.First):][:4*(columns-d.First)]
		if !finite(scores) {
			return nil, notFinite(d.ScoresOutput)
		}
		d.query(uint32(row), scores)
	}
	return d.appendBoxes(dst, d, outputs, d.BoxesOutput)
}

// query adds the classes of a query.
func (d *detr) query(row uint32, scores []byte) {
	if d.Chosen { // score, class
		if score, class := element(scores, 0), element(scores, 1); score >= d.threshold && class >= 0 && class < float32(d.NumClasses) {
			d.add(candidate{score: score, row: row, class: uint16(class)})
		}
		return
	}
	top, sum := float32(0), 1.0
	if d.Activation == "softmax" {
		_, top = largest(scores)
		sum = softmaxSum(scores, top)
	}
	for i := range d.NumClasses {
		v := element(scores, i)
		if d.Activation == "softmax" {
			v = float32(math.Exp(float64(v)-float64(top)) / sum)
		}
		if v >= d.threshold {
			d.add(candidate{score: v, row: row, class: uint16(i)})
		}
	}
}

func (d *detr) locate(c candidate, outputs [][]byte) (wire.Box, error) {
	output := outputs[d.BoxesOutput]
	row := output[int(c.row)*(len(output)/d.Rows):]
	x, y, width, height := element(row, 0), element(row, 1), element(row, 2), element(row, 3)
	b := wire.Box{Class: c.class, Score: c.score, X0: x - width/2, Y0: y - height/2, X1: x + width/2, Y1: y + height/2}
	if d.Activation == "sigmoid" {
		b.Score = sigmoid(c.score)
	}
	return b, nil
}
