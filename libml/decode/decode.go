// Package decode converts a model's outputs to the result for a client: the most likely
// classes, boxes, or the unchanged tensors. A card names its decoder and the
// decoder's parameters. The package is pure: no clock, no I/O.
//
//  1. New makes the card's decoder, once per process.
//  2. Append is called for each image of a batch with that image's outputs. It
//     appends the result's payload (docs/wire.md).
//
// # Parameters
//
//	topk   k: the number of classes, 5 by default
//	raw    none
//	boxes  style: ssd-anchors or dfl
//	       score_threshold (0.5), iou_threshold (0.5), max_boxes (100)
//
//	       of ssd-anchors (BlazeFace, SSD):
//	       scale: the picture's side in the pixels of raw boxes
//	       score_activation: sigmoid (default), or none if the model applies it
//	       grids: [{size, anchors, scores, boxes}], two outputs each, rows in the
//	       order y, x, anchor
//
//	       of dfl (NanoDet, GFL):
//	       size: pixels of the picture's side; bins: of a distance's distribution
//	       levels: [{stride, classes, boxes}], two outputs each, rows in the order
//	       y, x
//
// Outputs are untrusted. For any contents, Append returns a payload of at most MaxBytes
// without NaN and infinity, or an error.
package decode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// The errors of Append are made in advance, because thousands of requests per second may
// cause one each.
var (
	// errNotANumber is returned, with the output's name, when an output that the
	// result depends on is NaN or infinite.
	errNotANumber = errors.New("not a finite number")
	// errOutputs is returned if the outputs are not those of the card: one slice per
	// output, 4 bytes per element.
	errOutputs = errors.New("outputs do not have the card's sizes")
)

// Decoder converts one image's outputs to a result. It has scratch memory, so only one
// goroutine at a time may use it.
type Decoder interface {
	// Append appends the result's payload, at most MaxBytes, to dst and returns its
	// wire.Kind. outputs has one slice for each of the card's outputs, in the
	// card's order: one image's elements, little-endian. Append only reads them.
	// After an error it returns dst unchanged. In steady state it allocates only to
	// extend dst.
	Append(dst []byte, outputs [][]byte) (payload []byte, kind uint8, err error)
	// MaxBytes bounds the payload of one image.
	MaxBytes() int
}

// New makes the decoder that the card names. An error names the wrong parameter and the
// expected value.
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
		d, p.err = newFamily(card)
	}
	if p.err != nil {
		return nil, fmt.Errorf("decoder %s of %s: %w", card.Decoder.Name, card.Name, p.err)
	}
	if slices.ContainsFunc(card.Outputs, func(o models.Tensor) bool { return o.Type != models.F32 }) {
		d = &widener{Decoder: d, tensors: card.Outputs, values: make([][]byte, len(card.Outputs))}
	}
	return d, nil
}

// widener passes outputs of any type to a decoder as f32.
type widener struct {
	Decoder
	tensors []models.Tensor
	values  [][]byte // scratch
}

func (d *widener) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
	if len(outputs) != len(d.tensors) {
		return dst, 0, errOutputs
	}
	for i, o := range outputs {
		t := &d.tensors[i]
		if len(o) != t.Bytes() {
			return dst, 0, errOutputs
		}
		d.values[i] = t.Type.AppendF32(d.values[i][:0], o)
	}
	return d.Decoder.Append(dst, d.values)
}

func newFamily(card *models.Card) (Decoder, error) {
	family, err := card.Family()
	if err != nil {
		return nil, err
	}
	switch f := family.(type) {
	case *models.YOLO:
		return newYOLO(f, card), nil
	case *models.Classes:
		return newClasses(f, card), nil
	case *models.Embedding:
		return newEmbedding(card), nil
	case *models.Objects:
		return newObjects(f, card), nil
	case *models.DETR:
		return newDETR(f, card), nil
	case *models.Text:
		return newText(f, card), nil
	case *models.Polygons:
		return newPolygons(f, card), nil
	case *models.Map:
		return newMap(f, card), nil
	case *models.Pose:
		return newPose(f, card), nil
	}
	return nil, errors.ErrUnsupported
}

// declared describes one output of the card.
type declared struct {
	bytes     int   // of one image, as f32
	notFinite error // errNotANumber with the output's name
}

func declaredOutputs(card *models.Card) []declared {
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

// checkSizes returns errOutputs unless the outputs have the sizes that were declared.
func checkSizes(declared []declared, outputs [][]byte) error {
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

// element returns element i of an output.
func element(output []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(output[4*i:]))
}

// exponent has the bits that are all set in infinities and NaN, and in no other float32
// (IEEE 754).
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

// raw passes on the tensors unchanged.
type raw struct {
	declared []declared
	bytes    int
}

func newRaw(p *params) *raw {
	d := &raw{declared: declaredOutputs(p.card)}
	for i := range d.declared {
		d.bytes += d.declared[i].bytes
	}
	return d
}

func (d *raw) MaxBytes() int { return d.bytes }

func (d *raw) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
	if err := checkSizes(d.declared, outputs); err != nil {
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
