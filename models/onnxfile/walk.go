package onnxfile

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// message is a message of onnx.proto (ONNX 1.20).
type message int

const (
	modelProto message = iota + 1
	functionProto
	graphProto
	nodeProto
	attributeProto
	sparseTensorProto
	tensorProto
	entryProto
)

// children are the fields that hold, at some depth, a tensor's entries.
var children = map[message]map[protowire.Number]message{
	modelProto:        {7: graphProto, 25: functionProto},
	functionProto:     {7: nodeProto},
	graphProto:        {1: nodeProto, 5: tensorProto, 15: sparseTensorProto},
	nodeProto:         {5: attributeProto},
	attributeProto:    {5: tensorProto, 6: graphProto, 10: tensorProto, 11: graphProto, 22: sparseTensorProto, 23: sparseTensorProto},
	sparseTensorProto: {1: tensorProto, 2: tensorProto},
	tensorProto:       {13: entryProto},
}

const (
	tensorLocation   = 14
	locationExternal = 1
	entryKey         = 1
	entryValue       = 2

	maxDepth     = 64
	maxNameBytes = 4096
)

var errWire = errors.New("not a protocol buffer")

// cutError is returned for a field that ends behind the end of its message.
type cutError struct{ end int64 }

func (e *cutError) Error() string { return fmt.Sprintf("a field ends at byte %d", e.end) }

// walker finds the names of other files in a model. It reads tags and skips weights: a model may have
// gigabytes.
type walker struct {
	file     window
	names    []string
	external bool   // of the tensor that is being read
	location string // the same
}

// walk reads a message, from one offset to another.
func (w *walker) walk(m message, from, to int64, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: it is nested too deep", errWire)
	}
	if m == tensorProto {
		w.external, w.location = false, ""
	}
	var key, value string
	err := w.file.fields(from, to, func(f field) error {
		child := children[m][f.number]
		switch {
		case child != 0 && f.kind == protowire.BytesType:
			return w.walk(child, f.from, f.to, depth+1)
		case m == tensorProto && f.number == tensorLocation && f.kind == protowire.VarintType:
			w.external = f.value == locationExternal
		case m == entryProto && f.number == entryKey && f.to-f.from <= maxNameBytes:
			key = string(w.file.at(f.from, f.to-f.from))
		case m == entryProto && f.number == entryValue && f.to-f.from <= maxNameBytes:
			value = string(w.file.at(f.from, f.to-f.from))
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case m == entryProto && key == "location":
		w.location = value
	case m == tensorProto && w.external:
		w.names = append(w.names, w.location)
	}
	return nil
}

// field is a field of a message: a number, or bytes from one offset of the file to another.
type field struct {
	number   protowire.Number
	kind     protowire.Type
	value    uint64
	from, to int64
}

// fields calls f for each field of the message from one offset to another.
func (w *window) fields(from, to int64, f func(field) error) error {
	for at := from; at < to; {
		head := w.at(at, min(to-at, 2*10)) // a tag, and a length or a number
		number, kind, n := protowire.ConsumeTag(head)
		if n < 0 {
			return errWire
		}
		head, at = head[n:], at+int64(n)
		next := field{number: number, kind: kind, from: at, to: at}
		switch kind {
		case protowire.BytesType, protowire.VarintType:
			next.value, n = protowire.ConsumeVarint(head)
		case protowire.StartGroupType, protowire.EndGroupType:
			return errWire // ONNX has none
		default:
			n = protowire.ConsumeFieldValue(number, kind, head)
		}
		if n < 0 {
			return errWire
		}
		if at += int64(n); kind == protowire.BytesType {
			if next.value > uint64(to-at) {
				return &cutError{at + int64(min(next.value, 1<<62))}
			}
			next.from, next.to = at, at+int64(next.value)
			at = next.to
		}
		if err := f(next); err != nil {
			return err
		}
	}
	return nil
}

// window reads small parts of a file, mostly one after the other.
type window struct {
	of    io.ReaderAt
	bytes [4096]byte
	begin int64
	n     int
}

// at returns n bytes, at most maxNameBytes, at an offset: fewer at the file's end. They are valid until
// the next call.
func (w *window) at(offset, n int64) []byte {
	if offset < w.begin || offset+n > w.begin+int64(w.n) {
		w.begin = offset
		w.n, _ = w.of.ReadAt(w.bytes[:], offset) // a part that is missing is reported as damage
	}
	from := offset - w.begin
	return w.bytes[from:min(int64(w.n), from+n)]
}
