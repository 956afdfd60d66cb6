package decode

import (
	"math"
	"slices"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// classes decodes the k largest elements of the one output, largest first; of equal ones the
// lower class first. It collects 2k elements, sorts them and keeps k. From then on it collects only elements
// above the min of those. So n classes cost n log k, in any order.
type classes struct {
	declared   []declared
	k          int
	activation string
	threshold  float32      // of the probability
	best       []wire.Class // scratch
}

// maxClasses is the number of values of a u16.
const maxClasses = 1 << 16

// newTopK makes the decoder topk, which passes on the model's values: they may be probabilities or not.
func newTopK(p *params) *classes {
	d := &classes{declared: declaredOutputs(p.card), threshold: float32(math.Inf(-1))}
	if len(d.declared) != 1 {
		p.fail("outputs", "topk reads one, the card has %d", len(d.declared))
		return d
	}
	n := d.declared[0].bytes / 4
	if n < 1 || n > maxClasses {
		p.fail("outputs", "%q has %d classes, want 1 to %d", p.card.Outputs[0].Name, n, maxClasses)
		return d
	}
	d.k = p.whole("k", 1, n, float64(min(5, n)))
	d.best = make([]wire.Class, 0, 2*d.k)
	return d
}

func newClasses(f *models.Classes, card *models.Card) *classes {
	d := &classes{
		declared: declaredOutputs(card), k: f.K, activation: f.Activation, threshold: float32(f.ScoreThreshold), best: make([]wire.Class, 0, 2*f.K),
	}
	if f.ScoreThreshold == 0 {
		d.threshold = float32(math.Inf(-1))
	}
	return d
}

func (d *classes) MaxBytes() int { return d.k * wire.ClassSize }

func (d *classes) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
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
	d.activate(outputs[0])
	return wire.AppendTopK(dst, d.best), uint8(wire.KindTopK), nil
}

// activate makes probabilities of the values, and drops those below the threshold.
func (d *classes) activate(output []byte) {
	sum := 0.0
	if d.activation == "softmax" {
		sum = softmaxSum(output, d.best[0].P)
	}
	top := d.best[0].P
	for i := range d.best {
		switch p := &d.best[i].P; d.activation {
		case "softmax":
			*p = float32(math.Exp(float64(*p)-float64(top)) / sum)
		case "sigmoid":
			*p = sigmoid(*p)
		}
		if d.best[i].P < d.threshold {
			d.best = d.best[:i]
			return
		}
	}
}

// softmaxSum returns the sum of exp(v - top) of the elements.
func softmaxSum(elements []byte, top float32) (sum float64) {
	for i := range len(elements) / 4 {
		sum += math.Exp(float64(element(elements, i)) - float64(top))
	}
	return sum
}

// cut sorts the collected elements and keeps k.
func (d *classes) cut() {
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
