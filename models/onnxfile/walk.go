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
	for at := from; at < to; {
		head := w.file.at(at, min(to-at, 2*10)) // a tag, and a length or a number
		number, kind, n := protowire.ConsumeTag(head)
		if n < 0 {
			return errWire
		}
		head, at = head[n:], at+int64(n)
		if kind != protowire.BytesType {
			if n = w.skip(m, number, kind, head); n < 0 {
				return errWire
			}
			at += int64(n)
			continue
		}

		length, n := protowire.ConsumeVarint(head)
		if n < 0 {
			return errWire
		}
		at += int64(n)
		if length > uint64(to-at) {
			return &cutError{at + int64(min(length, 1<<62))}
		}
		end := at + int64(length)
		child := children[m][number]
		switch {
		case child != 0:
			if err := w.walk(child, at, end, depth+1); err != nil {
				return err
			}
		case m == entryProto && length <= maxNameBytes && number == entryKey:
			key = string(w.file.at(at, end-at))
		case m == entryProto && length <= maxNameBytes && number == entryValue:
			value = string(w.file.at(at, end-at))
		}
		at = end
	}
	switch {
	case m == entryProto && key == "location":
		w.location = value
	case m == tensorProto && w.external:
		w.names = append(w.names, w.location)
	}
	return nil
}

// skip returns the length of a field that is no message, or a negative number.
func (w *walker) skip(m message, number protowire.Number, kind protowire.Type, data []byte) int {
	if kind == protowire.VarintType {
		v, n := protowire.ConsumeVarint(data)
		if m == tensorProto && number == tensorLocation {
			w.external = v == locationExternal
		}
		return n
	}
	if kind == protowire.StartGroupType || kind == protowire.EndGroupType {
		return -1 // ONNX has none
	}
	return protowire.ConsumeFieldValue(number, kind, data)
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
