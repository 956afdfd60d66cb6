package decode

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/penstock/penstock/wire"
)

// suppression finds the boxes of an image in these steps. Families differ in the first and the third.
//
//  1. Collect the scores at or above the threshold.
//  2. Keep the best of these (maxCandidates), best first.
//  3. Locate their boxes. Drop boxes outside of the picture.
//  4. Non-maximum suppression per class: drop a box that overlaps a better one of its
//     class by more than the threshold.
type suppression struct {
	overlap float32 // 1: drop none
	max     int
	only    []bool // the classes that count; nil: all

	selected [][]byte // by the output of scores: bitmaps of the rows to read; nil: all

	found []candidate // scratch
	floor float32     // the min score that was kept when there were too many
	kept  []wire.Box  // scratch
	from  []candidate // of each of kept
	whole []wire.Box  // kept before they were clipped to the picture
}

// candidate is a score that is high enough.
type candidate struct {
	score float32 // the model's raw score
	head  uint32
	row   uint32
	class uint16
}

// before orders candidates by score, best first, then by their place in the outputs.
func (a candidate) before(b candidate) int {
	switch {
	case a.score > b.score:
		return -1
	case a.score < b.score:
		return 1
	case a.head != b.head:
		return int(a.head) - int(b.head)
	case a.row != b.row:
		return int(a.row) - int(b.row)
	}
	return int(a.class) - int(b.class)
}

// maxCandidates is the max number of candidates for the suppression, as in NanoDet's
// implementation (nms_pre).
const maxCandidates = 1000

// newSuppression makes the scratch memory for at most most boxes.
func newSuppression(overlap float64, most int, only []bool) suppression {
	return suppression{
		overlap: float32(overlap), max: most, only: only,
		found: make([]candidate, 0, 2*maxCandidates), kept: make([]wire.Box, 0, most), from: make([]candidate, 0, most), whole: make([]wire.Box, 0, most),
	}
}

func (s *suppression) selectRows(selected [][]byte) { s.selected = selected }

// selects reports whether only selected rows are there.
func (s *suppression) selects(scores int) bool { return s.selected != nil && s.selected[scores] != nil }

// rows returns the next rows that are in the outputs, from row on and before limit: first to last-1. scores is the output of
// their scores. If there are none, first is limit.
func (s *suppression) rows(scores, row, limit int) (first, last int) {
	if !s.selects(scores) {
		return row, limit
	}
	first = nextBit(s.selected[scores], 0, row, limit)
	return first, nextBit(s.selected[scores], math.MaxUint32, first, limit)
}

// nextBit returns the first bit from n on that differs from the one in same, or limit.
func nextBit(bitmap []byte, same uint32, n, limit int) int {
	for n < limit {
		if w := (binary.LittleEndian.Uint32(bitmap[n/32*4:]) ^ same) >> (n % 32); w != 0 {
			return min(limit, n+bits.TrailingZeros32(w))
		}
		n = (n/32 + 1) * 32
	}
	return limit
}

func (s *suppression) reset() {
	s.found, s.kept, s.from, s.whole = s.found[:0], s.kept[:0], s.from[:0], s.whole[:0]
	s.floor = float32(math.Inf(-1))
}

// add adds a score that is at least the threshold. Once there are more than it keeps, a score must also be above
// the min of those.
func (s *suppression) add(c candidate) {
	if c.score <= s.floor || s.only != nil && (int(c.class) >= len(s.only) || !s.only[c.class]) {
		return
	}
	s.found = append(s.found, c)
	if len(s.found) == 2*maxCandidates {
		s.best()
		s.floor = s.found[len(s.found)-1].score
	}
}

// best sorts the candidates and keeps maxCandidates.
func (s *suppression) best() {
	slices.SortFunc(s.found, candidate.before)
	s.found = s.found[:min(len(s.found), maxCandidates)]
}

// locator locates the box of a candidate.
type locator interface {
	// locate returns the box of a candidate, in fractions of the picture. It may lie outside of it.
	locate(c candidate, outputs [][]byte) (wire.Box, error)
}

// keep sets kept and from. Corners that are NaN or infinite are an error of this output.
func (s *suppression) keep(l locator, outputs [][]byte, output int) error {
	s.best()
	for _, c := range s.found {
		if len(s.kept) == s.max {
			break
		}
		b, err := l.locate(c, outputs)
		if err != nil {
			return err
		}
		if sum := (b.X0 + b.Y0 + b.X1 + b.Y1) * 0; sum != 0 { // NaN, also of an infinity
			return notFinite(output)
		}
		clipped := wire.Box{Class: b.Class, Score: b.Score, X0: clip(b.X0), Y0: clip(b.Y0), X1: clip(b.X1), Y1: clip(b.Y1)}
		if clipped.X0 < clipped.X1 && clipped.Y0 < clipped.Y1 && !s.suppressed(&b) {
			s.kept, s.from, s.whole = append(s.kept, clipped), append(s.from, c), append(s.whole, b)
		}
	}
	return nil
}

// appendBoxes appends the boxes that are kept.
func (s *suppression) appendBoxes(dst []byte, l locator, outputs [][]byte, output int) ([]byte, error) {
	if err := s.keep(l, outputs, output); err != nil {
		return nil, err
	}
	return wire.AppendBoxes(dst, s.kept), nil
}

// suppressed reports whether a better box of b's class overlaps it.
func (s *suppression) suppressed(b *wire.Box) bool {
	if s.overlap >= 1 {
		return false
	}
	for i := range s.whole {
		if k := &s.whole[i]; k.Class == b.Class && overlap(k, b) > s.overlap {
			return true
		}
	}
	return false
}

// overlap returns the area that two boxes share divided by the area that they cover together. The
// boxes must not be empty.
func overlap(a, b *wire.Box) float32 {
	width := min(a.X1, b.X1) - max(a.X0, b.X0)
	height := min(a.Y1, b.Y1) - max(a.Y0, b.Y0)
	if width <= 0 || height <= 0 {
		return 0
	}
	shared := width * height
	return shared / ((a.X1-a.X0)*(a.Y1-a.Y0) + (b.X1-b.X0)*(b.Y1-b.Y0) - shared)
}

// clip moves a coordinate into the picture; NaN stays NaN.
func clip(v float32) float32 { return max(0, min(1, v)) }
