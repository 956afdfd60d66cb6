package decode

import (
	"math"

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
	return payload, nil
}
