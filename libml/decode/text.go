package decode

import (
	"math"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// text reads the likeliest symbol of each step. Equal symbols in a row are one, and blanks are none (CTC; Graves et al.,
// 2006). The score is the mean probability of the symbols that are read.
type text struct {
	models.Text
	declared []declared
}

func newText(f *models.Text, card *models.Card) *text {
	return &text{Text: *f, declared: declaredOutputs(card)}
}

func (d *text) MaxBytes() int { return d.ResultBytes() }

func (d *text) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
	if err := checkSizes(d.declared, outputs); err != nil {
		return dst, 0, err
	}
	if !finite(outputs[0]) {
		return dst, 0, d.declared[0].notFinite
	}
	payload := wire.AppendText(dst, 0, nil)
	before, read, sum := -1, 0, 0.0
	for step := range d.Steps {
		values := outputs[0][4*step*d.Symbols:]
		best, top := 0, float32(math.Inf(-1))
		for i := range d.Symbols {
			if v := element(values, i); v > top {
				best, top = i, v
			}
		}
		if best != before && best > 0 {
			payload = append(payload, d.Labels[best-1]...)
			sum += float64(top)
			read++
		}
		before = best
	}
	if read > 0 {
		wire.AppendText(payload[:len(dst)], float32(sum/float64(read)), nil)
	}
	return payload, uint8(wire.KindText), nil
}
