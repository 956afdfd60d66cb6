// Package decode converts a model's outputs to the result for a client: the most likely
// classes, boxes, or the unchanged tensors. A card names its decoder and the
// decoder's parameters. The package is pure: no clock, no I/O.
//
//  1. New makes the card's decoder, once per process.
//  2. Append is called for each image of a batch with that image's outputs. It
//     appends the result's payload (docs/wire.md).
//
// Outputs are untrusted. For any contents, Append returns a payload of at most ResultBytes
// without NaN and infinity, or an error.
package decode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

var (
	// errNotANumber is returned, with the output's name, when an output that the
	// result depends on is NaN or infinite.
	errNotANumber = errors.New("not a finite number")
	// errOutputs is returned if the outputs are not those of the card: one slice per
	// output, of the size of its elements.
	errOutputs = errors.New("outputs do not have the card's sizes")
)

// Decoder converts one image's outputs to a result. It has scratch memory, so only one
// goroutine at a time may use it.
type Decoder struct {
	family
	selector  selector // family, or nil
	kind      uint8
	outputs   []models.Tensor
	unchanged bool     // raw reads outputs in their types
	notFinite []error  // of each output; made in advance, because thousands of requests per second may cause one each
	values    [][]byte // scratch: the outputs as f32
	wide      [][]byte // scratch: memory for those of other types
	payload   []byte   // scratch
}

// family is the decoder of one family. It embeds the family's keys.
type family interface {
	// decode appends a result's payload. outputs have the card's sizes, as f32. It may be called after an error, which is
	// notFinite. raw gets them in their types.
	decode(dst []byte, outputs [][]byte) ([]byte, error)
	ResultBytes() int
}

// selector is a family that reads few rows of its outputs.
type selector interface {
	// selections says which, whatever the outputs are.
	selections() []device.Selection
	// selectRows sets the bitmaps of the rows to read, by the output of their scores; nil: all.
	selectRows(selected [][]byte)
}

// notFinite is the error for an output, by its index, with values that are NaN or infinite.
type notFinite int

func (notFinite) Error() string { return errNotANumber.Error() }

// New makes the decoder that the card names. An error names the wrong parameter and the
// expected value.
func New(card *models.Card) (*Decoder, error) {
	keys, err := card.Family()
	if err != nil {
		return nil, fmt.Errorf("decoder %s of %s: %w", card.Decoder.Name, card.Name, err)
	}
	n := len(card.Outputs)
	d := &Decoder{
		family: newFamily(keys, &card.Input, card.Outputs), kind: uint8(card.Kind()), outputs: card.Outputs,
		notFinite: make([]error, n), values: make([][]byte, n), wide: make([][]byte, n),
	}
	_, d.unchanged = d.family.(*raw)
	d.selector, _ = d.family.(selector)
	for i := range d.notFinite {
		d.notFinite[i] = fmt.Errorf("output %q: %w", card.Outputs[i].Name, errNotANumber)
	}
	return d, nil
}

func newFamily(keys models.Family, in *models.Input, outputs []models.Tensor) family {
	switch f := keys.(type) {
	case *models.Anchors:
		return newAnchors(f, in)
	case *models.Classes:
		return newClasses(f)
	case *models.DETR:
		return newDETR(f)
	case *models.Distances:
		return newDistances(f)
	case *models.Embedding:
		return &embedding{f}
	case *models.Faces:
		return newFaces(f, in)
	case *models.Map:
		return &cellMap{f}
	case *models.Objects:
		return newObjects(f, in)
	case *models.Polygons:
		return newPolygons(f)
	case *models.Pose:
		return newPose(f)
	case *models.Raw:
		return &raw{f, outputs}
	case *models.Text:
		return &text{f}
	case *models.YOLO:
		return newYOLO(f, in)
	}
	panic(fmt.Sprintf("decode: no decoder for %T", keys))
}

// Selections returns which rows of the outputs Append reads. It reads all if there are none.
func (d *Decoder) Selections() []device.Selection {
	if d.selector == nil || slices.ContainsFunc(d.outputs, func(o models.Tensor) bool { return o.Type != models.F32 }) {
		return nil
	}
	return d.selector.selections()
}

