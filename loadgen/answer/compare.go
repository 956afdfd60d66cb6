package answer

import (
	"bytes"
	"fmt"
	"math"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// Tolerance is how far two answers may differ and still be the same.
type Tolerance struct {
	// Probability is for top-k, absolute.
	Probability float64
	// Score and Coordinate are for boxes. Score is absolute; Coordinate is a
	// fraction of the picture's width or height.
	Score, Coordinate float64
	// Threshold is the score below which the decoder omits boxes. A box that
	// one answer lacks is not a difference if its score is within Score of the
	// threshold. 0 means that every missing box is a difference.
	Threshold float64
	// Raw is for raw values: absolute, or relative to the wanted value if that
	// is more than 1.
	Raw float64
}

// Default is the tolerance of `penstock load`: three decimal digits of a
// probability, a hundredth of a score and of the picture.
var Default = Tolerance{Probability: 1e-3, Score: 0.01, Coordinate: 0.01, Raw: 1e-3}

// Half is the tolerance for models that compute in half precision on a GPU. The reference is
// computed on the CPU in single precision.
var Half = Tolerance{Probability: 0.02, Score: 0.02, Coordinate: 0.02, Raw: 0.02}

// Comparer compares answers within a tolerance. One goroutine uses it, because
// it keeps its decoding buffers.
type Comparer struct {
	Tolerance Tolerance

	got, want entries
}

// Compare returns nil if got is the same answer as want, otherwise an error
// that describes the first difference. Equal bytes are the same answer. So are
// these:
//
//   - top-k, the probabilities of one distribution: the same number of classes, none twice;
//     each class's probability within the tolerance. The order must be the same if want's
//     probabilities differ by more than the tolerance. At the end of the list, a class may
//     replace another one whose probability may be as near.
//   - boxes: a one-to-one match of boxes of the same class whose score and corners are
//     within the tolerance. Their order does not matter.
//   - points, masks, polygons: boxes as above. Points and masks are not compared.
//   - raw, embedding: the same number of values, each within the tolerance.
//   - tensors: the same names, types and shapes; each value within the tolerance.
//   - map: the same size; each number within the tolerance, or of the classes all but a hundredth.
//   - text: the same, with a score within the tolerance.
//
// NaN is within no tolerance of anything. Comparing equal answers allocates
// nothing once the Comparer has decoded answers of that length, unless their
// boxes are in another order.
func (c *Comparer) Compare(got, want Answer) error {
	if got.Kind != want.Kind {
		return fmt.Errorf("a payload of kind %s, want %s", got.Kind, want.Kind)
	}
	if err := c.got.decode(got); err != nil {
		return err
	}
	if bytes.Equal(got.Payload, want.Payload) {
		return nil
	}
	if err := c.want.decode(want); err != nil {
		return fmt.Errorf("the reference: %w", err)
	}
	switch got.Kind {
	case wire.KindTopK:
		return c.Tolerance.classes(c.got.Classes, c.want.Classes)
	case wire.KindBoxes, wire.KindPoints, wire.KindMasks, wire.KindPolygons:
		return c.Tolerance.boxes(c.got.Boxes, c.want.Boxes)
	case wire.KindRaw, wire.KindEmbedding:
		return c.Tolerance.values(c.got.Values, c.want.Values)
	case wire.KindTensors:
		return c.Tolerance.tensors(c.got.Tensors, c.want.Tensors)
	case wire.KindMap:
		return c.Tolerance.maps(&c.got.Map, &c.want.Map)
	case wire.KindText:
		if g, w := &c.got, &c.want; g.Text != w.Text || !within(g.TextScore, w.TextScore, c.Tolerance.Score) {
			return fmt.Errorf("text %q with %.3f, want %q with %.3f", g.Text, g.TextScore, w.Text, w.TextScore)
		}
	}
	return nil
}

func (t Tolerance) classes(got, want []wire.Class) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d classes, want %d", len(got), len(want))
	}
	highest := unlisted(want)
	for i := range got {
		if err := t.class(got, want, i, highest); err != nil {
			return err
		}
	}
	max := unlisted(got)
	for _, w := range want {
		if place(got, w.Class) < 0 && !t.atMost(w.P, max) {
			return fmt.Errorf("class %d with %.4f is not listed", w.Class, w.P)
		}
	}
	return nil
}

// class compares the class at index i of got, and its order after the classes
// before it. unlisted is the highest possible probability of a class that want
// omits.
func (t Tolerance) class(got, want []wire.Class, i int, unlisted float32) error {
	g := got[i]
	at := place(want, g.Class)
	switch {
	case at < 0 && !t.atMost(g.P, unlisted):
		return fmt.Errorf("place %d: class %d with %.4f, which the reference does not list: it has at most %.4f", i+1, g.Class, g.P, unlisted)
	case at >= 0 && !within(g.P, want[at].P, t.Probability):
		return fmt.Errorf("place %d: class %d with %.4f, want %.4f", i+1, g.Class, g.P, want[at].P)
	}
	for _, before := range got[:i] {
		if before.Class == g.Class {
			return fmt.Errorf("class %d is listed twice", g.Class)
		}
		if earlier := place(want, before.Class); at >= 0 && earlier >= 0 && !t.atMost(want[at].P, want[earlier].P) {
			return fmt.Errorf("class %d before class %d, want it behind", before.Class, g.Class)
		}
	}
	return nil
}

