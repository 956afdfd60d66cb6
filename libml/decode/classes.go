package decode

import (
	"math"
	"slices"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// classes decodes the K largest elements of the one output, largest first; of equal ones the
// lower class first. It collects 2K elements, sorts them and keeps K. From then on it collects only elements
// above the min of those. So n classes cost n log K, in any order.
type classes struct {
	*models.Classes
	threshold float32      // of the probability
	best      []wire.Class // scratch
}

// maxClasses is the number of values of a u16.
const maxClasses = 1 << 16

func newClasses(f *models.Classes) *classes {
	d := &classes{Classes: f, threshold: float32(f.ScoreThreshold), best: make([]wire.Class, 0, 2*f.K)}
	if f.ScoreThreshold == 0 {
		d.threshold = float32(math.Inf(-1))
	}
	return d
}

func (d *classes) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	if err := allFinite(outputs); err != nil {
		return nil, err
	}
	d.best = d.best[:0]
	floor := float32(math.Inf(-1))
	for i := range len(outputs[0]) / 4 {
		v := element(outputs[0], i)
		if v <= floor {
			continue // K lower classes are at least as large
		}
		d.best = append(d.best, wire.Class{Class: uint16(i), P: v})
		if len(d.best) == 2*d.K {
			d.cut()
			floor = d.best[d.K-1].P
		}
	}
	d.cut()
	d.activate(outputs[0])
	return wire.AppendTopK(dst, d.best), nil
}

// activate makes probabilities of the values, and drops those below the threshold.
func (d *classes) activate(output []byte) {
	sum := 0.0
	if d.Activation == "softmax" {
		sum = softmaxSum(output, d.best[0].P)
	}
	top := d.best[0].P
	for i := range d.best {
		switch p := &d.best[i].P; d.Activation {
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

// cut sorts the collected elements and keeps K.
func (d *classes) cut() {
	slices.SortFunc(d.best, byValue)
	d.best = d.best[:min(len(d.best), d.K)]
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
