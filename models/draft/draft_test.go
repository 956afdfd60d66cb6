package draft

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/onnxfile"
)

// observed returns what runs show of outputs like "y 22 2100", after these inputs.
func observed(inputs []Input, outputs ...Output) *Observed {
	return &Observed{Inputs: inputs, Outputs: outputs}
}

var picture320 = onnxfile.Model{Inputs: []onnxfile.Value{value("images", "f32", "batch 3 320 320")}}

func withMetadata(m onnxfile.Model, pairs ...string) *onnxfile.Model {
	m.Metadata = map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m.Metadata[pairs[i]] = pairs[i+1]
	}
	return &m
}

func TestWrite(t *testing.T) {
	model := withMetadata(picture320, "task", "detect", "stride", "32", "names", `{0: 'person', 1: "dog's", 2: 'no'}`)
	o := observed([]Input{{Name: "images", Type: "f32", Shape: []int64{3, 320, 320}}}, Output{Name: "output0", Type: "f32", Shape: []int64{7, 2100}})
	card, err := Write("yolo", "yolo.onnx", model, o, 19*time.Millisecond, Options{})
	must.OK(t, err)
	want := `# Drafted by penstock. Delete this line to keep your changes. Check the lines with "guess".
# in   images f32 [batch, 3, 320, 320]
name: yolo
version: 1
framework: onnx
model: yolo.onnx
input:
  name: images
  size: [320, 320, 3] # height, width, channels
  fit: letterbox # guess: as models of this family are trained
  pad: [114, 114, 114]
  wire: {type: u8, layout: hwc}
  tensor: {type: f32, layout: chw}
  colour: rgb # guess: 0 to 1 in RGB, as models with this metadata take
  scale: 1/255
outputs:
  - {name: output0, shape: [7, 2100]}
slo: 250ms # guess: a run of one image took 19ms here
decoder: {name: yolo} # guess: the metadata has the task detect
labels: ["person", "dog's", "no"]
`
	if card.Text != want || card.Hint != "" {
		t.Errorf("hint %q, card:\n%s", card.Hint, card.Text)
	}
}

