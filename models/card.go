// Package models is the model registry: cards, and the search for them. A card
// describes a model's file, the picture on the wire, the input tensor, and how
// outputs are decoded. It also has the model's latency objective and knee.
//
// A Card is pure data: reading one touches no device and loads no weights.
package models

import (
	"reflect"
	"slices"
	"time"

	"github.com/penstock/penstock/wire"
)

// Layout is the order of a picture's axes, without the batch axis.
type Layout string

// HWC keeps a pixel's channels together; CHW keeps a channel's pixels together.
const (
	HWC Layout = "hwc"
	CHW Layout = "chw"
)

// Card describes one model to Penstock. The zero value is not valid. ReadCard
// returns checked cards.
type Card struct {
	// Name is the model's name: lower case letters, digits, '-' and '_'.
	Name string
	// Version is sent to clients in every result. A replacement has a higher
	// version.
	Version uint32
	// Framework names a framework that comes with Penstock ("onnx", "pytorch",
	// "null"). It is empty if Command names the user's own program.
	Framework string
	// Command is the program that links libml itself, with its arguments. A
	// relative program path is resolved against Dir.
	Command []string
	// Model is the model's file, absolute after ReadCard. It is empty if the
	// framework needs none.
	Model string
	// Data are other files that the model reads, absolute: an ONNX model may have its weights in them.
	Data []string `json:",omitempty"`
	// Sums are the SHA-256 sums, in hex, that Files must have; nil if the configuration demands none.
	Sums []string `json:",omitempty"`
	// File is the card's own file, Dir the folder that it was read from. Both
	// are absolute.
	File string
	Dir  string

	// Input is what a request holds. Inputs are the tensors that it holds if it is not a picture; see InputTensors.
	Input  Input
	Inputs []Tensor `json:",omitempty"`
	// Lengths are those of the first dimension of the Inputs that have the last one. PadLengths: a shorter request is
	// filled with zeros.
	Lengths    []int `json:",omitempty"`
	PadLengths bool  `json:",omitempty"`
	// Constants are the values of inputs that no request has, by name.
	Constants map[string][]float64 `json:",omitempty"`
	// State are outputs that become inputs of the same stream's next request. Outputs are the others: answers are made of
	// them.
	State   []State `json:",omitempty"`
	Outputs []Tensor

	// Batches are the batch sizes that are prepared, ascending. The first is 1, or the only one is that of a model with
	// a fixed batch. A batch between two sizes is padded to the next.
	Batches []int
	// AutoBatches: the card leaves the sizes to Penstock. Batches are those of the largest device (On), and a process
	// prepares those that suit the objective.
	AutoBatches bool `json:",omitempty"`
	// SLO is the default latency objective, from the first packet sent to the
	// reply. A configuration may set another one for an inference function.
	SLO time.Duration
	// KneePercent is the share beyond which more helps little (paper 2.1.3). It
	// is the elastic demand until there are observations; 0 if it is not known.
	KneePercent float64
	// Knees are the knees of the profiled batch sizes, ascending by batch.
	// `penstock profile` prints them; KneePercent is then one of them.
	Knees []Knee
	// Threads is how many CPU threads the framework may use. 0 means as many as
	// there are CPUs for inference functions.
	Threads int

	Decoder Decoder
	// Warnings are what is probably wrong in the card's file, a line each.
	Warnings []string `json:"-"`
	// Labels are the names of the classes, in order. They may be empty.
	Labels []string
}

// Equal reports whether two cards say the same.
func (c *Card) Equal(other *Card) bool {
	a, b := *c, *other
	a.Warnings, b.Warnings = nil, nil
	return reflect.DeepEqual(a, b)
}

// PyTorch is the framework that is not part of Penstock's binary: it is a
// separate program in Python.
const PyTorch = "pytorch"

// SeparateProgram returns the card's framework if that is a separate program, else an
// empty string.
func (c *Card) SeparateProgram() string {
	if c.Framework == PyTorch {
		return c.Framework
	}
	return ""
}

// Knee is the share beyond which more helps little for batches of one size.
type Knee struct {
	// A batch size.
	Batch int `yaml:"batch" required:"true" min:"1" max:"1024" want:"a batch size"`
	// The knee of that batch size.
	Percent float64 `yaml:"percent" required:"true" min:"0" max:"100"`
}

// Input describes the picture on the wire and the tensor that the model takes. A request of tensors is
// described as a picture of one line, whose pixels are bytes.
type Input struct {
	// Name is the model's input name.
	Name string
	// Height, Width and Channels are the picture's size. It is the same on the
	// wire and in the tensor.
	Height, Width, Channels int
	// Heights and Widths are those of all sizes; the last are Height and Width. They are empty if there is one size.
	Heights, Widths []int `json:",omitempty"`
	// WireType and WireLayout describe a request's payload.
	WireType   DType
	WireLayout Layout
	// TensorType and TensorLayout describe one image of the batch tensor, whose
	// shape is [batch, H, W, C] or [batch, C, H, W].
	TensorType   DType
	TensorLayout Layout
	// BatchAxis is that of the tensor: 0 or NoBatchAxis.
	BatchAxis int `json:",omitempty"`
	// Fit is how a photo of another size becomes the picture: letterbox, stretch, crop or left (picture.Way).
	// Pad is the colour beside it, a value per channel of the picture; black if empty.
	Fit string `json:",omitempty"`
	Pad []int  `json:",omitempty"`
	// Antialias: a pixel of a smaller photo is the mean of what it covers, not a mixture of four pixels.
	Antialias bool `json:",omitempty"`
	// Range is the samples of black and white in pictures of more than 8 bits. If both are 0, they are the first and the
	// last that the picture's format has.
	Range [2]int `json:",omitzero"`
	// Background is the red, green and blue behind transparent pixels.
	Background [3]uint8
	// Parts are the tensors of a request that is not a picture, in the order of Card.Inputs. Cards
	// never set it.
	Parts []Part `json:",omitempty"`
	// ReverseChannels turns RGB on the wire into BGR in the tensor (or back).
	ReverseChannels bool
	// Mean and Std normalise each tensor channel: (v - Mean[c]) / Std[c], in the
	// tensor's channel order. Both have one value per channel, or both are empty
	// for no normalisation.
	Mean, Std []float32
}

