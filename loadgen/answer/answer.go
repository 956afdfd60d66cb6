// Package answer compares two answers of a model within a tolerance. It is
// pure.
//
// The same model may answer with other last digits in a batch of eight than in
// a batch of one. Answers with equal bytes are therefore the same, but the
// bytes may also differ: Compare defines how far.
package answer

import (
	"fmt"

	"github.com/penstock/penstock/wire"
)

// Answer is the payload of one result, as it comes over the wire. The code that
// made the slice owns it.
type Answer struct {
	Kind    wire.Kind
	Payload []byte
}

// Top returns the most probable class of a top-k answer, -1 if there is none.
func (a Answer) Top() int {
	if a.Kind != wire.KindTopK || len(a.Payload) < wire.ClassSize {
		return -1
	}
	var room [1]wire.Class
	first, err := wire.DecodeTopK(room[:0], a.Payload[:wire.ClassSize])
	if err != nil {
		return -1
	}
	return int(first[0].Class)
}

// entries are the decoded entries of an answer, of its one kind. decode reuses
// the slices.
type entries struct {
	classes []wire.Class
	boxes   []wire.Box
	values  []float32
}

func (e *entries) decode(a Answer) (err error) {
	switch a.Kind {
	case wire.KindNone:
		if len(a.Payload) > 0 {
			err = wire.ErrPayload
		}
	case wire.KindTopK:
		e.classes, err = wire.DecodeTopK(e.classes[:0], a.Payload)
	case wire.KindBoxes:
		e.boxes, err = wire.DecodeBoxes(e.boxes[:0], a.Payload)
	case wire.KindRaw:
		e.values, err = wire.DecodeRaw(e.values[:0], a.Payload)
	default:
		err = wire.ErrKind
	}
	if err != nil {
		return fmt.Errorf("decode %d bytes of payload, kind %s: %w", len(a.Payload), a.Kind, err)
	}
	return nil
}
