// Package openinference encodes and decodes the messages of the Open Inference Protocol, version 2
// (KServe), with the binary tensor extension. It has no network and no clock.
//
// A function is a model of the protocol. Its inputs are the picture in the format that the function takes on the wire, or the
// tensors of its card. A message has one or more images; each becomes one request.
package openinference

import (
	"bytes"
	"cmp"
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

// MaxImages is the max number of images in one message.
const MaxImages = 256

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
	// Payloads are those of the requests: an image's inputs in the card's order. They share the memory of the body, or that of Fill.
	Payloads [][]byte
	// Photos says that Payloads are files of pictures.
	Photos bool
	// Needed is the size of the memory for Fill, which makes Payloads. 0: the request has them.
	Needed int

	images int
	fill   func(memory []byte) error
	// outputs are the wanted outputs in order; empty means all.
	outputs []outputWanted
	// binary applies to outputs that do not say it.
	binary  bool
	labels  []string // of the model's classes
	regions Regions
}

// Regions reads a part of a client's shared memory, or writes it if there is something to write.
type Regions func(region string, offset, size uint64, write []byte) (read []byte, err error)

// part is the place of a tensor in shared memory, by the extension's parameters.
type part struct {
	Region string `json:"shared_memory_region"` // empty: the tensor is in the message
	Offset uint64 `json:"shared_memory_offset,omitempty"`
	Size   uint64 `json:"shared_memory_byte_size"`
}

type outputWanted struct {
	name   string
	binary bool
	// classes is the number of best classes that the output has in place of its values; 0: it has those.
	classes int
	part
}

// The JSON of a request. Unknown members are ignored, as the protocol asks.
type (
	requestJSON struct {
		ID         string     `json:"id"`
		Parameters parameters `json:"parameters"`
		// An element takes far more memory than its text, like {}. So more of them are not read.
		Inputs  [maxTensors + 1]*inputJSON  `json:"inputs"`
		Outputs [maxTensors + 1]*outputJSON `json:"outputs"`
	}
	inputJSON struct {
		Name       string          `json:"name"`
		Shape      shape           `json:"shape"`
		Datatype   string          `json:"datatype"`
		Parameters parameters      `json:"parameters"`
		Data       json.RawMessage `json:"data"`

		images int
		raw    []byte // binary data; set before check by messages of gRPC and regions
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
		Classification   int             `json:"classification"`
		part
	}
)

// maxTensors is the max number of inputs, and of outputs, of a message. A card has at most 32 of each.
const maxTensors = 64

// element is one of a list, and not null.
type element struct{}

func (element) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return errors.New("element of inputs or outputs is null, want an object")
	}
	return nil
}

// shape is a tensor's, whose JSON is short: a number takes more memory than its text.
type shape []int64

func (s *shape) UnmarshalJSON(text []byte) error {
	const most = 256 // bytes
	if len(text) > most {
		return fmt.Errorf("shape has %d bytes, want at most %d", len(text), most)
	}
	return json.Unmarshal(text, (*[]int64)(s))
}

// datatypes are the protocol's names of element types.
var datatypes = map[models.DType]string{
	models.Bool: "BOOL", models.I8: "INT8", models.I16: "INT16", models.I32: "INT32", models.I64: "INT64",
	models.U8: "UINT8", models.U16: "UINT16", models.U32: "UINT32", models.U64: "UINT64",
	models.F16: "FP16", models.BF16: "BF16", models.F32: "FP32", models.F64: "FP64",
}

// DecodeBytes is the max number of bytes that DecodeRequest and Fill need per byte of JSON, besides the body and the payloads. One
// is for a copy of the text, two are for numbers of the model's tensor: a digit and a comma become four bytes.
const DecodeBytes = 3

// DecodeRequest decodes the body of an infer call. headerLength is the value of HeaderLength,
// empty without the binary extension. The errors say what is wrong and what would be right.
func DecodeRequest(body []byte, headerLength string, card *models.Card, regions Regions) (*Request, error) {
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
	if bytes.Contains(text, []byte("null")) { // perhaps in a list, where q shows it like the end of the list
		var lists struct{ Inputs, Outputs [maxTensors]element }
		if err := json.Unmarshal(text, &lists); err != nil {
			return nil, fmt.Errorf("read JSON of request: %w", err)
		}
	}
	return newRequest(&q, raw, card, regions)
}

