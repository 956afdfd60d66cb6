package models

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/wire"
)

// Family is a decoder of a card: its keys, and what they mean for the card's outputs. It is a pointer to one
// of the types below.
type Family interface {
	// resolve finds the outputs that the decoder reads. An error says which shapes it reads, and which the
	// card has.
	resolve(c *Card) error
	// ResultBytes bounds the payload of one answer.
	ResultBytes() int
}

// Kind returns the kind of the answers.
func (c *Card) Kind() wire.Kind {
	switch c.Decoder.Name {
	case "topk", "classes":
		return wire.KindTopK
	case "boxes", "objects", "detr":
		return wire.KindBoxes
	case "embedding":
		return wire.KindEmbedding
	case "text":
		return wire.KindText
	case "polygons":
		return wire.KindPolygons
	case "map":
		return wire.KindMap
	case "pose", "faces":
		return wire.KindPoints
	case "yolo":
		keys := c.Decoder.Params
		switch {
		case keys["rotated"] == true:
			return wire.KindPolygons
		case keys["masks"] != nil:
			return wire.KindMasks
		case keys["keypoints"] != nil:
			return wire.KindPoints
		}
		return wire.KindBoxes
	case "raw":
		if len(c.Outputs) == 1 && c.Outputs[0].Type == F32 && len(c.Inputs)+len(c.State)+len(c.Input.Widths) == 0 {
			return wire.KindRaw
		}
	}
	return wire.KindTensors
}

// FindsBoxes reports whether answers have boxes or outlines of what is in a picture.
func (c *Card) FindsBoxes() bool {
	k := c.Kind()
	return k == wire.KindBoxes || k == wire.KindPoints || k == wire.KindMasks || k == wire.KindPolygons
}

// families makes a family by its name.
var families = map[string]func() Family{
	"yolo":      func() Family { return new(YOLO) },
	"boxes":     func() Family { return new(Anchors) }, // Distances with style dfl
	"classes":   func() Family { return new(Classes) },
	"embedding": func() Family { return new(Embedding) },
	"objects":   func() Family { return new(Objects) },
	"detr":      func() Family { return new(DETR) },
	"text":      func() Family { return new(Text) },
	"polygons":  func() Family { return new(Polygons) },
	"map":       func() Family { return new(Map) },
	"pose":      func() Family { return new(Pose) },
	"faces":     func() Family { return new(Faces) },
	"raw":       func() Family { return new(Raw) },
	"tensors":   func() Family { return new(Raw) },
	"topk":      func() Family { return new(Classes) },
}

// decoderNames are the names of all decoders.
var decoderNames = slices.Sorted(maps.Keys(families))

// decodeDecoder reads a decoder and checks its own keys, so that errors have a position. Params hold the keys without the
// name, as plain data (map[string]any, []any, string, bool, int64, float64).
func (c *Card) decodeDecoder(v document.Value) {
	c.Decoder = Decoder{Name: "raw", Params: map[string]any{}}
	if v.Absent() {
		return
	}
	c.decodeFamily(v)
	c.Decoder.Name = v.Peek("name")
	if plain, ok := v.Plain().(map[string]any); ok {
		delete(plain, "name")
		c.Decoder.Params = plain
	}
}

// decodeFamily reads a decoder's keys and finds the outputs that it reads. It returns nil if there is no such decoder.
func (c *Card) decodeFamily(v document.Value) Family {
	name := v.Peek("name")
	made, known := families[name]
	switch {
	case !v.IsMap():
		v.Decode(new(Raw))
		return nil
	case !v.Has("name"):
		v.Find("name").Reject("is missing, want %s", document.OrList(decoderNames))
		return nil
	case !known:
		v.Find("name").Reject("is %q, want %s%s", name, document.OrList(decoderNames), document.Near(name, decoderNames))
		return nil
	}
	f := made()
	if name == "boxes" && v.Peek("style") == "dfl" {
		f = new(Distances)
	}
	document.SetDefaults(f)
	if !v.Decode(f) || len(c.Outputs) == 0 || slices.ContainsFunc(c.Outputs, func(o Tensor) bool { return o.Elements() < 1 }) {
		return f // already reported
	}
	if err := f.resolve(c); err != nil {
		var m misfit
		errors.As(err, &m)
		v.Find(m.path...).Reject("%v", err)
	}
	return f
}

