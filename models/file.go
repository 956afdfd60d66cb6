package models

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/models/document"
)

// cardFile is a card in its written form. Its tagged fields are the only definition of each key:
// the reader and configs/card.schema.json follow them.
type cardFile struct {
	// The model's name.
	Name string `yaml:"name" required:"true" pattern:"^[a-z0-9][a-z0-9_-]{0,63}$" want:"lower case letters, digits, '-' and '_', at most 64"`
	// Clients get it with every result; a replacement has a higher one.
	Version uint32 `yaml:"version" required:"true" min:"1" max:"4294967295"`
	// A framework that comes with Penstock; pytorch needs a python3 with PyTorch. Leave it out if command
	// names your own program.
	Framework string `yaml:"framework" oneof:"onnx|pytorch|null"`
	// Your own program that links libml, and its arguments. With a '/' it is relative to the card's
	// folder, else it is looked up in PATH.
	Command []string `yaml:"command" minItems:"1" want:"a part of a command, like [./my-if, --flag]"`
	// The model's file, relative to the card's folder.
	Model string `yaml:"model" want:"the model's file, beside the card"`
	// The picture on the wire, and the tensor that the model takes. A card has this or inputs.
	Input inputFile `yaml:"input" want:"what arrives and what tensor the model wants"`
	// The tensors that a request holds, in this order without gaps, each of shape [batch, shape...] in the model if batch_axis is 0.
	Inputs []tensorFile `yaml:"inputs" minItems:"1" maxItems:"32" want:"{name, type, shape}"`
	// Lengths of which a request has one, ascending: the first dimension of each of inputs that has the last in its shape.
	Lengths []int `yaml:"lengths" minItems:"1" maxItems:"64" unique:"true" min:"1" max:"268435456"`
	// A shorter request is filled with zeros up to the next length: the model must answer as without them.
	PadLengths bool `yaml:"pad_lengths" default:"false"`
	// Inputs that no request has: a number, or a list of numbers, for each name.
	Constants document.Value `yaml:"constants"`
	// Inputs that no request has: for each name, the output whose value of the same stream's last request it gets.
	State document.Value `yaml:"state"`
	// The outputs of the model that are used, each of shape [batch, shape...] if batch_axis is 0.
	Outputs []tensorFile `yaml:"outputs" required:"true" minItems:"1" maxItems:"32" want:"{name, shape}"`
	// The batch sizes that are prepared, ascending. A batch between two of them is padded. The first is 1,
	// or the only one is the size of a model with a fixed batch. If left out, they follow from the model, the device's
	// memory and the objective.
	Batches []int `yaml:"batches" zero:"auto" minItems:"1" maxItems:"16" unique:"true" min:"1" max:"1024"`
	// Latency objective, from the first packet sent to the reply.
	SLO time.Duration `yaml:"slo" required:"true" min:"1us" max:"1h"`
	// The share beyond which more helps little; 0: not known.
	KneePercent float64 `yaml:"knee_percent" default:"0" min:"0" max:"100"`
	// The knee of each batch size, as `penstock profile` measured them, ascending by batch; knee_percent is
	// one of them.
	Knees []Knee `yaml:"knees" want:"{batch, percent}, ascending by batch"`
	// CPU threads of the framework; 0: as many as there are CPUs for inference functions.
	Threads int `yaml:"threads" default:"0" min:"0" max:"1024"`
	// The decoder that makes the answer from the outputs of an image; raw if left out.
	Decoder document.Value `yaml:"decoder"`
	// The names of the classes, in order: a list, or a file beside the card with one name per line.
	Labels document.Value `yaml:"labels"`
}