// newRequest checks a message. raw are the binary data of all inputs that have binary_data_size.
func newRequest(q *requestJSON, raw []byte, card *models.Card, regions Regions) (r *Request, err error) {
	if q.Inputs[maxTensors] != nil || q.Outputs[maxTensors] != nil {
		return nil, fmt.Errorf("message has more than %d inputs or outputs, want at most as many", maxTensors)
	}
	sent := slices.DeleteFunc(q.Inputs[:], func(t *inputJSON) bool { return t == nil })
	r = &Request{ID: q.ID, regions: regions, labels: card.Labels, binary: q.Parameters.BinaryDataOutput != nil && *q.Parameters.BinaryDataOutput}
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
		if o == nil || slices.ContainsFunc(r.outputs, func(other outputWanted) bool { return other.name == o.Name }) {
			continue // one answer is enough
		}
		wanted := outputWanted{name: o.Name, binary: r.binary, classes: o.Parameters.Classification, part: o.Parameters.part}
		if wanted.classes < 0 {
			return nil, fmt.Errorf("output %q: parameter classification is %d, want a number of classes", o.Name, wanted.classes)
		}
		if o.Parameters.BinaryData != nil {
			wanted.binary = *o.Parameters.BinaryData
		}
		r.outputs = append(r.outputs, wanted)
	}

	for _, t := range sent {
		p := &t.Parameters
		if p.Region == "" {
			continue
		}
		if t.raw != nil || len(t.Data) > 0 || p.BinaryDataSize != nil {
			return nil, fmt.Errorf("input %q: has both data and shared_memory_region, want one", t.Name)
		}
		if t.raw, err = regions(p.Region, p.Offset, p.Size, nil); err != nil {
			return nil, fmt.Errorf("input %q: %w", t.Name, err)
		}
	}
	want := inputs(card)
	if len(card.Inputs) == 0 && len(sent) == 1 && sent[0].Name == want[0].Name && sent[0].Datatype == "BYTES" {
		r.Photos = true
		r.Payloads, err = sent[0].files(raw)
		return r, err
	}
	tensor := card.InputTensors()[:1]
	asTensor := len(sent) == 1 && len(card.Inputs) == 0 && sent[0].is(&tensor[0]) && !sent[0].is(&want[0])
	if asTensor {
		want = tensor
	}
	if err := r.place(sent, raw, want); err != nil {
		return nil, err
	}
	if asTensor {
		r.convert(&card.Input)
	}
	return r, nil
}

// Fill makes Payloads in memory of the size Needed.
func (r *Request) Fill(memory []byte) error {
	if r.fill == nil {
		return nil
	}
	r.Payloads = slices.Collect(slices.Chunk(memory, len(memory)/r.images))
	return r.fill(memory)
}

// inputs returns the tensors of a request, of one image.
func inputs(card *models.Card) []models.Tensor {
	if len(card.Inputs) > 0 {
		return card.Inputs
	}
	in := &card.Input
	picture := models.Tensor{Name: cmp.Or(in.Name, "picture"), Type: in.WireType}
	picture.Shape = []int64{int64(in.Height), int64(in.Width), int64(in.Channels)}
	if in.WireLayout == models.CHW {
		picture.Shape = []int64{int64(in.Channels), int64(in.Height), int64(in.Width)}
	}
	return []models.Tensor{picture}
}

// place puts the inputs of each image together.
func (r *Request) place(sent []*inputJSON, raw []byte, want []models.Tensor) (err error) {
	found := make([]*inputJSON, len(want))
	for _, t := range sent {
		at := slices.IndexFunc(want, func(w models.Tensor) bool { return w.Name == t.Name })
		switch {
		case at < 0:
			return fmt.Errorf("function has no input %q, want %s", t.Name, list(want))
		case found[at] != nil:
			return fmt.Errorf("input %q is there twice, want it once", t.Name)
		}
		if raw, err = t.check(&want[at], raw); err != nil {
			return err
		}
		found[at] = t
	}
	size := 0 // of a payload
	for i, t := range found {
		switch {
		case t == nil:
			return fmt.Errorf("input %q is missing, want %s", want[i].Name, list(want))
		case t.images != found[0].images:
			return fmt.Errorf("input %q is of %d images, %q of %d; want as many of each", t.Name, t.images, found[0].Name, found[0].images)
		}
		size += want[i].Bytes()
	}
	if len(raw) > 0 {
		return fmt.Errorf("%d bytes follow the inputs, whose binary_data_size does not count them", len(raw))
	}
	if r.images = found[0].images; len(found) == 1 && found[0].raw != nil {
		r.Payloads = slices.Collect(slices.Chunk(found[0].raw, size))
		return nil
	}

	r.Needed = r.images * size
	r.fill = func(memory []byte) error {
		offset := 0
		for k, t := range found {
			if err := t.fill(memory[offset:], size, &want[k]); err != nil {
				return err
			}
			offset += want[k].Bytes()
		}
		return nil
	}
	return nil
}

