// Package draft drafts a card for a model that has none. It has the model run (Observe), guesses from names, shapes and
// metadata what the model is for, and writes a card in which each guess is marked (Write).
//
// Nothing here knows a model by name or hash: a guess follows from what the file says and what runs show.
package draft

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/penstock/penstock/models/onnxfile"
)

// Marker begins the first line of a draft. A card without it was edited, and is never overwritten.
const Marker = "# Drafted by penstock."

// Options are what an operator knows about a model.
type Options struct {
	// Size has the dimensions that the file leaves open.
	Size []int64
	// A picture's value v becomes (v · Scale - Mean) / Std, one number or one per channel. Scale 0: not known.
	Scale     float64
	Mean, Std []float64
	// Colour is rgb or bgr: the order of channels that the model takes. It may be empty.
	Colour string
	// Decoder is a decoder's name; it may be empty.
	Decoder string
	// Raw: requests and answers are the model's tensors, whatever they mean. Labels is a file with the names of classes; it may be empty.
	Raw    bool
	Labels string
	// Version is the card's; 0: 1. MaxBatch is the largest batch; 0: any.
	Version  uint32
	MaxBatch int
}

// Card is the draft of a card.
type Card struct {
	Text string `json:"card"`
	// Kind says in a few words what the function will take and answer.
	Kind string `json:"kind"`
	// Hint says which flags give a decoded answer. It is empty if nothing is missing.
	Hint string `json:"hint,omitempty"`
}

// picked is what is known of a picture: how the model wants its values.
type picked struct {
	colour    string
	scale     float64
	mean, std []float64 // one per channel; empty if scale says all
	why       string    // empty for what an operator said
}

// Write drafts the card of a model with this file name. took is how long a run of one image takes.
func Write(name, file string, model *onnxfile.Model, o *Observed, took time.Duration, options Options) (*Card, error) {
	w := writer{model: model, observed: o, options: options}
	w.line("%s Delete this line to keep your changes. Check the lines with \"guess\".", Marker)
	for _, v := range model.Inputs {
		w.line("# in   %s", v)
	}
	for _, v := range model.Outputs {
		w.line("# out  %s", v)
	}
	w.line("name: %s", quote(name))
	w.line("version: %d", max(1, options.Version))
	w.line("framework: onnx")
	w.line("model: %s", quote(file))

	_, w.picture = pictureAxes(model.Inputs)
	w.picture = w.picture && picture(model) && len(o.Inputs[0].Shape) == 3
	values, known, err := w.values()
	if err != nil {
		return nil, err
	}
	family := w.family()
	if w.picture {
		w.writePicture(values, known, family)
	} else {
		w.writeTensors()
	}
	w.writeOthers()
	w.writeOutputs()
	w.writeBatches(took)
	w.writeDecoder(family, known)
	return &Card{Text: w.text.String(), Kind: w.kind(family, known), Hint: w.hint(family, known)}, nil
}

type writer struct {
	text     strings.Builder
	model    *onnxfile.Model
	observed *Observed
	options  Options
	picture  bool
}

func (w *writer) line(format string, args ...any) {
	fmt.Fprintf(&w.text, format+"\n", args...)
}

// guess returns a comment.
func guess(why string) string {
	if why == "" {
		return ""
	}
	return " # guess: " + why
}