// Part is the place of a tensor among the inputs of a batch.
type Part struct {
	At    int // offset of the tensor of the largest batch
	Bytes int // of one image
	Row   int `json:",omitempty"` // bytes of an element of the first dimension, if requests may have fewer; else 0
}

// pack describes requests of tensors: without gaps, in this order.
func (c *Card) pack() Input {
	in := Input{Height: 1, Channels: 1, WireType: U8, WireLayout: HWC, TensorType: U8, TensorLayout: HWC}
	at := 0
	for i := range c.Inputs {
		part := Part{At: at, Bytes: c.Inputs[i].Bytes()}
		if c.PadLengths && c.hasLength(&c.Inputs[i]) {
			part.Row = part.Bytes / c.Lengths[len(c.Lengths)-1]
		}
		in.Parts, in.Width = append(in.Parts, part), in.Width+part.Bytes
		at += Aligned(c.MaxBatch() * part.Bytes)
	}
	return in
}

// Places returns the places of the input tensors.
func (in *Input) Places() []Part {
	if len(in.Parts) > 0 {
		return in.Parts
	}
	return []Part{{Bytes: in.TensorBytes()}}
}

// last returns the place of the last input.
func (in *Input) last() Part {
	if n := len(in.Parts); n > 0 {
		return in.Parts[n-1]
	}
	return Part{Bytes: in.TensorBytes()}
}

// BatchBytes returns the size of the memory for the inputs of the largest batch, and of n images if there is one
// input.
func (in *Input) BatchBytes(n int) int { return in.last().At + n*in.last().Bytes }

// Images returns how many images fit into the memory for inputs. It is the inverse of BatchBytes.
func (in *Input) Images(batchBytes int) int {
	last := in.last()
	if batchBytes < last.At || last.Bytes == 0 {
		return 0
	}
	return (batchBytes - last.At) / last.Bytes
}

// State is an output that becomes an input of the same stream's next request. The input of the first one is zero.
type State struct {
	Input  string
	Output Tensor
}

// StateBytes returns the size of a stream's state.
func (c *Card) StateBytes() (bytes int) {
	for i := range c.State {
		bytes += c.State[i].Output.Bytes()
	}
	return bytes
}

// InputTensors returns the tensors that libml fills for the model: Inputs, or the one that the gather makes of a
// picture; then those of State.
func (c *Card) InputTensors() []Tensor {
	tensors := slices.Clip(c.Inputs)
	if len(tensors) == 0 {
		tensors = []Tensor{{Name: c.Input.Name, Type: c.Input.TensorType, Shape: c.Input.Shape(1)[1:], BatchAxis: c.Input.BatchAxis}}
	}
	for _, s := range c.State {
		in := s.Output
		in.Name = s.Input
		tensors = append(tensors, in)
	}
	return tensors
}

// OutputTensors returns the tensors that the model fills: Outputs, then those of State.
func (c *Card) OutputTensors() []Tensor {
	tensors := slices.Clip(c.Outputs)
	for _, s := range c.State {
		tensors = append(tensors, s.Output)
	}
	return tensors
}

// WireBytes returns the size of one request's payload.
func (in *Input) WireBytes() int {
	return in.Height * in.Width * in.Channels * in.WireType.Bytes()
}

// HasRows reports whether outputs have rows whose number depends on what is in the image.
func (c *Card) HasRows() bool {
	return slices.ContainsFunc(c.Outputs, func(o Tensor) bool { return o.Rows != nil })
}

// IsPicture reports whether requests are pictures of 8 bits per channel, grey or RGB.
func (in *Input) IsPicture() bool {
	return len(in.Parts) == 0 && in.WireType == U8 && (in.Channels == 1 || in.Channels == 3)
}

// Picture returns the card's own picture in the words of requests. Without a format there is none.
func (in *Input) Picture() (p wire.Picture) {
	if in.IsPicture() && (in.WireLayout == HWC || in.Channels == 1) {
		p = wire.Picture{Format: wire.FormatRGB8, Width: in.Width, Height: in.Height}
		if in.Channels == 1 {
			p.Format = wire.FormatGrey8
		}
		p.Stride = p.RowBytes()
	}
	return p
}

// TensorBytes returns the size of one image of the batch tensor.
func (in *Input) TensorBytes() int {
	return in.Height * in.Width * in.Channels * in.TensorType.Bytes()
}

// Shape returns the batch tensor's shape for n images.
func (in *Input) Shape(n int) []int64 {
	if in.TensorLayout == CHW {
		return []int64{int64(n), int64(in.Channels), int64(in.Height), int64(in.Width)}
	}
	return []int64{int64(n), int64(in.Height), int64(in.Width), int64(in.Channels)}
}

// Decoder names the decoder that libml runs on an image's outputs, with its
// parameters from the card.
type Decoder struct {
	// Name is "raw", "classes", "yolo" or that of another Family.
	Name string
	// Params are the decoder's own keys ("k", "score_threshold", ...).
	Params map[string]any
}