// Family returns the card's decoder, with the outputs that it reads. It fails if the card was not read by
// ReadCard and its decoder does not fit.
func (c *Card) Family() (Family, error) {
	keys := map[string]any{"name": c.Decoder.Name}
	maps.Copy(keys, c.Decoder.Params)
	text, err := json.Marshal(keys) // JSON is YAML, too
	if err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	doc, err := document.Parse("decoder", text)
	if err != nil {
		return nil, err
	}
	f := c.decodeFamily(doc.Root())
	return f, doc.Err()
}

// misfit is an error about the value at a path within a decoder.
type misfit struct {
	error
	path []any
}

// at adds the path to an error, if there is one.
func at(err error, path ...any) error {
	if err == nil {
		return nil
	}
	return misfit{err, path}
}

type familyFile struct {
	// Name of the decoder.
	Name string `yaml:"name" required:"true"`
}

// Found are the keys of decoders that find several things in a picture.
type Found struct {
	// Boxes with a lower score are left out.
	ScoreThreshold float64 `yaml:"score_threshold" default:"0.25" min:"0" max:"1"`
	// Maximum number of boxes in an answer, best first.
	MaxBoxes int `yaml:"max_boxes" default:"100" min:"1" max:"1000"`
	// The only classes in an answer: labels, or numbers in quotes. All if left out.
	Classes []string `yaml:"classes" minItems:"1" unique:"true" want:"a label, or a class's number in quotes"`

	// Only says for each class whether it is in an answer. It is empty if Classes are not set.
	Only []bool
}

func (f *Found) ResultBytes() int { return f.MaxBoxes * wire.BoxSize }

// pick sets Only.
func (f *Found) pick(c *Card, classes int) (err error) {
	if len(f.Classes) > 0 {
		f.Only, err = c.only(f.Classes, classes)
	}
	return err
}

// Only says for each class of the answers whether it is one of these labels and numbers.
func (c *Card) Only(names []string) ([]bool, error) {
	classes := len(c.Labels)
	if classes == 0 {
		classes = maxClasses
	}
	return c.only(names, classes)
}

func (c *Card) only(names []string, classes int) ([]bool, error) {
	only := make([]bool, classes)
	for _, name := range names {
		i := slices.Index(c.Labels, name)
		if n, err := strconv.Atoi(name); i < 0 && err == nil {
			i = n
		}
		if i < 0 || i >= classes {
			return nil, fmt.Errorf("classes has %q, want labels or numbers below %d%s", name, classes, document.Near(name, c.Labels))
		}
		only[i] = true
	}
	return only, nil
}

// maxClasses is the number of values of a u16.
const maxClasses = 1 << 16

// labelled returns an error unless the number of classes is possible and the labels name as many.
func (c *Card) labelled(classes int) error {
	if classes < 1 || classes > maxClasses {
		return fmt.Errorf("the outputs have %d classes, want 1 to %d", classes, maxClasses)
	}
	if n := len(c.Labels); n > 0 && n != classes {
		return fmt.Errorf("the outputs have %d classes, the labels name %d", classes, n)
	}
	return nil
}

// outputNamed returns the index of an output.
func (c *Card) outputNamed(name string) (int, error) {
	i := slices.IndexFunc(c.Outputs, func(o Tensor) bool { return o.Name == name })
	if i < 0 {
		var names []string
		for _, o := range c.Outputs {
			names = append(names, o.Name)
		}
		return 0, fmt.Errorf("no output is called %q%s", name, document.Correct(name, names))
	}
	return i, nil
}

// single returns an error unless the card has one output.
func (c *Card) single(decoder string) error {
	if len(c.Outputs) != 1 {
		return fmt.Errorf("%s reads one output, the card has %d", decoder, len(c.Outputs))
	}
	return nil
}

// longAxes returns an output's axes that are longer than 1.
func (o *Tensor) longAxes() (axes []int) {
	for _, n := range o.Shape {
		if n > 1 {
			axes = append(axes, int(n))
		}
	}
	return axes
}

