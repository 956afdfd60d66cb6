package decode

import (
	"math"

	"github.com/penstock/penstock/wire"
)

// boxes decodes grids of cells. It scans the scores of every head for those at or above the threshold. Most
// scores are below it and cost no more than that.
//
// The styles differ in how a head's boxes are decoded.
type boxes struct {
	suppression
	declared  []declared
	heads     []head
	threshold float32 // of the model's raw score
	sigmoid   bool    // the model's scores are logits
}

// head is one grid of cells, with an output of scores and one of boxes. Both have a row per
// box.
type head struct {
	scores, boxes  int // indexes of outputs
	classes        int // columns of scores
	columns        int // of boxes
	cellsX, cellsY int
	anchored       anchored
	distributed    distributed
}

// anchored is how a head of style ssd-anchors decodes boxes.
type anchored struct {
	anchors        int // per cell
	scaleX, scaleY float32
}

// distributed is how a head of style dfl decodes boxes. bins is 0 for other styles.
type distributed struct {
	bins                  int
	stride, width, height float32
}

const (
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
	d.suppression = newSuppression(p.number("iou_threshold", 0, 1, 0.5), p.whole("max_boxes", 1, maxBoxes, 100), nil)
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
	return d
}

func (d *boxes) readGrids(p *params) {
	in := &p.card.Input
	scaleX := float32(p.number("scale", 1e-6, maxSide, float64(in.Width)))
	scaleY := float32(p.number("scale", 1e-6, maxSide, float64(in.Height)))
	for _, g := range p.list("grids", "{size, anchors, scores, boxes}") {
		h := head{}
		if stride := g.whole("stride", 1, maxSide, 0); stride > 0 {
			h.cellsX, h.cellsY = in.Grid(stride)
		} else {
			h.cellsX = g.whole("size", 1, maxSide, missing)
			h.cellsY = h.cellsX
		}
		h.anchored = anchored{anchors: g.whole("anchors", 1, maxAnchors, missing), scaleX: scaleX, scaleY: scaleY}
		rows := h.cellsX * h.cellsY * h.anchored.anchors
		h.scores, h.classes = g.output("scores", rows, 1)
		h.boxes, h.columns = g.output("boxes", rows, 4)
		d.addHead(p, &g, "scores", h)
	}
}

func (d *boxes) readLevels(p *params) {
	in := p.card.Input
	in.Height, in.Width = p.whole("size", 1, maxSide, float64(in.Height)), p.whole("size", 1, maxSide, float64(in.Width))
	bins := p.whole("bins", 2, maxBins, missing)
	for _, l := range p.list("levels", "{stride, classes, boxes}") {
		stride := l.whole("stride", 1, maxSide, missing)
		h := head{distributed: distributed{bins: bins, stride: float32(stride), width: float32(in.Width), height: float32(in.Height)}}
		h.cellsX, h.cellsY = in.Grid(stride)
		rows := h.cellsX * h.cellsY
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
	d.reset()
	for i := range d.heads {
		if err := d.scan(i, outputs[d.heads[i].scores]); err != nil {
			return dst, 0, err
		}
	}
	if err := d.keep(d, outputs, nil); err != nil {
		return dst, 0, err
	}
	return wire.AppendBoxes(dst, d.kept), uint8(wire.KindBoxes), nil
}

// scan finds the scores of head i that are at least the threshold.
func (d *boxes) scan(i int, scores []byte) error {
	h := &d.heads[i]
	a := newAbove(max(d.threshold, d.floor))
	for n := a.next(scores, 0); 4*n < len(scores); n = a.next(scores, n+1) {
		v := element(scores, n)
		if v-v != 0 {
			return d.declared[h.scores].notFinite
		}
		d.add(candidate{score: v, head: uint32(i), row: uint32(n / h.classes), class: uint16(n % h.classes)})
		a = newAbove(max(d.threshold, d.floor))
	}
	return nil
}

// locate clips the box: the boxes of these models are clipped before the suppression.
func (d *boxes) locate(c candidate, outputs [][]byte) (wire.Box, error) {
	h := &d.heads[c.head]
	b := wire.Box{Class: c.class, Score: c.score}
	if d.sigmoid {
		b.Score = sigmoid(c.score)
	}
	if !h.decode(&b, outputs[h.boxes], int(c.row)) {
		return b, d.declared[h.boxes].notFinite
	}
	return b, nil
}

// sigmoid converts a logit to a probability.
func sigmoid(v float32) float32 { return float32(1 / (1 + math.Exp(-float64(v)))) }

// decode sets b's corners, in parts of the picture and clipped to it. It returns false if the
// output is not finite, or so large that the corners are not.
func (h *head) decode(b *wire.Box, output []byte, row int) bool {
	output = output[4*row*h.columns:]
	bins := h.distributed.bins
	if !finite(output[:4*4*max(bins, 1)]) {
		return false
	}
	if bins > 0 {
		h.distributed.decode(b, output, row%h.cellsX, row/h.cellsX)
	} else {
		cell := row / h.anchored.anchors
		x, y := (float32(cell%h.cellsX)+0.5)/float32(h.cellsX), (float32(cell/h.cellsX)+0.5)/float32(h.cellsY)
		h.anchored.decode(b, output, x, y)
	}
	b.X0, b.Y0, b.X1, b.Y1 = clip(b.X0), clip(b.Y0), clip(b.X1), clip(b.Y1)
	sum := b.X0 + b.Y0 + b.X1 + b.Y1
	return sum == sum // not NaN
}

// decode decodes a raw box: centre and size in pixels. The centre is relative to that of the
// cell, which is at (x, y).
func (a *anchored) decode(b *wire.Box, output []byte, x, y float32) {
	x, y = x+element(output, 0)/a.scaleX, y+element(output, 1)/a.scaleY
	width, height := element(output, 2)/a.scaleX, element(output, 3)/a.scaleY
	b.X0, b.Y0, b.X1, b.Y1 = x-width/2, y-height/2, x+width/2, y+height/2
}

// decode decodes a raw box: distributions, over bins, of the distances to the left, top, right
// and bottom. They are in strides, from the middle of the cell. Other models count from the
// cell's corner; a test with pictures shows that NanoDet does not.
func (g *distributed) decode(b *wire.Box, output []byte, column, line int) {
	x, y := (float32(column)+0.5)*g.stride, (float32(line)+0.5)*g.stride
	b.X0 = (x - g.distance(output, 0)) / g.width
	b.Y0 = (y - g.distance(output, 1)) / g.height
	b.X1 = (x + g.distance(output, 2)) / g.width
	b.Y1 = (y + g.distance(output, 3)) / g.height
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
