package decode

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/penstock/penstock/wire"
)

// boxes finds the boxes of an image in these steps:
//
//  1. Scan the scores of every head for those at or above the threshold. Most scores
//     are below it and cost no more than that.
//  2. Keep the best of these (maxCandidates), best first.
//  3. Decode their boxes and clip them to the picture. Drop boxes outside of it.
//  4. Non-maximum suppression per class: drop a box that overlaps a better one of its
//     class by more than the threshold.
//
// The styles differ in how a head's boxes are decoded.
type boxes struct {
	declared  []declared
	heads     []head
	threshold float32 // of the model's raw score
	sigmoid   bool    // the model's scores are logits
	overlap   float32
	max       int

	found []candidate // scratch
	floor float32     // the min score that was kept when there were too many
	kept  []wire.Box  // scratch
}

// head is one grid of cells, with an output of scores and one of boxes. Both have a row per
// box.
type head struct {
	scores, boxes int // indexes of outputs
	classes       int // columns of scores
	columns       int // of boxes
	side          int // cells along a side
	anchored      anchored
	distributed   distributed
}

// anchored is how a head of style ssd-anchors decodes boxes.
type anchored struct {
	anchors int // per cell
	scale   float32
}

// distributed is how a head of style dfl decodes boxes. bins is 0 for other styles.
type distributed struct {
	bins         int
	stride, size float32
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

const (
	// maxCandidates is the max number of candidates for the suppression, as in NanoDet's
	// implementation (nms_pre).
	maxCandidates = 1000
	// maxBoxes bounds max_boxes: 22 bytes each on the wire.
	maxBoxes = 1000
	// maxSide bounds sizes in cells or pixels, so that products stay small.
	maxSide = 1 << 14
	// maxAnchors and maxBins are larger than in any known model.
	maxAnchors = 1 << 10
	maxBins    = 1 << 10
)

func newBoxes(p *params) *boxes {
	d := &boxes{declared: declaredOutputs(p.card)}
	threshold := p.number("score_threshold", 0, 1, 0.5)
	d.overlap = float32(p.number("iou_threshold", 0, 1, 0.5))
	d.max = p.whole("max_boxes", 1, maxBoxes, 100)
	switch p.choice("style", true, "ssd-anchors", "dfl") {
	case "ssd-anchors":
		d.sigmoid = p.choice("score_activation", false, "sigmoid", "none") == "sigmoid"
		d.readGrids(p)
	case "dfl":
		d.readLevels(p)
	}
	d.threshold = float32(threshold)
	if d.sigmoid {
		d.threshold = float32(math.Log(threshold / (1 - threshold)))
	}
	d.found = make([]candidate, 0, 2*maxCandidates)
	d.kept = make([]wire.Box, 0, d.max)
	return d
}

func (d *boxes) readGrids(p *params) {
	scale := float32(p.number("scale", 1e-6, maxSide, missing))
	for _, g := range p.list("grids", "{size, anchors, scores, boxes}") {
		h := head{side: g.whole("size", 1, maxSide, missing)}
		h.anchored = anchored{anchors: g.whole("anchors", 1, maxAnchors, missing), scale: scale}
		rows := h.side * h.side * h.anchored.anchors
		h.scores, h.classes = g.output("scores", rows, 1)
		h.boxes, h.columns = g.output("boxes", rows, 4)
		d.addHead(p, &g, "scores", h)
	}
}

func (d *boxes) readLevels(p *params) {
	size := p.whole("size", 1, maxSide, missing)
	bins := p.whole("bins", 2, maxBins, missing)
	for _, l := range p.list("levels", "{stride, classes, boxes}") {
		stride := l.whole("stride", 1, maxSide, missing)
		h := head{side: (size + stride - 1) / stride}
		h.distributed = distributed{bins: bins, stride: float32(stride), size: float32(size)}
		rows := h.side * h.side
		h.scores, h.classes = l.output("classes", rows, 1)
		h.boxes, h.columns = l.output("boxes", rows, 4*bins)
		if l.err == nil && h.columns != 4*bins {
			l.fail("boxes", "has %d columns, want 4 distances of %d bins", h.columns, bins)
		}
		d.addHead(p, &l, "classes", h)
	}
}

// addHead adds a head that was read from an element of p's lists. key names its scores.
func (d *boxes) addHead(p, element *params, key string, h head) {
	if h.classes > maxClasses {
		element.fail(key, "has %d classes, want at most %d", h.classes, maxClasses)
	}
	if p.err == nil {
		p.err = element.err
	}
	d.heads = append(d.heads, h)
}

func (d *boxes) MaxBytes() int { return d.max * wire.BoxSize }

func (d *boxes) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
	if err := checkSizes(d.declared, outputs); err != nil {
		return dst, 0, err
	}
	d.found, d.kept = d.found[:0], d.kept[:0]
	d.floor = float32(math.Inf(-1))
	for i := range d.heads {
		if err := d.scan(i, outputs[d.heads[i].scores]); err != nil {
			return dst, 0, err
		}
	}
	d.best()
	for _, c := range d.found {
		if len(d.kept) == d.max {
			break
		}
		h := &d.heads[c.head]
		b := wire.Box{Class: c.class, Score: d.score(c.score)}
		if !h.decode(&b, outputs[h.boxes], int(c.row)) {
			return dst, 0, d.declared[h.boxes].notFinite
		}
		if b.X0 < b.X1 && b.Y0 < b.Y1 && !d.suppressed(&b) {
			d.kept = append(d.kept, b)
		}
	}
	return wire.AppendBoxes(dst, d.kept), uint8(wire.KindBoxes), nil
}