// Append appends the result's payload, at most ResultBytes, to dst and returns its
// wire.Kind. outputs has one slice for each of the card's outputs, in the
// card's order: one image's elements, little-endian. Append only reads them.
// After an error it returns dst unchanged. In steady state it allocates only to
// extend dst.
func (d *Decoder) Append(dst []byte, outputs [][]byte) (payload []byte, kind uint8, err error) {
	return d.append(dst, outputs, nil)
}

func (d *Decoder) append(dst []byte, outputs, selected [][]byte) (payload []byte, kind uint8, err error) {
	if len(outputs) != len(d.outputs) {
		return dst, 0, errOutputs
	}
	for i, o := range outputs {
		t := &d.outputs[i]
		if len(o) != t.Bytes() {
			return dst, 0, errOutputs
		}
		if t.Type != models.F32 && !d.unchanged {
			d.wide[i] = t.Type.AppendF32(d.wide[i][:0], o)
			o = d.wide[i]
		}
		d.values[i] = o
	}
	if d.selector != nil {
		d.selector.selectRows(selected)
	}
	payload, err = d.decode(dst, d.values)
	if i, ok := err.(notFinite); ok {
		return dst, 0, d.notFinite[i]
	}
	return payload, d.kind, nil
}

// AppendFrom is Append for a request that wants nothing below a score, in 1/65535; 0 means the card's threshold. Leaving it
// out of the result is the same as a higher threshold, since families keep the best, and only a better box suppresses
// another. The answer is about the picture at this place in the input. The outputs have only the selected rows, by the
// output of the scores, or all if nil (device.Tensors).
func (d *Decoder) AppendFrom(dst []byte, outputs, selected [][]byte, lowest uint16, place wire.Place) (payload []byte, kind uint8, err error) {
	if payload = dst; place == (wire.Place{}) {
		payload, kind, err = d.append(dst, outputs, selected)
	} else if d.payload, kind, err = d.append(d.payload[:0], outputs, selected); err == nil {
		payload = place.Append(dst, wire.Kind(kind), d.payload)
	}
	if err != nil || lowest == 0 {
		return payload, kind, err
	}
	least := float32(lowest) / math.MaxUint16
	rest := wire.Narrow(wire.Kind(kind), payload[len(dst):], func(_ uint16, score float32) bool { return score >= least })
	return payload[:len(dst)+len(rest)], kind, nil
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

// allFinite returns an error if an element of an output is not finite.
func allFinite(outputs [][]byte) error {
	for i, o := range outputs {
		if !finite(o) {
			return notFinite(i)
		}
	}
	return nil
}

// largest returns the index of the largest element, the first of equal ones.
func largest(elements []byte) (at int, top float32) {
	top = element(elements, 0)
	for i := range len(elements) / 4 {
		if v := element(elements, i); v > top {
			at, top = i, v
		}
	}
	return at, top
}

// raw passes on the tensors unchanged.
type raw struct {
	*models.Raw
	outputs []models.Tensor
}

func (d *raw) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	for i, o := range outputs {
		if !finiteOf(d.outputs[i].Type, o) {
			return nil, notFinite(i)
		}
		if len(d.Heads) > 0 {
			dst = append(dst, d.Heads[i]...)
		}
		dst = append(dst, o...)
	}
	return dst, nil
}

// exponents are like exponent for other floats. BF16 is the upper half of a float32.
var exponents = map[models.DType]uint64{models.F16: 0x1f << 10, models.BF16: exponent >> 16, models.F64: 0x7ff << 52}

// finiteOf is finite for elements of any type.
func finiteOf(t models.DType, elements []byte) bool {
	if t == models.F32 {
		return finite(elements)
	}
	mask, size := exponents[t], t.Bytes()
	if mask == 0 {
		return true
	}
	for ; len(elements) >= size; elements = elements[size:] {
		v := uint64(binary.LittleEndian.Uint16(elements))
		if size == 8 {
			v = binary.LittleEndian.Uint64(elements)
		}
		if v&mask == mask {
			return false
		}
	}
	return true
}