// YOLO decodes what models of the YOLO family find: boxes, boxes with key points or masks, or rotated boxes.
type YOLO struct {
	familyFile
	// The form of the output: yolov5 (also v6, v7) has [rows, 5 + classes], yolov8 (also 9, 11, 12) has [4 + classes, rows],
	// yolov10 (also 26) has [boxes, 6]. Rows of yolox are like those of yolov5, but raw. If left out, the shape decides.
	Style string `yaml:"style" oneof:"yolov5|yolov8|yolov10|yolox"`
	Found
	// Of boxes of one class that overlap more, one is left.
	IoUThreshold float64 `yaml:"iou_threshold" default:"0.7" min:"0" max:"1"`
	// The number of key points of a box, and of the values of each: 2 (x, y) or 3 (with a score).
	KeyPoints []int `yaml:"keypoints" elements:"points, values of each" minItems:"2" maxItems:"2" min:"1" max:"1024"`
	// The boxes are rotated: a row has an angle, too. Answers have polygons of four corners.
	Rotated bool `yaml:"rotated" default:"false"`
	// The output of the masks' prototypes, of shape [coefficients, rows, columns]. A row has the coefficients, too.
	Masks string `yaml:"masks" want:"an output's name"`

	// Output and Prototypes are indexes of outputs; Prototypes is -1 without masks.
	Output, Prototypes int
	// Rows have Columns values: the box, the score if there is one, NumClasses scores, and Extra.
	Rows, Columns, NumClasses, Extra int
	// Grid is the rows and columns of the prototypes.
	Grid [2]int
}

// errNoPicture is the error for a model without a picture, if the size of its boxes follows from that.
var errNoPicture = errors.New("boxes are in the pixels of a picture; want input, with its size")

// The styles of YOLO.
const (
	YOLOv5  = "yolov5"
	YOLOv8  = "yolov8"
	YOLOv10 = "yolov10"
	YOLOX   = "yolox"
)

// YOLOStrides are the sets of strides that models have, the usual one first.
var YOLOStrides = [][]int{{8, 16, 32}, {8, 16, 32, 64}, {4, 8, 16, 32}}

// Cells returns the number of cells of a picture's grids with these strides.
func (in *Input) Cells(strides []int) (n int) {
	for _, s := range strides {
		columns, rows := in.Grid(s)
		n += columns * rows
	}
	return n
}

// Grid returns how many cells of this stride cover a picture.
func (in *Input) Grid(stride int) (columns, rows int) {
	return (in.Width + stride - 1) / stride, (in.Height + stride - 1) / stride
}

func (f *YOLO) resolve(c *Card) error {
	if c.Input.Width < 1 || c.Input.Height < 1 {
		return errNoPicture
	}
	outputs := 1
	f.Output, f.Prototypes = 0, -1
	if f.Masks != "" {
		i, err := c.outputNamed(f.Masks)
		if err != nil {
			return at(err, "masks")
		}
		shape := c.Outputs[i].Shape
		if len(shape) != 3 || shape[1] > maxSide || shape[2] > maxSide {
			return at(fmt.Errorf("%s has shape %v, want [coefficients, rows, columns]", f.Masks, shape), "masks")
		}
		outputs, f.Prototypes, f.Extra, f.Grid = 2, i, int(shape[0]), [2]int{int(shape[1]), int(shape[2])}
		if i == 0 {
			f.Output = 1
		}
	}
	if len(c.Outputs) != outputs {
		return fmt.Errorf("yolo reads outputs: %d, the card has %d; list only those that it reads", outputs, len(c.Outputs))
	}
	if len(f.KeyPoints) == 2 {
		if f.KeyPoints[1] != 2 && f.KeyPoints[1] != 3 {
			return fmt.Errorf("keypoints have %d values each, want 2 or 3", f.KeyPoints[1])
		}
		f.Extra += f.KeyPoints[0] * f.KeyPoints[1]
	}
	if f.Rotated {
		f.Extra++
	}
	if f.Rotated && f.Extra > 1 || f.Masks != "" && len(f.KeyPoints) > 0 {
		return errors.New("want one of keypoints, rotated and masks")
	}
	return f.resolveStyle(c)
}

