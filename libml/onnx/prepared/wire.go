package prepared

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Protocol buffers as they lie in a file (protobuf.dev, "Encoding"): a message is
// fields, each a number, a kind and a value. Nothing that is not changed is understood,
// and it goes over byte for byte.

// The kinds that there are.
const (
	kindVarint = 0
	kind64     = 1
	kindBytes  = 2
	kind32     = 5
)

var errWire = errors.New("it is no protocol buffer")

// field is one of a message: Value for a varint, Data for bytes. Raw is all of it, its
// key as well.
type field struct {
	number int
	kind   int
	value  uint64
	data   []byte
	raw    []byte
}

// fields calls take with each field of a message, in order, until it fails.
func fields(message []byte, take func(field) error) error {
	for len(message) > 0 {
		key, n := binary.Uvarint(message)
		if n <= 0 || key>>3 == 0 || key>>3 > 1<<29-1 {
			return errWire
		}
		f := field{number: int(key >> 3), kind: int(key & 7)}
		rest := message[n:]
		switch f.kind {
		case kindVarint:
			if f.value, n = binary.Uvarint(rest); n <= 0 {
				return errWire
			}
			rest = rest[n:]
		case kindBytes:
			length, n := binary.Uvarint(rest)
			if n <= 0 || length > uint64(len(rest)-n) {
				return errWire
			}
			f.data, rest = rest[n:n+int(length)], rest[n+int(length):]
		case kind64, kind32:
			size := 8
			if f.kind == kind32 {
				size = 4
			}
			if len(rest) < size {
				return errWire
			}
			rest = rest[size:]
		default:
			return fmt.Errorf("%w: a field of kind %d", errWire, f.kind)
		}
		f.raw = message[:len(message)-len(rest)]
		message = rest
		if err := take(f); err != nil {
			return err
		}
	}
	return nil
}

func appendVarint(to []byte, number int, v uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(to, uint64(number)<<3|kindVarint), v)
}

func appendBytes[T ~string | ~[]byte](to []byte, number int, data T) []byte {
	to = binary.AppendUvarint(to, uint64(number)<<3|kindBytes)
	return append(binary.AppendUvarint(to, uint64(len(data))), data...)
}