type inputFile struct {
	// The model's input; onnx needs it.
	Name string `yaml:"name" pattern:"^[^\\x00-\\x1f]{1,1000}$" want:"a tensor's name, without control characters"`
	// Height, width and channels, the same on the wire and in the tensor.
	Size []int `yaml:"size" required:"true" elements:"height, width, channels" minItems:"3" maxItems:"3" min:"1" max:"16384"`
	// Heights and widths of which a picture gets those that suit it, ascending. The last is that of size.
	Heights []int `yaml:"heights" minItems:"1" maxItems:"64" unique:"true" min:"1" max:"16384"`
	// The same for the width.
	Widths []int `yaml:"widths" minItems:"1" maxItems:"64" unique:"true" min:"1" max:"16384"`
	// How a photo of another size becomes the picture. letterbox keeps its proportions, with half of the padding on either side.
	// stretch changes them. crop takes the middle. left fills the height from the left on, and squeezes what is too wide.
	Fit string `yaml:"fit" default:"letterbox" oneof:"letterbox|stretch|crop|left"`
	// The colour beside the photo, one value per channel of the picture; black if left out.
	Pad []int `yaml:"pad" minItems:"1" maxItems:"3" min:"0" max:"255"`
	// A pixel of a smaller photo is the mean of all pixels that it covers (as Pillow does), instead of a mixture of the nearest four
	// (as OpenCV does).
	Antialias bool `yaml:"antialias" default:"false"`
	// The samples of black and white in pictures of more than 8 bits per channel, or that of white alone. All that the picture's
	// format has if left out.
	Range []int `yaml:"range" minItems:"1" maxItems:"2" elements:"black, white" min:"0" max:"65535"`
	// The colour behind transparent pixels; white if left out.
	Background []int `yaml:"background" minItems:"3" maxItems:"3" elements:"red, green, blue" min:"0" max:"255"`
	// The payload of a request.
	Wire formatFile `yaml:"wire" required:"true" want:"{type: u8, layout: hwc}"`
	// One image of the batch tensor.
	Tensor formatFile `yaml:"tensor" required:"true" want:"{type: f32, layout: chw}"`
	// The order of the tensor's channels; rgb if left out. pad has the picture's order, mean and std the tensor's.
	Colour string `yaml:"colour" oneof:"rgb|bgr|grey"`
	// The older name of colour: bgr. It also reverses channels that are no colours.
	ReverseChannels bool `yaml:"reverse_channels" default:"false"`
	// The factor of the values on the wire, before mean and std: a number or a fraction, like 1/255.
	Scale Scale `yaml:"scale" default:"1" min:"1e-6" max:"1e6"`
	// Each tensor channel becomes (v * scale - mean) / std: one number per channel.
	Mean []float32 `yaml:"mean" minItems:"1" min:"-1e6" max:"1e6"`
	// One number per channel.
	Std []float32 `yaml:"std" minItems:"1" min:"1e-6" max:"1e6"`
}

// Scale is a factor, which a file may have as a fraction.
type Scale float64

// Want is what the errors of all keys of this type say.
func (Scale) Want() string { return "a number or a fraction like 1/255" }

// Pattern is what the text of a scale looks like.
func (Scale) Pattern() string { return `^[0-9.]+(e[+-]?[0-9]+)?(/[0-9.]+)?$` }

// UnmarshalText reads a number or a fraction.
func (s *Scale) UnmarshalText(text []byte) error {
	over, under, fraction := strings.Cut(string(text), "/")
	n, err := strconv.ParseFloat(over, 64)
	if err != nil || !fraction {
		*s = Scale(n)
		return err
	}
	d, err := strconv.ParseFloat(under, 64)
	if d == 0 {
		return cmp.Or(err, errors.New("division by 0"))
	}
	*s = Scale(n / d)
	return err
}

type formatFile struct {
	// Element type.
	Type DType `yaml:"type" required:"true" oneof:"u8|i8|u16|i16|u32|i32|f16|f32"`
	// Order of the axes.
	Layout Layout `yaml:"layout" required:"true" oneof:"hwc|chw"`
}

type tensorFile struct {
	// The tensor's name in the model.
	Name string `yaml:"name" required:"true" pattern:"^[^\\x00-\\x1f]{1,1000}$" want:"a tensor's name, without control characters"`
	// Element type.
	Type DType `yaml:"type" default:"f32" oneof:"bool|i8|i16|i32|i64|u8|u16|u32|u64|f16|bf16|f32|f64"`
	// The shape without the batch axis; [] if there is one value per request.
	Shape []int64 `yaml:"shape" required:"true" maxItems:"8" min:"1" max:"268435456"`
	// For an output whose number of rows depends on the image; shape is then that of a row.
	Rows *Rows `yaml:"rows" want:"{max: 100}"`
	// The axis of the model's tensor that has the images of a batch.
	BatchAxis int `yaml:"batch_axis" default:"0" min:"0" max:"8"`
}