// resolveStyle finds the style, the rows and the classes.
func (f *YOLO) resolveStyle(c *Card) error {
	o := &c.Outputs[f.Output]
	if len(o.Shape) != 2 {
		return fmt.Errorf("%s has shape %v, want %s", o.Name, o.Shape, f.shapes(c))
	}
	a, b := int(o.Shape[0]), int(o.Shape[1])
	matches := func(rows, perCell int) bool {
		return slices.ContainsFunc(YOLOStrides, func(s []int) bool { return rows == perCell*c.Input.Cells(s) })
	}
	if f.Style == "" {
		switch {
		case matches(b, 1) && a > 4+f.Extra:
			f.Style = YOLOv8
		case matches(a, 3):
			f.Style = YOLOv5
		case matches(a, 1):
			return fmt.Errorf("%s has shape %v, which fits two styles; want style: yolox for raw boxes, or style: yolov5", o.Name, o.Shape)
		case b == 6+f.Extra:
			f.Style = YOLOv10
		}
	}
	fits := false
	switch f.Style {
	case YOLOv8:
		f.Rows, f.Columns, f.NumClasses = b, a, a-4-f.Extra
		fits = f.NumClasses > 0
	case YOLOv5, YOLOX:
		f.Rows, f.Columns, f.NumClasses = a, b, b-5-f.Extra
		fits = f.NumClasses > 0 && (f.Style == YOLOv5 || matches(a, 1))
	case YOLOv10:
		f.Rows, f.Columns, f.NumClasses = a, b, len(c.Labels)
		if f.NumClasses == 0 {
			f.NumClasses = maxClasses
		}
		fits = b == 6+f.Extra
	}
	if !fits {
		return fmt.Errorf("%s has shape %v, want %s", o.Name, o.Shape, f.shapes(c))
	}
	if err := c.labelled(f.NumClasses); err != nil {
		return fmt.Errorf("%s has shape %v: %w", o.Name, o.Shape, err)
	}
	return f.pick(c, f.NumClasses)
}

// shapes says which shapes the decoder reads.
func (f *YOLO) shapes(c *Card) string {
	extra, cells := "", c.Input.Cells(YOLOStrides[0])
	if f.Extra > 0 {
		extra = fmt.Sprintf(" + %d", f.Extra)
	}
	shapes := map[string]string{
		YOLOv5: fmt.Sprintf("[%d, 5 + classes%s] (yolov5)", 3*cells, extra), YOLOv8: fmt.Sprintf("[4 + classes%s, %d] (yolov8)", extra, cells),
		YOLOv10: fmt.Sprintf("[boxes, %d] (yolov10)", 6+f.Extra), YOLOX: fmt.Sprintf("[%d, 5 + classes] (yolox)", cells),
	}
	if f.Style != "" {
		return shapes[f.Style]
	}
	return fmt.Sprintf("%s, %s, %s or %s", shapes[YOLOv5], shapes[YOLOv8], shapes[YOLOv10], shapes[YOLOX])
}

func (f *YOLO) ResultBytes() int {
	switch {
	case f.Rotated:
		return f.MaxBoxes * wire.PolygonSize(4)
	case f.Masks != "":
		return wire.MasksHead + f.MaxBoxes*wire.MaskedSize(f.Grid[0]*f.Grid[1])
	case len(f.KeyPoints) > 0:
		return wire.PointsHead + f.MaxBoxes*wire.PointedSize(f.KeyPoints[0])
	}
	return f.Found.ResultBytes()
}

// maxSide bounds sizes in cells or pixels, so that products stay small.
const maxSide = 1 << 14

// Classes decodes the likeliest classes from the one output, which has a value per class.
type Classes struct {
	familyFile
	// How many classes an answer has at most, best first; 5 if left out.
	K int `yaml:"k" min:"1" max:"65536"`
	// The function that makes probabilities of the values: softmax if a picture has one class, sigmoid if it may have several.
	Activation string `yaml:"activation" default:"none" oneof:"none|softmax|sigmoid"`
	// Classes with a lower probability are left out; 0: none.
	ScoreThreshold float64 `yaml:"score_threshold" default:"0" min:"0" max:"1"`
}

