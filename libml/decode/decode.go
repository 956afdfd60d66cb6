// Package decode turns a model's outputs into what a client is sent: the likeliest
// classes, boxes, or the tensors as they are. A card names its decoder and the
// decoder's parameters. It is pure: no clock, no I/O.
//
//  1. New makes the card's decoder, once an IF process.
//  2. Append is called for each image of a batch with that image's outputs, and
//     appends the result's payload (docs/wire.md).
//
// # Parameters
//
//	topk   k: how many classes, 5 by default
//	raw    none
//	boxes  style: ssd-anchors or dfl
//	       score_threshold (0.5), iou_threshold (0.5), max_boxes (100)
//
//	       of ssd-anchors (BlazeFace, SSD):
//	       scale: pixels that the raw boxes are in
//	       score_activation: sigmoid (default), or none where the model did it
//	       grids: [{size, anchors, scores, boxes}], two outputs each, rows in the
//	       order y, x, anchor
//
//	       of dfl (NanoDet, GFL):
//	       size: pixels of the picture's side; bins: of a distance's distribution
//	       levels: [{stride, classes, boxes}], two outputs each, rows in the order
//	       y, x
//
// Outputs are untrusted: whatever an IF's framework wrote there, Append returns a
// payload of at most MaxBytes, or an error.
package decode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// Returned by Append. They are as they are built, without context: one costs a
// request, thousands a second may.
var (
	// ErrNotANumber is returned when an output that the result depends on is NaN.
	ErrNotANumber = errors.New("output is not a number")
	// ErrOutputs is returned when the outputs are not those of the card: one
	// slice an output, 4 bytes an element.
	ErrOutputs = errors.New("outputs do not have the card's sizes")
)

// Decoder turns one image's outputs into a result. It has scratch memory of its
// own: one goroutine at a time.
type Decoder interface {
	// Append appends the result's payload to dst, at most MaxBytes, and says its
	// wire.Kind. outputs has one slice for each of the card's outputs, in the
	// card's order: one image's elements, f32 little-endian; it is only read. On
	// an error dst comes back as it was. In steady state it allocates nothing but
	// what dst lacks.
	Append(dst []byte, outputs [][]byte) (payload []byte, kind uint8, err error)
	// MaxBytes bounds the payload of one image.
	MaxBytes() int
}

// New makes the decoder that the card names. An error names the parameter that is
// wrong and what would be right.
func New(card *models.Card) (Decoder, error) {
	p := params{card: card, values: card.Decoder.Params}
	var d Decoder
	switch card.Decoder.Name {
	case "topk":
		d = newTopK(&p)
	case "boxes":
		d = newBoxes(&p)
	case "raw":
		d = newRaw(&p)
	default:
		return nil, fmt.Errorf("decoder %q of %s: want topk, boxes or raw", card.Decoder.Name, card.Name)
	}
	if p.err != nil {
		return nil, fmt.Errorf("decoder %s of %s: %w", card.Decoder.Name, card.Name, p.err)
	}
	return d, nil
}

// sizes are the lengths in bytes of one image's outputs.
type sizes []int

func sizesOf(card *models.Card) sizes {
	s := make(sizes, len(card.Outputs))
	for i := range card.Outputs {
		s[i] = 4 * card.Outputs[i].Elements()
	}
	return s
}

// check returns ErrOutputs unless the outputs have these sizes.
func (s sizes) check(outputs [][]byte) error {
	if len(outputs) != len(s) {
		return ErrOutputs
	}
	for i, o := range outputs {
		if len(o) != s[i] {
			return ErrOutputs
		}
	}
	return nil
}

// at is element i of an output.
func at(output []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(output[4*i:]))
}

// isNaN spares the way over float64.
func isNaN(v float32) bool { return v != v }

// raw passes the tensors on as they are.
type raw struct {
	sizes sizes
	bytes int
}

func newRaw(p *params) *raw {
	d := &raw{sizes: sizesOf(p.card)}
	for _, n := range d.sizes {
		d.bytes += n
	}
	return d
}

func (d *raw) MaxBytes() int { return d.bytes }

func (d *raw) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
	if err := d.sizes.check(outputs); err != nil {
		return dst, 0, err
	}
	payload := dst
	for _, o := range outputs {
		for i := 0; i < len(o); i += 4 {
			if isNaN(at(o[i:], 0)) {
				return dst, 0, ErrNotANumber
			}
		}
		payload = append(payload, o...)
	}
	return payload, uint8(wire.KindRaw), nil
}