// Lines of the card, and the hint, for what is known of a model.
func TestWriteLines(t *testing.T) {
	pictures := []Input{{Name: "images", Type: "f32", Shape: []int64{3, 320, 320}}}
	bytes := []Input{{Name: "images", Type: "u8", Shape: []int64{3, 320, 320}}}
	u8 := onnxfile.Model{Inputs: []onnxfile.Value{value("images", "u8", "n 3 320 320")}}
	ints := []Input{{Name: "images", Type: "i32", Shape: []int64{3, 320, 320}}}
	i32 := onnxfile.Model{Inputs: []onnxfile.Value{value("images", "i32", "n 3 320 320")}}
	vector := onnxfile.Model{Inputs: []onnxfile.Value{value("x", "f32", "n 8"), value("sr", "i64", ""), value("h", "f32", "n 4")}}
	vectors := []Input{
		{Name: "x", Type: "f32", Shape: []int64{8}},
		{Name: "sr", Type: "i64", Shape: []int64{}, Constant: []float64{16000}},
		{Name: "h", Type: "f32", Shape: []int64{4}, State: "h N"},
	}
	sized := onnxfile.Model{Inputs: []onnxfile.Value{picture320.Inputs[0], value("size", "f32", "batch 2")}}
	y := func(kind string, shape ...int64) Output { return Output{Name: "out", Type: kind, Shape: shape} }
	for name, c := range map[string]struct {
		model   *onnxfile.Model
		o       *Observed
		options Options
		want    []string
		hint    string
	}{
		"nothing known":      {&picture320, observed(pictures, y("f32", 10)), Options{}, []string{"wire: {type: f32, layout: chw}", "decoder: {name: raw}"}, "does not say how pictures become its tensor or what its outputs mean; for decoded answers give what is right, like --scale 1/255 --colour rgb --decoder classes"},
		"family by shape":    {&picture320, observed(pictures, y("f32", 84, 2100)), Options{}, []string{"decoder: {name: raw}"}, "like --scale 1/255 --colour rgb --decoder yolo"},
		"scale given":        {&picture320, observed(pictures, y("f32", 84, 2100)), Options{Scale: 1.0 / 255}, []string{"wire: {type: u8, layout: hwc}", "colour: rgb\n  scale: 1/255\n", "decoder: {name: yolo} # guess: the output has a row per cell"}, ""},
		"mean and std":       {&picture320, observed(pictures, y("f32", 3)), Options{Scale: 1.0 / 255, Mean: []float64{0.485, 0.456, 0.406}, Std: []float64{0.229, 0.224, 0.225}, Decoder: "classes"}, []string{"scale: 1/255\n  mean: [0.485, 0.456, 0.406]\n  std: [0.229, 0.224, 0.225]\n", "decoder: {name: classes, activation: softmax}\n"}, ""},
		"mean without scale": {&picture320, observed(pictures, y("f32", 3)), Options{Mean: []float64{127.5}, Std: []float64{127.5}, Colour: "bgr"}, []string{"colour: bgr\n  mean: [127.5, 127.5, 127.5]\n"}, "does not say what its outputs mean; for decoded answers give what is right, like --decoder classes"},
		"colour alone":       {&picture320, observed(pictures, y("f32", 3)), Options{Colour: "rgb", Decoder: "classes"}, []string{"wire: {type: u8, layout: hwc}", "layout: chw}\n  colour: rgb\noutputs:"}, ""},
		"batch on axis 1":    {&picture320, observed(pictures, Output{Name: "out", Type: "f32", Shape: []int64{20, 37}, Axis: 1}), Options{}, []string{"{name: out, shape: [20, 37], batch_axis: 1}"}, "like --scale 1/255 --colour rgb --decoder"},
		"bytes":              {&u8, observed(bytes, y("f32", 3)), Options{Decoder: "embedding"}, []string{"tensor: {type: u8, layout: chw}\n  colour: rgb # guess: bytes in RGB as they are\noutputs:", "decoder: {name: embedding}\n"}, ""},
		"integers":           {&i32, observed(ints, y("f32", 3)), Options{}, []string{"wire: {type: i32, layout: chw} # as the tensor", "tensor: {type: i32, layout: chw}"}, "like --scale 1/255 --colour rgb --decoder classes"},
		"photos as integers": {&i32, observed(ints, y("f32", 3)), Options{Colour: "bgr", Decoder: "embedding"}, []string{"wire: {type: u8, layout: hwc}\n  tensor: {type: i32, layout: chw}\n  colour: bgr"}, ""},
		"probabilities":      {&picture320, observed(pictures, Output{Name: "p", Type: "f32", Shape: []int64{2}, Fractions: true, Probabilities: true}), Options{Scale: 1}, []string{"decoder: {name: classes} # guess: the values of each image"}, ""},
		"detr":               {&picture320, observed(pictures, y("f32", 300, 80), Output{Name: "b", Type: "f32", Shape: []int64{300, 4}}), Options{Scale: 1}, []string{"decoder: {name: detr, boxes: b, scores: out, activation: sigmoid} # guess"}, ""},
		"faces": {&picture320, observed(pictures, y("f32", 4200, 4), y("f32", 4200, 2), y("f32", 4200, 10)), Options{Scale: 1}, []string{
			"decoder: {name: faces} # guess: the 3 outputs have boxes, points and scores per cell",
		}, ""},
		"map, no decoder": {&picture320, observed(pictures, Output{Name: "out", Type: "f32", Shape: []int64{1, 320, 320}, Fractions: true}), Options{Scale: 1}, []string{"decoder: {name: raw}"}, "--decoder map (or polygons, if it finds text)"},
		"rows": {&picture320, observed(pictures, Output{Name: "b", Type: "f32", Shape: []int64{300, 4}, Rows: &models.Rows{Max: 300, BatchColumn: true}}, Output{Name: "l", Type: "i64", Shape: []int64{300}, Rows: &models.Rows{Max: 300, Count: "num"}}, Output{Name: "s", Type: "f32", Shape: []int64{300}, Rows: &models.Rows{Max: 300}}), Options{Scale: 1},
			[]string{"{name: b, shape: [4], rows: {max: 300, batch_column: true}} # guess: at most", "{name: l, type: i64, shape: [], rows: {max: 300, count: num}}", "{name: s, shape: [], rows: {max: 300}}", "decoder: {name: objects, boxes: b, scores: s, labels: l} # guess"}, ""},
		"class map":             {&picture320, observed(pictures, y("i64", 320, 320)), Options{Scale: 1, Decoder: "map"}, []string{"{name: out, type: i64, shape: [320, 320]}", "{name: map, cells: classes}"}, ""},
		"key points":            {withMetadata(picture320, "task", "pose", "stride", "32", "kpt_shape", "[17, 3]"), observed(pictures, y("f32", 56, 2100)), Options{}, []string{"decoder: {name: yolo, keypoints: [17, 3]}"}, ""},
		"rotated":               {withMetadata(picture320, "task", "obb", "stride", "32"), observed(pictures, y("f32", 20, 2100)), Options{}, []string{"decoder: {name: yolo, rotated: true}"}, ""},
		"masks":                 {withMetadata(picture320, "task", "segment", "stride", "32"), observed(pictures, y("f32", 116, 2100), Output{Name: "output 1", Type: "f32", Shape: []int64{32, 80, 80}}), Options{}, []string{`decoder: {name: yolo, masks: "output 1"}`}, ""},
		"text":                  {withMetadata(picture320, "character", "a\nno\n\"\n"), observed(pictures, y("f32", 40, 5)), Options{}, []string{"fit: left # guess", "pad: [127, 127, 127]", "colour: bgr # guess", "scale: 1/255\n  mean: [0.5, 0.5, 0.5]\n  std: [0.5, 0.5, 0.5]\n", "decoder: {name: text} # guess", `labels: ["a", "no", "\""]`}, ""},
		"text, raw":             {withMetadata(picture320, "character", "a\nb\n"), observed(pictures, y("f32", 40, 5)), Options{Scale: 1.0 / 255, Colour: "bgr", Decoder: "raw"}, []string{"fit: left # guess", "decoder: {name: raw}"}, ""},
		"constants and states":  {&vector, observed(vectors, y("f32", 1), Output{Name: "h N", Type: "f32", Shape: []int64{4}}), Options{}, []string{"inputs:\n  - {name: x, type: f32, shape: [8]}\nconstants: {sr: 16000} # guess", `state: {h: "h N"} # guess`, "decoder: {name: raw}"}, ""},
		"constant of a picture": {&sized, observed([]Input{pictures[0], {Name: "size", Type: "f32", Shape: []int64{2}, Constant: []float64{320, 320}}}, y("f32", 3)), Options{Scale: 1}, []string{"colour: rgb\nconstants: {size: [320, 320]} # guess"}, "--decoder classes"},
		"fixed batch":           {&vector, &Observed{Inputs: vectors, Outputs: []Output{y("f32", 1)}, Batch: 4}, Options{}, []string{"batches: [4] # fixed in the file"}, ""},
		"dependent":             {&vector, &Observed{Inputs: vectors, Outputs: []Output{y("f32", 1)}, Single: "two\nlines"}, Options{}, []string{"batches: [1] # two lines\n"}, ""},
		"size guessed":          {&picture320, &Observed{Inputs: pictures, Outputs: []Output{y("f32", 1)}, SizeGuessed: true}, Options{}, []string{"size: [320, 320, 3] # height, width, channels; guess: the file leaves it open; --size sets it"}, "--scale"},
		"names that are no one": {withMetadata(picture320, "task", "detect", "stride", "32", "names", "{0: ''}"), observed(pictures, y("f32", 5, 2100)), Options{}, []string{"decoder: {name: yolo} # guess"}, ""},
	} {
		card, err := Write("m", "m.onnx", c.model, c.o, 0, c.options)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, line := range c.want {
			if !strings.Contains(card.Text, line) {
				t.Errorf("%s: no %q in\n%s", name, line, card.Text)
			}
		}
		if !strings.Contains(card.Hint, c.hint) || (card.Hint == "") != (c.hint == "") {
			t.Errorf("%s: hint %q, want %q", name, card.Hint, c.hint)
		}
		if strings.Contains(card.Kind, "(a guess, --size sets it)") != c.o.SizeGuessed {
			t.Errorf("%s: takes %s", name, card.Kind)
		}
	}
	for want, options := range map[string]Options{"want 1 or 3": {Mean: []float64{1, 2}}, "are for pictures": {Scale: 1}} {
		model, o := &picture320, observed(pictures, y("f32", 10))
		if options.Scale != 0 {
			model, o = &vector, observed(vectors, y("f32", 10))
		}
		if _, err := Write("m", "m.onnx", model, o, 0, options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", options, err, want)
		}
	}
}

// Names of a hostile file stay in their place.
func TestWriteNames(t *testing.T) {
	name := "x\nname: other # \u2028\x1b[2J"
	model := &onnxfile.Model{Inputs: []onnxfile.Value{value(name, "f32", "n")}, Outputs: []onnxfile.Value{value(name, "f32", "n")}}
	model.Inputs[0].Shape[0].Name = name
	o := observed([]Input{{Name: name, Type: "f32"}}, Output{Name: name, Type: "f32"})
	o.Single = name
	card, err := Write("mine", "m.onnx", model, o, 0, Options{Decoder: name})
	must.OK(t, err)
	if all := card.Text + card.Kind + card.Hint; strings.Contains(all, "\nname: other") || strings.Contains(all, "\x1b") {
		t.Errorf("card:\n%q", card.Text)
	}
}

func TestNames(t *testing.T) {
	for text, want := range map[string][]string{
		`{0: 'person', 1: "dog's"}`: {"person", "dog's"},
		`["a", "b"]`:                {"a", "b"},
		`{0: 'it\'s'}`:              {"it's"},
		`{0: 'open`:                 {"open"},
		`{0: 'a\`:                   {`a\`},
		`{}`:                        nil,
		"":                          nil,
	} {
		if got := names(text); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