func (f *Classes) resolve(c *Card) error {
	if err := c.single(f.Name); err != nil {
		return err
	}
	o := &c.Outputs[0]
	if len(o.longAxes()) > 1 {
		return at(fmt.Errorf("%s reads one value per class, and %s has shape %v; want a shape like [%d], or another decoder: raw, map",
			f.Name, o.Name, o.Shape, slices.Max(o.Shape)), "name")
	}
	n := o.Elements()
	if f.K == 0 {
		f.K = min(5, n)
	}
	if f.K > n {
		return at(fmt.Errorf("is %d, want an integer from 1 to %d", f.K, n), "k")
	}
	return c.labelled(n)
}

func (f *Classes) ResultBytes() int { return f.K * wire.ClassSize }

// Raw passes the outputs on unchanged.
type Raw struct {
	familyFile

	// Heads precede the outputs in the answer. It is empty for KindRaw.
	Heads [][]byte
	Bytes int
}

func (f *Raw) resolve(c *Card) error {
	f.Bytes = tensorsBytes(c.Outputs)
	if c.Kind() == wire.KindRaw {
		return nil
	}
	for _, o := range c.Outputs {
		f.Heads = append(f.Heads, wire.AppendTensorHead(nil, o.Name, string(o.Type), o.Shape))
		f.Bytes += len(f.Heads[len(f.Heads)-1])
	}
	return nil
}

func (f *Raw) ResultBytes() int { return f.Bytes }

// Embedding passes the one output on as a vector of length 1.
type Embedding struct {
	familyFile

	Elements int
}

func (f *Embedding) resolve(c *Card) error {
	if err := c.single("embedding"); err != nil {
		return err
	}
	f.Elements = c.Outputs[0].Elements()
	return nil
}

func (f *Embedding) ResultBytes() int { return 4 * f.Elements }

// Objects decodes boxes of models that have found them themselves, with the suppression inside: SSD, models of
// torchvision.
type Objects struct {
	familyFile
	Found
	// The output of the boxes, of shape [rows, 4].
	Boxes string `yaml:"boxes" required:"true" want:"an output's name"`
	// The output of the scores, of shape [rows].
	Scores string `yaml:"scores" required:"true" want:"an output's name"`
	// The output of the classes, of shape [rows].
	Labels string `yaml:"labels" required:"true" want:"an output's name"`
	// The output of the number of rows that count, if there is one.
	Count string `yaml:"count" want:"an output's name"`
	// The unit of coordinates: the picture's pixels, or fractions of its width and height.
	Unit string `yaml:"unit" default:"pixels" oneof:"pixels|fractions"`
	// The order of a box's numbers.
	Order string `yaml:"order" default:"xyxy" oneof:"xyxy|yxyx"`
	// The number of the first class of the labels: 1 if 0 is the background.
	FirstClass int `yaml:"first_class" default:"0" min:"0" max:"65535"`

	// Indexes of outputs; CountOutput is -1 if there is none.
	BoxesOutput, ScoresOutput, LabelsOutput, CountOutput int
	Rows                                                 int
}

func (f *Objects) resolve(c *Card) (err error) {
	if f.Unit == "pixels" && (c.Input.Width < 1 || c.Input.Height < 1) {
		return errNoPicture
	}
	f.CountOutput = -1
	for _, o := range []struct {
		key, name string
		to        *int
		columns   int // 0: any
	}{{"boxes", f.Boxes, &f.BoxesOutput, 4}, {"scores", f.Scores, &f.ScoresOutput, 1}, {"labels", f.Labels, &f.LabelsOutput, 1}, {"count", f.Count, &f.CountOutput, 0}} {
		if o.key == "count" && o.name == "" {
			continue
		}
		if *o.to, err = c.outputNamed(o.name); err != nil {
			return at(err, o.key)
		}
		tensor := &c.Outputs[*o.to]
		switch n := tensor.Elements(); {
		case o.key == "boxes":
			f.Rows = n / 4
			if s := tensor.Shape; len(s) == 0 || s[len(s)-1] != 4 {
				return fmt.Errorf("boxes: %s has shape %v, want [rows, 4]", o.name, s)
			}
		case o.columns == 1 && n != f.Rows:
			return fmt.Errorf("%s: %s has shape %v, want [%d] as %s has shape %v", o.key, o.name, tensor.Shape, f.Rows, f.Boxes, c.Outputs[f.BoxesOutput].Shape)
		case o.columns == 0 && n != 1:
			return fmt.Errorf("count: %s has shape %v, want one number", o.name, tensor.Shape)
		}
	}
	classes := maxClasses
	if len(c.Labels) > 0 {
		classes = len(c.Labels)
	}
	return f.pick(c, classes)
}