// convert makes payloads of tensors as the model's file declares them, for clients that prepare pictures for the model.
func (r *Request) convert(in *models.Input) {
	tensors, size, fill := r.Payloads, r.Needed, r.fill
	r.Needed = r.images * in.WireBytes()
	r.fill = func([]byte) error {
		if fill != nil {
			own := make([]byte, size)
			if err := fill(own); err != nil {
				return err
			}
			tensors = slices.Collect(slices.Chunk(own, size/r.images))
		}
		for i, tensor := range tensors {
			if err := toWire(r.Payloads[i], tensor, in); err != nil {
				return fmt.Errorf("input %q: %w", in.Name, err)
			}
		}
		return nil
	}
}

// toWire makes a picture on the wire of its tensor. It is the reverse of what the gather does.
func toWire(picture, tensor []byte, in *models.Input) error {
	from, to, pixels := in.TensorType.Bytes(), in.WireType.Bytes(), in.Height*in.Width
	places := func(layout models.Layout, channel int) (first, step int) {
		if layout == models.CHW {
			return channel * pixels, 1
		}
		return channel, in.Channels
	}
	least, end := in.WireType.Range() // of integers
	integers, u8 := !in.WireType.IsFloat(), in.WireType == models.U8
	for c := range in.Channels {
		of := c
		if in.ReverseChannels {
			of = in.Channels - 1 - c
		}
		at, step := places(in.TensorLayout, of)
		place, wireStep := places(in.WireLayout, c)
		mean, std := float32(0), float32(1)
		if len(in.Mean) > 0 {
			mean, std = in.Mean[of], in.Std[of]
		}
		for range pixels {
			v := float64(in.TensorType.Float(tensor[at*from:])*std + mean)
			if integers {
				v = math.RoundToEven(v)
			}
			switch {
			case integers && !(v >= least && v < end):
				return fmt.Errorf("element %d of an image is %v in a picture of %s, want %v to %v; prepare pictures as the card says, or send them as they are",
					at, v, datatypes[in.WireType], least, end-1)
			case u8: // fast: most functions take it
				picture[place] = byte(v)
			default:
				in.WireType.Append(picture[:place*to], v)
			}
			at, place = at+step, place+wireStep
		}
	}
	return nil
}

// fileJSON is a file in base64, or an array of one.
type fileJSON []byte

func (f *fileJSON) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(bytes.Trim(text, "[] \n\t\r"), (*[]byte)(f))
}

// files returns the elements of an input of BYTES: texts of base64, or binary data in which the length of each, 4 bytes, is before it.
func (t *inputJSON) files(raw []byte) (files [][]byte, err error) {
	switch size := t.Parameters.BinaryDataSize; {
	case t.raw != nil:
		raw = t.raw
	case size != nil && *size != int64(len(raw)):
		return nil, fmt.Errorf("input %q: binary_data_size is %d, and %d bytes follow", t.Name, *size, len(raw))
	case size == nil && len(raw) > 0:
		return nil, fmt.Errorf("input %q: %d bytes follow, and there is no binary_data_size", t.Name, len(raw))
	case size == nil:
		var all [MaxImages + 1]fileJSON
		if err := json.Unmarshal(t.Data, &all); err != nil {
			return nil, fmt.Errorf("input %q: data is no list of texts in base64, want files of pictures: %w", t.Name, err)
		}
		for i := 0; i < len(all) && all[i] != nil; i++ {
			files = append(files, all[i])
		}
	}
	for len(raw) > 0 && len(files) <= MaxImages {
		if len(raw) < 4 || uint64(binary.LittleEndian.Uint32(raw)) > uint64(len(raw)-4) {
			return nil, fmt.Errorf("input %q: element %d is longer than the %d bytes that are left, want its length in 4 bytes, little endian, and so many bytes", t.Name, len(files)+1, len(raw))
		}
		end := 4 + int(binary.LittleEndian.Uint32(raw))
		files, raw = append(files, raw[4:end:end]), raw[end:]
	}
	n := int64(len(files))
	if n == 0 || n > MaxImages || !slices.Equal(t.Shape, []int64{n}) && !slices.Equal(t.Shape, []int64{n, 1}) {
		return nil, fmt.Errorf("input %q: shape is %v, and there are %d files, want [n] with 1 to %d files", t.Name, t.Shape, n, MaxImages)
	}
	return files, nil
}

// list describes inputs.
func list(want []models.Tensor) string {
	var all []string
	for i := range want {
		all = append(all, fmt.Sprintf("%q (%s %v)", want[i].Name, datatypes[want[i].Type], want[i].Shape))
	}
	return strings.Join(all, ", ")
}

// is reports whether an input has the name, type and shape of want.
func (t *inputJSON) is(want *models.Tensor) bool {
	return t.Name == want.Name && t.Datatype == datatypes[want.Type] && t.count(want.Shape) > 0
}