// unlisted returns the highest probability that an omitted class may have: the
// min of the last listed probability and what the listed ones leave of 1.
func unlisted(list []wire.Class) float32 {
	if len(list) == 0 {
		return 1
	}
	rest := float32(1)
	for _, c := range list {
		rest -= c.P
	}
	return min(list[len(list)-1].P, max(rest, 0))
}

// atMost reports whether p is at most q, within the tolerance.
func (t Tolerance) atMost(p, q float32) bool { return float64(p)-float64(q) <= t.Probability }

// place returns the index of a class in a list, -1 if the list does not have
// it.
func place(list []wire.Class, class uint16) int {
	for i, c := range list {
		if c.Class == class {
			return i
		}
	}
	return -1
}

func (t Tolerance) maps(got, want *wire.Map) error {
	if got.Element != want.Element || got.Rows != want.Rows || got.Columns != want.Columns {
		return fmt.Errorf("a map of %d x %d, want %d x %d of the same elements", got.Rows, got.Columns, want.Rows, want.Columns)
	}
	different := 0
	for i, class := range got.Classes {
		if class != want.Classes[i] {
			different++
		}
	}
	if 100*different > len(got.Classes) {
		return fmt.Errorf("%d of %d cells have another class", different, len(got.Classes))
	}
	return t.values(got.Values, want.Values)
}

func (t Tolerance) tensors(got, want []wire.Tensor) error {
	describe := func(list []wire.Tensor) (text string) {
		for _, one := range list {
			text += fmt.Sprintf(" %q %s %v", one.Name, one.Type, one.Shape)
		}
		return text
	}
	if g, w := describe(got), describe(want); g != w {
		return fmt.Errorf("tensors%s, want%s", g, w)
	}
	floats := func(one *wire.Tensor) []float32 {
		list, _ := wire.DecodeRaw(nil, models.DType(one.Type).AppendF32(nil, one.Data))
		return list
	}
	for i := range got {
		if err := t.values(floats(&got[i]), floats(&want[i])); err != nil {
			return fmt.Errorf("tensor %q: %w", got[i].Name, err)
		}
	}
	return nil
}

func (t Tolerance) values(got, want []float32) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d values, want %d", len(got), len(want))
	}
	for i, g := range got {
		if w := want[i]; !within(g, w, t.Raw*max(1, math.Abs(float64(w)))) {
			return fmt.Errorf("value %d is %g, want %g", i, g, w)
		}
	}
	return nil
}

// boxes looks for a matching that covers every box that must have a partner.
func (t Tolerance) boxes(got, want []wire.Box) error {
	if len(got) == len(want) && t.inOrder(got, want) {
		return nil
	}
	// If one matching covers got's boxes and another covers want's, then a
	// third covers both (Mendelsohn and Dulmage, 1958). The two sides are
	// therefore checked separately.
	if alone := t.uncovered(got, want); alone >= 0 {
		return fmt.Errorf("%s where the reference has none", describe(got[alone]))
	}
	if alone := t.uncovered(want, got); alone >= 0 {
		return fmt.Errorf("no box where the reference has %s", describe(want[alone]))
	}
	return nil
}

func (t Tolerance) inOrder(got, want []wire.Box) bool {
	for i := range got {
		if !t.same(got[i], want[i]) {
			return false
		}
	}
	return true
}

// uncovered returns the index of a box of a that needs a partner in b and finds
// none, -1 if all do. It extends a matching along augmenting paths (Kuhn,
// 1955): boxes may overlap, and the first box that fits may be the only partner
// of another.
func (t Tolerance) uncovered(a, b []wire.Box) int {
	partner := make([]int, len(b)) // of b's boxes, in a
	for j := range partner {
		partner[j] = -1
	}
	tried := make([]bool, len(b))
	var find func(i int) bool
	find = func(i int) bool {
		for j := range b {
			if tried[j] || !t.same(a[i], b[j]) {
				continue
			}
			tried[j] = true
			if partner[j] < 0 || find(partner[j]) {
				partner[j] = i
				return true
			}
		}
		return false
	}
	for i := range a {
		if t.Threshold > 0 && within(a[i].Score, float32(t.Threshold), t.Score) {
			continue
		}
		clear(tried)
		if !find(i) {
			return i
		}
	}
	return -1
}

func (t Tolerance) same(a, b wire.Box) bool {
	return a.Class == b.Class && within(a.Score, b.Score, t.Score) &&
		within(a.X0, b.X0, t.Coordinate) && within(a.Y0, b.Y0, t.Coordinate) &&
		within(a.X1, b.X1, t.Coordinate) && within(a.Y1, b.Y1, t.Coordinate)
}

func describe(b wire.Box) string {
	return fmt.Sprintf("class %d, score %.3f at (%.3f, %.3f)–(%.3f, %.3f)", b.Class, b.Score, b.X0, b.Y0, b.X1, b.Y1)
}

// within is false for NaN. Equal infinities are within.
func within(a, b float32, tolerance float64) bool {
	return a == b || math.Abs(float64(a)-float64(b)) <= tolerance
}