// DETR decodes boxes of transformers: a row per query, without suppression. Boxes are centre and size in fractions
// of the picture.
type DETR struct {
	familyFile
	Found
	// The output of the boxes, of shape [queries, 4]. Without it the one output has shape [queries, 4 + classes], or
	// [queries, 6] if a row ends with score and class.
	Boxes string `yaml:"boxes" want:"an output's name"`
	// The output of the classes, of shape [queries, classes].
	Scores string `yaml:"scores" want:"an output's name"`
	// The function that makes probabilities of the classes; with two outputs sigmoid, else none, if left out. With softmax
	// the last class is "nothing".
	Activation string `yaml:"activation" oneof:"none|softmax|sigmoid"`

	// Indexes of outputs. The scores begin at column First.
	BoxesOutput, ScoresOutput, First int
	Rows, NumClasses                 int
	// Chosen: a row has a score and a class in place of a score per class.
	Chosen bool
}

func (f *DETR) resolve(c *Card) (err error) {
	want, activation := "[queries, 4]", "sigmoid"
	switch {
	case (f.Boxes == "") != (f.Scores == ""):
		return errors.New("want both boxes and scores, or neither")
	case f.Boxes == "":
		if err := c.single("detr without boxes and scores"); err != nil {
			return err
		}
		f.First, want, activation = 4, "[queries, 4 + classes] or [queries, 6]", "none"
	default:
		if f.BoxesOutput, err = c.outputNamed(f.Boxes); err != nil {
			return at(err, "boxes")
		}
		if f.ScoresOutput, err = c.outputNamed(f.Scores); err != nil {
			return at(err, "scores")
		}
	}
	if f.Activation == "" {
		f.Activation = activation
	}
	boxes, scores := &c.Outputs[f.BoxesOutput], &c.Outputs[f.ScoresOutput]
	if s := boxes.Shape; len(s) != 2 || f.First == 0 && s[1] != 4 || f.First == 4 && s[1] < 5 {
		return fmt.Errorf("%s has shape %v, want %s", boxes.Name, s, want)
	}
	f.Rows = int(boxes.Shape[0])
	if s := scores.Shape; len(s) != 2 || int(s[0]) != f.Rows {
		return fmt.Errorf("%s has shape %v, want [%d, classes]", scores.Name, s, f.Rows)
	}
	f.NumClasses = int(scores.Shape[1]) - f.First
	if f.Chosen = f.First == 4 && f.NumClasses == 2 && len(c.Labels) != 2; f.Chosen {
		if f.NumClasses = len(c.Labels); f.NumClasses == 0 {
			f.NumClasses = maxClasses
		}
	} else if f.Activation == "softmax" {
		f.NumClasses--
	}
	if err := c.labelled(f.NumClasses); err != nil {
		return err
	}
	return f.pick(c, f.NumClasses)
}

// Text decodes a line of text from the probabilities of each step (CTC). The labels are the alphabet.
type Text struct {
	familyFile

	// Steps and Symbols are the shape of the output. Symbol 0 is the blank; symbol i is label i-1.
	Steps, Symbols int
	// Labels are the alphabet, with the blank that an alphabet may leave out at its end.
	Labels []string
}

func (f *Text) resolve(c *Card) error {
	if err := c.single("text"); err != nil {
		return err
	}
	o, n := &c.Outputs[0], len(c.Labels)
	if n == 0 {
		return errors.New("text reads the alphabet from the card's labels; want labels: a file with one character per line")
	}
	if len(o.Shape) != 2 || int(o.Shape[1]) != n+1 && int(o.Shape[1]) != n+2 {
		return fmt.Errorf("%s has shape %v, want [steps, %d] or, with a space, [steps, %d] as there are %d labels", o.Name, o.Shape, n+1, n+2, n)
	}
	f.Steps, f.Symbols, f.Labels = int(o.Shape[0]), int(o.Shape[1]), c.Labels
	if f.Symbols == n+2 {
		f.Labels = append(slices.Clone(c.Labels), " ")
	}
	return nil
}