// count returns the number of images if each has this shape, else 0.
func (t *inputJSON) count(one []int64) int {
	switch {
	case slices.Equal(t.Shape, one):
		return 1
	case len(t.Shape) == len(one)+1 && slices.Equal(t.Shape[1:], one) && t.Shape[0] >= 1 && t.Shape[0] <= MaxImages:
		return int(t.Shape[0])
	}
	return 0
}

// check compares an input with the card's. It takes binary data from the start of raw, and returns the rest.
func (t *inputJSON) check(want *models.Tensor, raw []byte) (rest []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("input %q: %w", t.Name, err)
		}
	}()
	if name := datatypes[want.Type]; t.Datatype != name {
		return nil, fmt.Errorf("datatype is %q, want %q", t.Datatype, name)
	}
	if t.images = t.count(want.Shape); t.images == 0 {
		return nil, fmt.Errorf("shape is %v, want %v, or the same with a number of images from 1 to %d before it", t.Shape, want.Shape, MaxImages)
	}

	size := t.images * want.Bytes()
	switch binary := t.Parameters.BinaryDataSize; {
	case t.raw != nil && len(t.raw) != size:
		return nil, fmt.Errorf("has %d bytes, the shape wants %d", len(t.raw), size)
	case t.raw != nil:
		return raw, nil
	case binary == nil && !bytes.HasPrefix(t.Data, []byte("[")):
		return nil, errors.New("data is no array of numbers; want one, or a binary_data_size")
	case binary == nil:
		if n := bytes.Count(t.Data, []byte(",")) + 1; n != t.images*want.Elements() {
			return nil, fmt.Errorf("data has %d numbers, the shape wants %d", n, t.images*want.Elements())
		}
		return raw, nil
	case len(t.Data) > 0:
		return nil, errors.New("has both data and binary_data_size, want one")
	case *binary != int64(size) || len(raw) < size:
		return nil, fmt.Errorf("binary_data_size is %d, and %d bytes are left for it after the JSON; the shape wants %d", *binary, len(raw), size)
	}
	t.raw = raw[:size]
	return raw[size:], nil
}

// fill writes the input of each image to data. Payloads of this size follow each other.
func (t *inputJSON) fill(data []byte, size int, want *models.Tensor) error {
	bytes, elements, bits := want.Bytes(), want.Elements(), 8*want.Type.Bytes()
	for i := range t.images {
		to := data[i*size:][:0:bytes]
		if t.raw != nil {
			copy(to[:bytes], t.raw[i*bytes:])
			continue
		}
		for j := range elements {
			text, err := t.number()
			if err == nil {
				to, err = appendNumber(to, text, want.Type, bits)
			}
			if err != nil {
				return fmt.Errorf("input %q: number %d of data: %w", t.Name, i*elements+j+1, err)
			}
		}
	}
	return nil
}

// number cuts the next number from data, an array that is flat or nested, in row-major order.
func (t *inputJSON) number() ([]byte, error) {
	const space = ", \n\t\r"
	text := bytes.TrimLeft(t.Data, "[]"+space)
	n := bytes.IndexAny(text, "]"+space)
	if n < 0 {
		return nil, errors.New("is missing: an array is empty")
	}
	t.Data = text[n:]
	return text[:n], nil
}

// appendNumber appends a number of JSON as an element of a type with so many bits.
func appendNumber(dst, text []byte, as models.DType, bits int) ([]byte, error) {
	var v uint64
	switch {
	case as == models.Bool:
		if string(text) != "true" && string(text) != "false" {
			return nil, fmt.Errorf("%q, want true or false", text)
		}
		v = uint64(len("false") - len(text))
	case as.IsFloat():
		f, err := strconv.ParseFloat(string(text), max(bits, 32))
		if err != nil || !as.Holds(f) {
			return nil, fmt.Errorf("%q, want a number within the range of %s", text, datatypes[as])
		}
		return as.Append(dst, f), nil
	case as[0] == 'i':
		n, err := strconv.ParseInt(string(text), 10, bits)
		if err != nil {
			return nil, fmt.Errorf("%q, want an integer from %d to %d", text, -1<<(bits-1), 1<<(bits-1)-1)
		}
		v = uint64(n)
	default:
		var err error
		if v, err = strconv.ParseUint(string(text), 10, bits); err != nil {
			return nil, fmt.Errorf("%q, want an integer from 0 to %d", text, uint64(math.MaxUint64)>>(64-bits))
		}
	}
	var all [8]byte
	binary.LittleEndian.PutUint64(all[:], v)
	return append(dst, all[:bits/8]...), nil
}