// values returns how a picture's values become those of the tensor, and whether that is known.
func (w *writer) values() (p picked, known bool, err error) {
	o := &w.options
	given := o.Scale != 0 || len(o.Mean) > 0 || len(o.Std) > 0 || o.Colour != ""
	if given && !w.picture {
		return p, false, fmt.Errorf("--scale, --mean, --std and --colour are for pictures, and the model takes %s", onnxfile.List(w.model.Inputs))
	}
	if !w.picture || o.Raw {
		return p, false, nil
	}
	p = picked{colour: cmp.Or(o.Colour, "rgb"), scale: cmp.Or(o.Scale, 1), mean: o.Mean, std: o.Std}
	switch {
	case given:
	case w.model.Metadata["task"] != "" && w.model.Metadata["stride"] != "":
		p.scale, p.why = 1.0/255, "0 to 1 in RGB, as models with this metadata take"
	case w.model.Metadata["character"] != "":
		p = picked{"bgr", 1.0 / 255, []float64{0.5}, []float64{0.5}, "-1 to 1 in BGR, as models that read text take"}
	case w.observed.Inputs[0].Type == "u8":
		p.why = "bytes in RGB as they are"
	default:
		return p, false, nil
	}

	channels := int(w.size()[2])
	if channels == 1 {
		p.colour = "grey"
	}
	if len(p.mean) == 0 && len(p.std) == 0 {
		return p, true, nil
	}
	for list, otherwise := range map[*[]float64]float64{&p.mean: 0, &p.std: 1} {
		if len(*list) == 0 {
			*list = []float64{otherwise}
		}
		if len(*list) == 1 {
			*list = slices.Repeat(*list, channels)
		}
		if len(*list) != channels {
			return p, false, fmt.Errorf("--mean and --std: %d numbers, want 1 or %d, one per channel", len(*list), channels)
		}
	}
	return p, true, nil
}

// size returns height, width and channels of the picture.
func (w *writer) size() [3]int64 {
	s := w.observed.Inputs[0].Shape
	if channels, _ := pictureAxes(w.model.Inputs); channels == 0 {
		return [3]int64{s[1], s[2], s[0]}
	}
	return [3]int64(s)
}

// writePicture writes the input. If it is not known how pictures become the tensor, requests are the tensor.
func (w *writer) writePicture(p picked, known bool, f family) {
	in := &w.observed.Inputs[0]
	layout := "hwc"
	if channels, _ := pictureAxes(w.model.Inputs); channels == 0 {
		layout = "chw"
	}
	s, why := w.size(), ""
	if w.observed.SizeGuessed {
		why = "the file leaves it open; --size sets it"
	}
	w.line("input:")
	w.line("  name: %s", quote(in.Name))
	w.line("  size: [%d, %d, %d] # height, width, channels%s", s[0], s[1], s[2], strings.Replace(guess(why), " #", ";", 1))
	if known && f.name == "text" && w.observed.SizeGuessed && s[1] == textWidths[len(textWidths)-1] {
		w.line("  widths: %s%s", shape(textWidths), guess("a line of text gets the next width"))
	}
	switch {
	case known && (f.name == "text" || w.model.Metadata["character"] != ""):
		w.line("  fit: left%s", guess("a line of text fills the height"))
		w.line("  pad: [127, 127, 127]")
	case known && f.name == "yolo":
		w.line("  fit: letterbox%s", guess("as models of this family are trained"))
		w.line("  pad: [114, 114, 114]")
	}
	if known {
		w.line("  wire: {type: u8, layout: hwc}")
	} else {
		w.line("  wire: {type: %s, layout: %s} # as the tensor, because the file does not say how pictures become it", in.Type, layout)
	}
	w.line("  tensor: {type: %s, layout: %s}", in.Type, layout)
	if !known {
		return
	}
	w.line("  colour: %s%s", p.colour, guess(p.why))
	if over := math.Round(1 / p.scale); p.scale != 1 && 1/over == p.scale {
		w.line("  scale: 1/%.0f", over)
	} else if p.scale != 1 {
		w.line("  scale: %s", numbers([]float64{p.scale}))
	}
	if p.mean != nil {
		w.line("  mean: [%s]", numbers(p.mean))
		w.line("  std: [%s]", numbers(p.std))
	}
}

func (w *writer) writeTensors() {
	w.line("inputs:")
	for _, in := range w.observed.Inputs {
		if in.Constant != nil || in.State != "" {
			continue
		}
		why := ""
		if w.observed.SizeGuessed {
			why = "the file leaves sizes open; --size sets them"
		}
		w.line("  - {name: %s, type: %s, shape: %s%s}%s", quote(in.Name), in.Type, shape(in.Shape), axis(in.Axis), guess(why))
	}
}