func (f *Text) ResultBytes() int {
	longest := 0
	for _, l := range f.Labels {
		longest = max(longest, len(l))
	}
	return 4 + f.Steps*longest
}

// Polygons decodes places of text from a map of probabilities (DBNet).
type Polygons struct {
	familyFile
	// Cells with a lower probability are no text.
	CellThreshold float64 `yaml:"cell_threshold" default:"0.3" min:"0" max:"1"`
	// Places with a lower mean probability are left out.
	ScoreThreshold float64 `yaml:"score_threshold" default:"0.5" min:"0" max:"1"`
	// How far a place is widened: area times this, divided by the perimeter.
	Unclip float64 `yaml:"unclip" default:"1.6" min:"0" max:"10"`
	// Maximum number of places in an answer.
	MaxBoxes int `yaml:"max_boxes" default:"100" min:"1" max:"1000"`

	Rows, Columns int
}

func (f *Polygons) resolve(c *Card) (err error) {
	f.Rows, f.Columns, err = c.grid("polygons", 1)
	return err
}

func (f *Polygons) ResultBytes() int { return f.MaxBoxes * wire.PolygonSize(4) }

// grid returns the rows and columns of the one output. Its shape is [channels, rows, columns], or without channels if there
// is one.
func (c *Card) grid(decoder string, channels int64) (rows, columns int, err error) {
	if err := c.single(decoder); err != nil {
		return 0, 0, err
	}
	o := &c.Outputs[0]
	shape := o.Shape
	if len(shape) == 3 && (channels == 0 || shape[0] == channels) {
		shape = shape[1:]
	}
	if len(shape) != 2 || shape[0] > maxSide || shape[1] > maxSide {
		return 0, 0, fmt.Errorf("%s has shape %v, want [%s, rows, columns]", o.Name, o.Shape, map[int64]string{0: "channels", 1: "1"}[channels])
	}
	return int(shape[0]), int(shape[1]), nil
}

// Map decodes a value per cell of a grid: the class of each cell (segmentation), or a number (depth, matting).
type Map struct {
	familyFile
	// The cells of the answer: the likeliest class, a byte for 0 to 1, or a half-precision number.
	Cells string `yaml:"cells" required:"true" oneof:"classes|u8|f16"`

	Channels, Rows, Columns int
}

func (f *Map) resolve(c *Card) (err error) {
	channels := int64(1)
	if f.Cells == "classes" {
		channels = 0
	}
	if f.Rows, f.Columns, err = c.grid("map", channels); err != nil {
		return err
	}
	f.Channels = c.Outputs[0].Elements() / (f.Rows * f.Columns)
	if f.Cells != "classes" || f.Channels == 1 { // with one channel, the model has chosen
		return nil
	}
	return c.labelled(f.Channels)
}

func (f *Map) ResultBytes() int {
	return wire.MapHead + f.Rows*f.Columns*map[string]int{"classes": wire.RunSize, "u8": 1, "f16": 2}[f.Cells]
}

// Pose decodes the key points of the one thing in a picture, from two distributions of each (SimCC).
type Pose struct {
	familyFile
	// The output of the distributions along the width, of shape [points, bins].
	X string `yaml:"x" required:"true" want:"an output's name"`
	// The output of the distributions along the height, of shape [points, bins].
	Y string `yaml:"y" required:"true" want:"an output's name"`

	// Indexes of outputs, and the bins along width and height.
	XOutput, YOutput       int
	Points, Columns, Lines int
}

