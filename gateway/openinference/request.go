// Package openinference encodes and decodes the messages of the Open Inference Protocol, version 2
// (KServe), with the binary tensor extension. It has no network and no clock.
//
// A function is a model of the protocol. Its one input is a batch of pictures in the format that
// the function takes on the wire; each picture becomes one request.
package openinference

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/models"
)

// MaxPictures is the max number of pictures in one message.
const MaxPictures = 256

// maxSequenceName is the max length of a sequence's name, in bytes.
const maxSequenceName = 256

// HeaderLength is the HTTP header of the binary extension: the length of the JSON part of a
// body, in bytes. Raw tensors follow it.
const HeaderLength = "Inference-Header-Content-Length"

// Request is a decoded message.
type Request struct {
	ID string
	// Timeout is how long an answer is useful; 0 means the function's objective.
	Timeout time.Duration
	// Sequence names the requests that a model with state runs one after the other; empty for none. SequenceStart begins it
	// again.
	Sequence      string
	SequenceStart bool
	// Pictures are the pictures in the function's format. They share the body's memory.
	Pictures [][]byte
	// outputs are the wanted outputs in order; empty means all.
	outputs []outputWanted
	// binary applies to outputs that do not say it.
	binary bool
}

type outputWanted struct {
	name   string
	binary bool
}

// The JSON of a request. Unknown members are ignored, as the protocol asks.
type (
	requestJSON struct {
		ID         string       `json:"id"`
		Parameters parameters   `json:"parameters"`
		Inputs     []inputJSON  `json:"inputs"`
		Outputs    []outputJSON `json:"outputs"`
	}
	inputJSON struct {
		Name       string          `json:"name"`
		Shape      []int64         `json:"shape"`
		Datatype   string          `json:"datatype"`
		Parameters parameters      `json:"parameters"`
		Data       json.RawMessage `json:"data"`
	}
	outputJSON struct {
		Name       string     `json:"name"`
		Parameters parameters `json:"parameters"`
	}
	parameters struct {
		// Timeout is in microseconds, as Triton reads it.
		Timeout *json.Number `json:"timeout"`
		// SequenceID is a text or a number, 0 or empty for none, as Triton has them.
		SequenceID       json.RawMessage `json:"sequence_id"`
		SequenceStart    bool            `json:"sequence_start"`
		BinaryDataSize   *int64          `json:"binary_data_size"`
		BinaryData       *bool           `json:"binary_data"`
		BinaryDataOutput *bool           `json:"binary_data_output"`
	}
)

// datatypes are the protocol's names of element types.
var datatypes = map[models.DType]string{
	models.Bool: "BOOL", models.I8: "INT8", models.I16: "INT16", models.I32: "INT32", models.I64: "INT64",
	models.U8: "UINT8", models.U16: "UINT16", models.U32: "UINT32", models.U64: "UINT64",
	models.F16: "FP16", models.BF16: "BF16", models.F32: "FP32", models.F64: "FP64",
}

// DecodeBytes is the max number of bytes that DecodeRequest needs per byte of JSON, besides the body.
// One is for a copy of the text, two are for numbers: a digit and a comma become four bytes.
const DecodeBytes = 3

// DecodeRequest decodes the body of an infer call. headerLength is the value of HeaderLength,
// empty without the binary extension. The errors say what is wrong and what would be right.
func DecodeRequest(body []byte, headerLength string, in *models.Input) (*Request, error) {
	text, raw := body, []byte(nil)
	if headerLength != "" {
		n, err := strconv.ParseUint(headerLength, 10, 32)
		if err != nil || n > uint64(len(body)) {
			return nil, fmt.Errorf("header %s is %q, want a number of bytes up to the body's %d", HeaderLength, headerLength, len(body))
		}
		text, raw = body[:n], body[n:]
	}
	var q requestJSON
	if err := json.Unmarshal(text, &q); err != nil {
		return nil, fmt.Errorf("read JSON of request: %w", err)
	}
	if len(q.Inputs) != 1 {
		return nil, fmt.Errorf("request has %d inputs, want 1: %q", len(q.Inputs), InputName(in))
	}

	r := &Request{ID: q.ID, binary: q.Parameters.BinaryDataOutput != nil && *q.Parameters.BinaryDataOutput}
	if q.Parameters.Timeout != nil {
		micros, err := strconv.ParseInt(q.Parameters.Timeout.String(), 10, 64)
		if err != nil || micros < 0 || micros > math.MaxInt64/int64(time.Microsecond) {
			return nil, fmt.Errorf("parameter timeout is %s, want a whole number of microseconds", *q.Parameters.Timeout)
		}
		r.Timeout = time.Duration(micros) * time.Microsecond
	}
	switch id := string(q.Parameters.SequenceID); {
	case id == "", id == "null", id == "0", id == `""`:
	case len(id) > maxSequenceName, !strings.ContainsAny(id[:1], `"0123456789`):
		return nil, fmt.Errorf("parameter sequence_id is %.40s, want a text or a number of at most %d bytes", id, maxSequenceName)
	default:
		r.Sequence, r.SequenceStart = id, q.Parameters.SequenceStart
	}
	for _, o := range q.Outputs {
		wanted := outputWanted{name: o.Name, binary: r.binary}
		if o.Parameters.BinaryData != nil {
			wanted.binary = *o.Parameters.BinaryData
		}
		r.outputs = append(r.outputs, wanted)
	}

	input := &q.Inputs[0]
	data, err := input.bytes(raw, in)
	if err != nil {
		return nil, fmt.Errorf("input %q: %w", input.Name, err)
	}
	r.Pictures = slices.Collect(slices.Chunk(data, in.WireBytes()))
	return r, nil
}

