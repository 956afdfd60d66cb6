package decode

import (
	"slices"

	"github.com/penstock/penstock/wire"
)

// topK is the k largest elements of the one output, largest first, and where they
// are equal the lower class first. They are sent as the model gave them: it is the
// model that makes probabilities of them, or not.
type topK struct {
	sizes sizes
	k     int
	best  []wire.Class
}

// mostClasses is what a u16 can name.
const mostClasses = 1 << 16

func newTopK(p *params) *topK {
	d := &topK{sizes: sizesOf(p.card)}
	if len(d.sizes) != 1 {
		p.fail("name", "topk reads one output, the card has %d", len(d.sizes))
		return d
	}
	classes := d.sizes[0] / 4
	if classes < 1 || classes > mostClasses {
		p.fail("name", "output %q has %d classes, want 1 to %d", p.card.Outputs[0].Name, classes, mostClasses)
		return d
	}
	d.k = p.whole("k", 1, classes, float64(min(5, classes)))
	d.best = make([]wire.Class, 0, d.k+1)
	return d
}

func (d *topK) MaxBytes() int { return d.k * wire.ClassSize }

func (d *topK) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
	if err := d.sizes.check(outputs); err != nil {
		return dst, 0, err
	}
	best := d.best[:0]
	for i := range d.sizes[0] / 4 {
		v := at(outputs[0], i)
		if isNaN(v) {
			return dst, 0, ErrNotANumber
		}
		if len(best) == d.k && v <= best[d.k-1].P {
			continue
		}
		// Behind all that are at least as large: classes come in ascending order.
		place := len(best)
		for place > 0 && best[place-1].P < v {
			place--
		}
		best = slices.Insert(best, place, wire.Class{Class: uint16(i), P: v})
		best = best[:min(len(best), d.k)]
	}
	return wire.AppendTopK(dst, best), uint8(wire.KindTopK), nil
}