func (f *Pose) resolve(c *Card) (err error) {
	if f.XOutput, err = c.outputNamed(f.X); err != nil {
		return at(err, "x")
	}
	if f.YOutput, err = c.outputNamed(f.Y); err != nil {
		return at(err, "y")
	}
	x, y := &c.Outputs[f.XOutput], &c.Outputs[f.YOutput]
	if len(x.Shape) != 2 || len(y.Shape) != 2 || x.Shape[0] != y.Shape[0] {
		return fmt.Errorf("%s has shape %v and %s has %v, want [points, bins] of as many points", f.X, x.Shape, f.Y, y.Shape)
	}
	f.Points, f.Columns, f.Lines = int(x.Shape[0]), int(x.Shape[1]), int(y.Shape[1])
	return nil
}

func (f *Pose) ResultBytes() int { return wire.PointsHead + wire.PointedSize(f.Points) }

// Faces decodes boxes of faces, each with five points. The number of outputs says which style they have. The shape of an
// output says what it holds: each has a row per cell and anchor, with 4 columns for boxes, 10 for points, 1 or 2 for scores.
type Faces struct {
	familyFile
	// Boxes with a lower score are left out.
	ScoreThreshold float64 `yaml:"score_threshold" default:"0.5" min:"0" max:"1"`
	// Of boxes that overlap more, one is left.
	IoUThreshold float64 `yaml:"iou_threshold" default:"0.4" min:"0" max:"1"`
	// Maximum number of boxes in an answer, best first.
	MaxBoxes int `yaml:"max_boxes" default:"100" min:"1" max:"1000"`

	Style  string
	Levels []FaceLevel
}

// The styles of Faces. The outputs of retinaface have the rows of all strides, the others have outputs per stride.
const (
	RetinaFace = "retinaface"
	SCRFD      = "scrfd"
	YuNet      = "yunet"
)

// FaceLevel is the grid of a stride.
type FaceLevel struct {
	Stride, Columns, Anchors int
	// First is its first row in the outputs.
	First, Rows int
	// Indexes of outputs; yunet has two of scores.
	Boxes, Points int
	Scores        []int
}

// FacePoints is the number of points of a face.
const FacePoints = 5

func (f *Faces) resolve(c *Card) error {
	if c.Input.Width < 1 || c.Input.Height < 1 {
		return errNoPicture
	}
	anchors, scores, scoreColumns := 2, 1, 1
	switch len(c.Outputs) {
	case 3:
		f.Style, scoreColumns = RetinaFace, 2
	case 9:
		f.Style = SCRFD
	case 12:
		f.Style, anchors, scores = YuNet, 1, 2
	default:
		return fmt.Errorf("faces reads 3 outputs (retinaface), 9 (scrfd) or 12 (yunet), the card has %d", len(c.Outputs))
	}
	f.Levels = nil
	first := 0
	for _, stride := range YOLOStrides[0] {
		columns, lines := c.Input.Grid(stride)
		l := FaceLevel{Stride: stride, Columns: columns, Anchors: anchors, First: first, Rows: columns * lines * anchors}
		rows := l.Rows
		if f.Style == RetinaFace {
			first += rows
			rows = anchors * c.Input.Cells(YOLOStrides[0])
		}
		boxes, err := c.shaped(1, rows, 4)
		points, err2 := c.shaped(1, rows, 2*FacePoints)
		var err3 error
		l.Scores, err3 = c.shaped(scores, rows, scoreColumns)
		if err := cmp.Or(err, err2, err3); err != nil {
			return fmt.Errorf("faces of %d outputs (%s): %w", len(c.Outputs), f.Style, err)
		}
		l.Boxes, l.Points = boxes[0], points[0]
		f.Levels = append(f.Levels, l)
	}
	return c.labelled(1)
}

// shaped returns the outputs of a shape, of which there must be n.
func (c *Card) shaped(n, rows, columns int) (list []int, err error) {
	want, all := []int64{int64(rows), int64(columns)}, ""
	for i, o := range c.Outputs {
		all += fmt.Sprint(" ", o.Shape)
		if slices.Equal(o.Shape, want) {
			list = append(list, i)
		}
	}
	if len(list) != n {
		return nil, fmt.Errorf("%d of shape %v, want %d; the shapes are%s", len(list), want, n, all)
	}
	return list, nil
}

func (f *Faces) ResultBytes() int { return wire.PointsHead + f.MaxBoxes*wire.PointedSize(FacePoints) }
