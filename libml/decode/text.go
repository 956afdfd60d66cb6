package decode

import (
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// text reads the likeliest symbol of each step. Equal symbols in a row are one, and blanks are none (CTC; Graves et al.,
// 2006). The score is the mean probability of the symbols that are read.
type text struct{ *models.Text }

func (d *text) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	if err := allFinite(outputs); err != nil {
		return nil, err
	}
	payload := wire.AppendText(dst, 0, nil)
	before, read, sum := -1, 0, 0.0
	for step := range d.Steps {
		best, top := largest(outputs[0][4*step*d.Symbols:][:4*d.Symbols])
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
	return payload, nil
}
