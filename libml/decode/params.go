package decode

import (
	"fmt"
	"math"

	"github.com/penstock/penstock/models"
)

// params reads a decoder's parameters, plain data from YAML or JSON, in which whole numbers
// are int, int64 or float64. It keeps the first error, so the caller reads all parameters and
// checks err once.
type params struct {
	card   *models.Card
	path   string // of values within the decoder: "grids[1]."
	values map[string]any
	err    error
}

func (p *params) fail(key, format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%s%s: %s", p.path, key, fmt.Sprintf(format, args...))
	}
}

// number returns a number from least to most. If it is absent, number returns fallback; if that is
// NaN, it fails.
func (p *params) number(key string, least, most, fallback float64) float64 {
	var n float64
	switch v := p.values[key].(type) {
	case nil:
		if math.IsNaN(fallback) {
			p.fail(key, "is missing, want a number from %g to %g", least, most)
		}
		return fallback
	case int:
		n = float64(v)
	case int64:
		n = float64(v)
	case uint64:
		n = float64(v)
	case float64:
		n = v
	default:
		p.fail(key, "is %v, want a number from %g to %g", v, least, most)
		return fallback
	}
	if !(n >= least && n <= most) {
		p.fail(key, "is %g, want a number from %g to %g", n, least, most)
		return fallback
	}
	return n
}

// missing is the fallback of a mandatory parameter.
var missing = math.NaN()

// whole returns a whole number, like number.
func (p *params) whole(key string, least, most int, fallback float64) int {
	n := p.number(key, float64(least), float64(most), fallback)
	if math.IsNaN(n) {
		return least // p.err has the reason
	}
	if n != math.Trunc(n) {
		p.fail(key, "is %g, want a whole number", n)
	}
	return int(n)
}

// choice returns one of the words. If it is absent, choice returns the first, or fails if it is
// needed.
func (p *params) choice(key string, needed bool, words ...string) string {
	v, ok := p.values[key]
	if !ok {
		if needed {
			p.fail(key, "is missing, want one of %v", words)
		}
		return words[0]
	}
	for _, w := range words {
		if v == w {
			return w
		}
	}
	p.fail(key, "is %v, want one of %v", v, words)
	return words[0]
}

// list returns a list of at least one map.
func (p *params) list(key, of string) []params {
	items, ok := p.values[key].([]any)
	switch {
	case p.values[key] == nil:
		p.fail(key, "is missing, want a list of %s", of)
	case !ok:
		p.fail(key, "is %v, want a list of %s", p.values[key], of)
	case len(items) == 0:
		p.fail(key, "is empty, want a list of %s", of)
	}
	var list []params
	for i, item := range items {
		values, ok := item.(map[string]any)
		path := fmt.Sprintf("%s%s[%d]", p.path, key, i)
		if !ok {
			p.fail(fmt.Sprintf("%s[%d]", key, i), "is %v, want %s", item, of)
		}
		list = append(list, params{card: p.card, path: path + ".", values: values})
	}
	return list
}

// output returns the index and the columns of the output that a parameter names. Its shape must be
// [rows, columns] with this number of rows and at least this number of columns.
func (p *params) output(key string, rows, leastColumns int) (index, columns int) {
	value, ok := p.values[key]
	if !ok {
		p.fail(key, "is missing, want the name of an output")
		return 0, 0
	}
	for i := range p.card.Outputs {
		o := &p.card.Outputs[i]
		if value != o.Name {
			continue
		}
		if len(o.Shape) != 2 || o.Shape[0] != int64(rows) || o.Shape[1] < int64(leastColumns) {
			p.fail(key, "output %q has shape %v, want [%d, at least %d]", o.Name, o.Shape, rows, leastColumns)
			return 0, 0
		}
		return i, int(o.Shape[1])
	}
	p.fail(key, "is %v, which is not an output of the card", value)
	return 0, 0
}
