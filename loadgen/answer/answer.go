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

// entries are the decoded entries of an answer.
type entries struct{ wire.Content }

func (e *entries) decode(a Answer) error {
	if err := e.Decode(a.Kind, a.Payload); err != nil {
		return fmt.Errorf("decode %d bytes of payload, kind %s: %w", len(a.Payload), a.Kind, err)
	}
	for i := range e.Polygons {
		e.Boxes = append(e.Boxes, e.Polygons[i].Outline())
	}
	return nil
}