// scan finds the scores of head i that are at least the threshold. Once it has found more
// than it keeps, a score must also be above the min of those.
//
// It first compares bits. A float that is no less than a positive float also has no smaller
// bits. The same is true of values that are negative or not finite, so scan checks for these
// afterwards. A head of 2,704 cells and 80 classes has 216,320 scores, of which only a few pass
// the first check.
func (d *boxes) scan(i int, scores []byte) error {
	h := &d.heads[i]
	bits := positiveBits(max(d.threshold, d.floor))
	for n := 0; len(scores) >= 4; n, scores = n+1, scores[4:] {
		b := binary.LittleEndian.Uint32(scores)
		if b < bits {
			continue
		}
		if b&exponent == exponent {
			return d.declared[h.scores].notFinite
		}
		v := math.Float32frombits(b)
		if v < d.threshold || v <= d.floor {
			continue
		}
		d.found = append(d.found, candidate{score: v, head: uint32(i), row: uint32(n / h.classes), class: uint16(n % h.classes)})
		if len(d.found) == 2*maxCandidates {
			d.best()
			d.floor = d.found[len(d.found)-1].score
			bits = positiveBits(max(d.threshold, d.floor))
		}
	}
	return nil
}

// positiveBits returns the bits of v, or 0 if v is not positive.
func positiveBits(v float32) uint32 {
	if v > 0 {
		return math.Float32bits(v)
	}
	return 0
}

// best sorts the candidates and keeps maxCandidates.
func (d *boxes) best() {
	slices.SortFunc(d.found, candidate.before)
	d.found = d.found[:min(len(d.found), maxCandidates)]
}

// score converts a model's score to a probability.
func (d *boxes) score(v float32) float32 {
	if d.sigmoid {
		return float32(1 / (1 + math.Exp(-float64(v))))
	}
	return v
}

// suppressed reports whether a better box of b's class overlaps it.
func (d *boxes) suppressed(b *wire.Box) bool {
	for i := range d.kept {
		if k := &d.kept[i]; k.Class == b.Class && overlap(k, b) > d.overlap {
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

// decode sets b's corners, in parts of the picture and clipped to it. It returns false if the
// output is not finite, or so large that the corners are not.
func (h *head) decode(b *wire.Box, output []byte, row int) bool {
	output = output[4*row*h.columns:]
	bins := h.distributed.bins
	if !finite(output[:4*4*max(bins, 1)]) {
		return false
	}
	if bins > 0 {
		h.distributed.decode(b, output, row%h.side, row/h.side)
	} else {
		h.anchored.decode(b, output, row, h.side)
	}
	b.X0, b.Y0, b.X1, b.Y1 = clip(b.X0), clip(b.Y0), clip(b.X1), clip(b.Y1)
	sum := b.X0 + b.Y0 + b.X1 + b.Y1
	return sum == sum // not NaN
}

// decode decodes a raw box: centre and size in pixels. The centre is relative to that of the
// cell.
func (a *anchored) decode(b *wire.Box, output []byte, row, side int) {
	cell := row / a.anchors
	x := (float32(cell%side)+0.5)/float32(side) + element(output, 0)/a.scale
	y := (float32(cell/side)+0.5)/float32(side) + element(output, 1)/a.scale
	width, height := element(output, 2)/a.scale, element(output, 3)/a.scale
	b.X0, b.Y0, b.X1, b.Y1 = x-width/2, y-height/2, x+width/2, y+height/2
}

// decode decodes a raw box: distributions, over bins, of the distances to the left, top, right
// and bottom. They are in strides, from the middle of the cell. Other models count from the
// cell's corner; a test with pictures shows that NanoDet does not.
func (g *distributed) decode(b *wire.Box, output []byte, column, line int) {
	x, y := (float32(column)+0.5)*g.stride, (float32(line)+0.5)*g.stride
	b.X0 = (x - g.distance(output, 0)) / g.size
	b.Y0 = (y - g.distance(output, 1)) / g.size
	b.X1 = (x + g.distance(output, 2)) / g.size
	b.Y1 = (y + g.distance(output, 3)) / g.size
}

// distance returns the mean, in pixels, of the distribution that one softmax over the bins
// yields.
func (g *distributed) distance(output []byte, side int) float32 {
	output = output[4*side*g.bins:]
	top := float32(math.Inf(-1))
	for i := range g.bins {
		top = max(top, element(output, i))
	}
	var sum, mean float64
	for i := range g.bins {
		e := math.Exp(float64(element(output, i)) - float64(top))
		sum += e
		mean += e * float64(i)
	}
	return float32(mean/sum) * g.stride
}

// clip moves a coordinate into the picture; NaN stays NaN.
func clip(v float32) float32 { return max(0, min(1, v)) }