// writeOthers writes the inputs that requests do not have.
func (w *writer) writeOthers() {
	var constants, states []string
	for _, in := range w.observed.Inputs {
		switch {
		case in.State != "":
			states = append(states, quote(in.Name)+": "+quote(in.State))
		case len(in.Constant) == 1:
			constants = append(constants, quote(in.Name)+": "+numbers(in.Constant))
		case in.Constant != nil:
			constants = append(constants, quote(in.Name)+": ["+numbers(in.Constant)+"]")
		}
	}
	if constants != nil {
		w.line("constants: {%s}%s", strings.Join(constants, ", "), guess("the values that the names of these inputs suggest"))
	}
	if states != nil {
		w.line("state: {%s}%s", strings.Join(states, ", "), guess("by their names, each output is the input of the next request"))
	}
}

func (w *writer) writeOutputs() {
	w.line("outputs:")
	for _, out := range w.observed.Outputs {
		kind := ""
		if out.Type != "f32" {
			kind = ", type: " + out.Type
		}
		if out.Rows == nil {
			w.line("  - {name: %s%s, shape: %s%s}", quote(out.Name), kind, shape(out.Shape), axis(out.Axis))
			continue
		}
		whose := ""
		if out.Rows.Count != "" {
			whose = ", count: " + quote(out.Rows.Count)
		} else if out.Rows.BatchColumn {
			whose = ", batch_column: true"
		}
		w.line("  - {name: %s%s, shape: %s, rows: {max: %d%s}}%s", quote(out.Name), kind, shape(out.Shape[1:]), out.Rows.Max, whose, guess("at most so many in an image"))
	}
}

// autoBatch is the largest batch of a card without batches.
const autoBatch = 32

func (w *writer) writeBatches(took time.Duration) {
	switch o := w.observed; {
	case o.Single != "":
		w.line("batches: [%d] # %s", max(1, o.Batch), oneLine(o.Single))
	case o.Batch != 0:
		w.line("batches: [%d] # fixed in the file", o.Batch)
	case w.options.MaxBatch > 0 && w.options.MaxBatch < autoBatch:
		var sizes []int64
		for n := 1; n < w.options.MaxBatch; n *= 2 {
			sizes = append(sizes, int64(n))
		}
		w.line("batches: %s", shape(append(sizes, int64(w.options.MaxBatch))))
	}
	slo := 50 * time.Millisecond
	for ladder := []int64{2, 5, 10}; slo < 10*took && slo < time.Minute; ladder = append(ladder[1:], 10*ladder[0]) {
		slo = time.Duration(ladder[0]) * 50 * time.Millisecond
	}
	w.line("slo: %s%s", slo, guess(fmt.Sprintf("a run of one image took %s here", took.Round(10*time.Microsecond))))
}

// shape returns a YAML list.
func shape(dims []int64) string { return strings.ReplaceAll(fmt.Sprint(dims), " ", ", ") }

// axis returns the key for a batch axis that is not the first, for the end of a map.
func axis(batch int) string {
	if batch < 1 {
		return ""
	}
	return fmt.Sprintf(", batch_axis: %d", batch)
}

func numbers(values []float64) string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = strconv.FormatFloat(v, 'g', 7, 64)
	}
	return strings.Join(list, ", ")
}

var plain = regexp.MustCompile(`^[A-Za-z_][\w.-]*$`)

// quote returns a scalar of YAML. Words such as no are quoted, too.
func quote(s string) string {
	if plain.MatchString(s) && !slices.Contains([]string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}, strings.ToLower(s)) {
		return s
	}
	return strconv.Quote(s)
}

// oneLine returns text without line breaks and other control characters.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// ints reads a list like [320, 320].
func ints(text string) (list []int64) {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r < '0' || r > '9' }) {
		n, err := strconv.ParseInt(word, 10, 32)
		if err != nil || n < 1 {
			return nil
		}
		list = append(list, n)
	}
	return list
}
