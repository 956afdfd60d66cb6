package prepared

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Models are read field by field (protobuf.dev, "Encoding"), not decoded into messages.
// splitModel copies the fields that it does not change byte for byte. Weights are not
// copied.

var errWire = errors.New("not a protocol buffer")

// field is one field of a message. Its slices alias the message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  uint64 // of a varint
	data   []byte // of a length-delimited field
	raw    []byte // the whole field with its tag
}

// fields calls take with each field of a message, in order, until take fails. It returns
// errWire for a group: ONNX has none.
func fields(message []byte, take func(field) error) error {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return wireError(tag)
		}
		if !number.IsValid() {
			return fmt.Errorf("%w: field number %d", errWire, number)
		}

		f := field{number: number, kind: kind}
		rest := message[tag:]
		var n int
		switch kind {
		case protowire.VarintType:
			f.value, n = protowire.ConsumeVarint(rest)
		case protowire.BytesType:
			f.data, n = protowire.ConsumeBytes(rest)
		case protowire.Fixed32Type, protowire.Fixed64Type:
			n = protowire.ConsumeFieldValue(number, kind, rest)
		default:
			return fmt.Errorf("%w: field %d has wire type %d", errWire, number, kind)
		}
		if n < 0 {
			return wireError(n)
		}

		f.raw, message = message[:tag+n], rest[n:]
		if err := take(f); err != nil {
			return err
		}
	}
	return nil
}

// wireError returns the error for a negative length from protowire.
func wireError(code int) error { return fmt.Errorf("%w: %w", errWire, protowire.ParseError(code)) }

func appendVarint(to []byte, number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.VarintType), v)
}

func appendBytes(to []byte, number protowire.Number, data []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), data)
}

func appendString(to []byte, number protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(to, number, protowire.BytesType), s)
}
