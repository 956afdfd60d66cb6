package decode

import (
	"math"
	"slices"

	"github.com/penstock/penstock/wire"
)

// topK decodes the k largest elements of the one output, largest first; of equal ones the
// lower class first. It passes on the model's values, which may be probabilities or not.
//
// It collects 2k elements, sorts them and keeps k. From then on it collects only elements
// above the min of those. So n classes cost n log k, in any order.
type topK struct {
	declared []declared
	k        int
	best     []wire.Class // scratch
}

// maxClasses is the number of values of a u16.
const maxClasses = 1 << 16

func newTopK(p *params) *topK {
	d := &topK{declared: declaredOutputs(p.card)}
	if len(d.declared) != 1 {
		p.fail("outputs", "topk reads one, the card has %d", len(d.declared))
		return d
	}
	classes := d.declared[0].bytes / 4
	if classes < 1 || classes > maxClasses {
		p.fail("outputs", "%q has %d classes, want 1 to %d", p.card.Outputs[0].Name, classes, maxClasses)
		return d
	}
	d.k = p.whole("k", 1, classes, float64(min(5, classes)))
	d.best = make([]wire.Class, 0, min(2*d.k, classes))
	return d
}

func (d *topK) MaxBytes() int { return d.k * wire.ClassSize }

func (d *topK) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
	if err := checkSizes(d.declared, outputs); err != nil {
		return dst, 0, err
	}
	if !finite(outputs[0]) {
		return dst, 0, d.declared[0].notFinite
	}
	d.best = d.best[:0]
	floor := float32(math.Inf(-1))
	for i := range d.declared[0].bytes / 4 {
		v := element(outputs[0], i)
		if v <= floor {
			continue // k lower classes are at least as large
		}
		d.best = append(d.best, wire.Class{Class: uint16(i), P: v})
		if len(d.best) == 2*d.k {
			d.cut()
			floor = d.best[d.k-1].P
		}
	}
	d.cut()
	return wire.AppendTopK(dst, d.best), uint8(wire.KindTopK), nil
}

// cut sorts the collected elements and keeps k.
func (d *topK) cut() {
	slices.SortFunc(d.best, byValue)
	d.best = d.best[:min(len(d.best), d.k)]
}

// byValue orders classes by value, largest first, then by class.
func byValue(a, b wire.Class) int {
	switch {
	case a.P > b.P:
		return -1
	case a.P < b.P:
		return 1
	}
	return int(a.Class) - int(b.Class)
}
