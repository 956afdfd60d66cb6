package decode

import (
	"math"
	"slices"

	"github.com/penstock/penstock/wire"
)

// topK is the k largest elements of the one output, largest first, and where they
// are equal the lower class first. They are sent as the model gave them: it is the
// model that makes probabilities of them, or not.
//
// Twice k are collected before they are sorted and cut to k, and from then on only
// what is above the least of those: n classes cost n log k, in any order.
type topK struct {
	declared []declared
	k        int
	best     []wire.Class // scratch
}

// mostClasses is what a u16 can name.
const mostClasses = 1 << 16

func newTopK(p *params) *topK {
	d := &topK{declared: declaredBy(p.card)}
	if len(d.declared) != 1 {
		p.fail("outputs", "topk reads one, the card has %d", len(d.declared))
		return d
	}
	classes := d.declared[0].bytes / 4
	if classes < 1 || classes > mostClasses {
		p.fail("outputs", "%q has %d classes, want 1 to %d", p.card.Outputs[0].Name, classes, mostClasses)
		return d
	}
	d.k = p.whole("k", 1, classes, float64(min(5, classes)))
	d.best = make([]wire.Class, 0, min(2*d.k, classes))
	return d
}

func (d *topK) MaxBytes() int { return d.k * wire.ClassSize }

func (d *topK) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
	if err := check(d.declared, outputs); err != nil {
		return dst, 0, err
	}
	if !finite(outputs[0]) {
		return dst, 0, d.declared[0].notFinite
	}
	d.best = d.best[:0]
	floor := float32(math.Inf(-1))
	for i := range d.declared[0].bytes / 4 {
		v := at(outputs[0], i)
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

// cut sorts what was collected and keeps k of it.
func (d *topK) cut() {
	slices.SortFunc(d.best, likelier)
	d.best = d.best[:min(len(d.best), d.k)]
}

// likelier orders classes, the largest first; equal ones by class.
func likelier(a, b wire.Class) int {
	switch {
	case a.P > b.P:
		return -1
	case a.P < b.P:
		return 1
	}
	return int(a.Class) - int(b.Class)
}