// InputName is the name of a function's input in the protocol.
func InputName(in *models.Input) string {
	if in.Name == "" {
		return "picture"
	}
	return in.Name
}

// pictureShape is the shape of one picture.
func pictureShape(in *models.Input) []int64 {
	if in.WireLayout == models.CHW {
		return []int64{int64(in.Channels), int64(in.Height), int64(in.Width)}
	}
	return []int64{int64(in.Height), int64(in.Width), int64(in.Channels)}
}

// bytes checks an input and returns its tensor.
func (t *inputJSON) bytes(raw []byte, in *models.Input) ([]byte, error) {
	one := pictureShape(in)
	if t.Name != InputName(in) {
		return nil, fmt.Errorf("want the name %q", InputName(in))
	}
	if want := datatypes[in.WireType]; t.Datatype != want {
		return nil, fmt.Errorf("datatype is %q, want %q", t.Datatype, want)
	}
	count := int64(1)
	switch {
	case slices.Equal(t.Shape, one):
	case len(t.Shape) == len(one)+1 && slices.Equal(t.Shape[1:], one) && t.Shape[0] >= 1 && t.Shape[0] <= MaxPictures:
		count = t.Shape[0]
	default:
		return nil, fmt.Errorf("shape is %v, want %v, or the same with a number of pictures from 1 to %d before it", t.Shape, one, MaxPictures)
	}

	want := int(count) * in.WireBytes()
	if size := t.Parameters.BinaryDataSize; size != nil {
		if len(t.Data) > 0 {
			return nil, errors.New("has both data and binary_data_size, want one")
		}
		if *size != int64(want) || len(raw) != want {
			return nil, fmt.Errorf("binary_data_size is %d, with %d bytes after the JSON, want %d in both places", *size, len(raw), want)
		}
		return raw, nil
	}
	if len(raw) > 0 {
		return nil, fmt.Errorf("has no binary_data_size, and %d bytes follow the JSON", len(raw))
	}
	if in.WireType == models.F16 {
		return nil, errors.New("FP16 has no JSON form, want the binary extension (binary_data_size)")
	}
	return numbers(t.Data, want/in.WireType.Bytes(), in.WireType)
}

// numbers decodes a JSON array of numbers, flat or nested, in row-major order.
func numbers(text []byte, want int, as models.DType) ([]byte, error) {
	data := make([]byte, 0, min(want, len(text)/2+1)*as.Bytes())
	depth, found := 0, 0
	for len(text) > 0 {
		switch c := text[0]; {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r':
		case depth == 0:
			return nil, errors.New("data is no array of numbers")
		default:
			n := bytes.IndexAny(text, ",] \n\t\r")
			if n <= 0 {
				return nil, errors.New("data is no array of numbers")
			}
			if found++; found > want {
				return nil, fmt.Errorf("data has more than %d numbers, which the shape wants", want)
			}
			var err error
			if data, err = appendNumber(data, text[:n], as); err != nil {
				return nil, fmt.Errorf("number %d of data: %w", found, err)
			}
			text = text[n:]
			continue
		}
		text = text[1:]
	}
	if found != want {
		return nil, fmt.Errorf("data has %d numbers, the shape wants %d", found, want)
	}
	return data, nil
}

func appendNumber(data, text []byte, as models.DType) ([]byte, error) {
	if as == models.U8 {
		v, err := strconv.ParseUint(string(text), 10, 8)
		if err != nil {
			return nil, fmt.Errorf("%q, want an integer from 0 to 255", text)
		}
		return append(data, byte(v)), nil
	}
	v, err := strconv.ParseFloat(string(text), 32)
	if err != nil {
		return nil, fmt.Errorf("%q, want a number that fits 32 bits", text)
	}
	return binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v))), nil
}
