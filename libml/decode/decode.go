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
// payload of at most MaxBytes that has no NaN and no infinity in it, or an error.
package decode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// Returned by Append. They are made beforehand: one costs a request, thousands a
// second may.
var (
	// errNotANumber is returned, with the output's name, when an output that the
	// result depends on is NaN or infinite.
	errNotANumber = errors.New("not a finite number")
	// errOutputs is returned when the outputs are not those of the card: one
	// slice an output, 4 bytes an element.
	errOutputs = errors.New("outputs do not have the card's sizes")
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

// declared is what the card says of one output.
type declared struct {
	bytes     int   // of one image
	notFinite error // errNotANumber with the output's name
}

func declaredBy(card *models.Card) []declared {
	list := make([]declared, len(card.Outputs))
	for i := range card.Outputs {
		o := &card.Outputs[i]
		list[i] = declared{
			bytes:     4 * o.Elements(),
			notFinite: fmt.Errorf("output %q: %w", o.Name, errNotANumber),
		}
	}
	return list
}

// check returns errOutputs unless the outputs have the sizes that were declared.
func check(declared []declared, outputs [][]byte) error {
	if len(outputs) != len(declared) {
		return errOutputs
	}
	for i, o := range outputs {
		if len(o) != declared[i].bytes {
			return errOutputs
		}
	}
	return nil
}

// at is element i of an output.
func at(output []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(output[4*i:]))
}

// exponent are the bits that are all set in infinities and NaN, and in no other
// float32 (IEEE 754).
const exponent = 0xff << 23

// finite reports whether none of the elements is NaN or infinite.
func finite(elements []byte) bool {
	for ; len(elements) >= 4; elements = elements[4:] {
		if binary.LittleEndian.Uint32(elements)&exponent == exponent {
			return false
		}
	}
	return true
}

// raw passes the tensors on as they are.
type raw struct {
	declared []declared
	bytes    int
}

func newRaw(p *params) *raw {
	d := &raw{declared: declaredBy(p.card)}
	for i := range d.declared {
		d.bytes += d.declared[i].bytes
	}
	return d
}

func (d *raw) MaxBytes() int { return d.bytes }

func (d *raw) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
	if err := check(d.declared, outputs); err != nil {
		return dst, 0, err
	}
	payload := dst
	for i, o := range outputs {
		if !finite(o) {
			return dst, 0, d.declared[i].notFinite
		}
		payload = append(payload, o...)
	}
	return payload, uint8(wire.KindRaw), nil
}
