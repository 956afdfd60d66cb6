package models

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/models/onnxfile"
	"github.com/penstock/penstock/private"
)

// The limits of a card that tags cannot express, or that other code also checks. They are
// far above any useful model, and low enough that no product of them overflows.
const (
	maxChannels = 1 << 10
	// maxRequestBytes is 65,535 fragments (a datagram counts them in 16 bits) of 1 KiB.
	maxRequestBytes = 65535 << 10
	MaxBatchSize    = 1 << 10
	// maxTensorBytes limits the buffer that holds the tensors of the largest batch.
	maxTensorBytes = 1 << 30
	maxElements    = 1 << 28
	maxLabels      = 1 << 16
	maxLabelBytes  = 256
)

// PictureTypes are the element types of pictures on the wire and of their tensors.
var PictureTypes = document.KeyOf[formatFile]("type").OneOf()

// NamePattern matches valid names of models.
var NamePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// ReadCard reads a card and checks all of its values, the model's file and the labels.
// The error lists everything that is wrong, one line each: file, line, column, field, and
// what would be right. Each is a *document.Problem.
//
// A returned card is consistent in itself, and has the inputs and outputs that an ONNX file declares. Whether another
// model matches it is known only when a framework loads the model.
func ReadCard(path string) (*Card, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("read card: %w", err)
	}
	if filepath.Ext(path) == ".onnx" {
		return nil, fmt.Errorf("read card: %s is a model; want its card, a YAML file that describes it (docs/models.md)", path)
	}
	data, err := private.ReadFile(path, document.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("read card: %w", err)
	}
	return decodeCard(path, data)
}

// ReadDir reads the cards of a folder: NAME/card.yaml and *.yaml in the folder itself,
// sorted by name. It returns the valid cards, together with an error that describes the
// faults of the others.
func ReadDir(dir string) ([]*Card, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read cards: %w", err)
	}
	var cards []*Card
	var problems []error
	from := make(map[string]string)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			path = filepath.Join(path, "card.yaml")
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				continue
			}
		} else if filepath.Ext(path) != ".yaml" {
			continue
		}
		card, err := ReadCard(path)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if other, twice := from[card.Name]; twice {
			problems = append(problems, fmt.Errorf("%s: name %s is already used by %s", path, card.Name, other))
			continue
		}
		from[card.Name] = path
		cards = append(cards, card)
	}
	slices.SortFunc(cards, func(a, b *Card) int { return strings.Compare(a.Name, b.Name) })
	return cards, errors.Join(problems...)
}

// decodeCard is ReadCard for bytes that were already read. path is absolute.
func decodeCard(path string, data []byte) (*Card, error) {
	doc, err := document.Parse(path, data)
	if err != nil {
		return nil, err
	}
	c, root := &Card{File: path, Dir: filepath.Dir(path)}, doc.Root()
	outputs, model := c.decode(root)
	if doc.Err() == nil && model != nil {
		var m misfit
		if err := c.checkDeclared(model, outputs); errors.As(err, &m) {
			root.Find(m.path...).Reject("%v", err)
		}
	}
	if err := doc.Err(); err != nil {
		return nil, err
	}
	c.Warnings = doc.Warnings()
	return c, nil
}

// decode returns what checkDeclared compares: the outputs in the card, and the model's file; nil if only the framework can read it.
func (c *Card) decode(root document.Value) (outputs []tensorFile, model *onnxfile.Model) {
	var f cardFile
	document.SetDefaults(&f)
	root.Decode(&f)
	c.Name, c.Version, c.SLO, c.Threads = f.Name, f.Version, f.SLO, f.Threads
	c.KneePercent, c.Knees = f.KneePercent, f.Knees
	c.checkProgram(root, &f)
	switch hasInput, hasInputs := root.Has("input"), root.Has("inputs"); {
	case hasInput && hasInputs:
		root.Find("inputs").Reject("is set next to input, want one of the two")
	case hasInputs:
		c.Inputs = c.checkTensors(root.Find("inputs"), f.Inputs)
	case hasInput:
		c.checkInput(root.Find("input"), &f.Input)
	default:
		root.Find("input").Reject("is missing, want what arrives and what tensor the model wants; or inputs, a list of tensors")
	}
	c.checkSizes(root, &f)
	c.decodeConstants(f.Constants)
	if c.Framework == PyTorch && len(c.Constants) > 0 {
		root.Find("constants").Reject("is not supported by framework pytorch; build the values into the model")
	}
	c.Outputs = c.checkTensors(root.Find("outputs"), f.Outputs)

	if c.Framework == "onnx" && c.Model != "" {
		model, _ = onnxfile.Read(c.Model) // ONNX Runtime reports errors better
	}
	c.chooseBatches(f.Batches, model)
	for i, n := range c.Batches[min(1, len(c.Batches)):] {
		if last := c.Batches[i]; n > 0 && n < last {
			root.Find("batches", i+1).Reject("is %d after %d, want batch sizes, ascending, like [1, 2, 4, 8]", n, last)
		}
	}
	for i, k := range c.Knees[min(1, len(c.Knees)):] {
		if last := c.Knees[i].Batch; k.Batch > 0 && k.Batch <= last {
			root.Find("knees", i+1, "batch").Reject("is %d after %d, want a list of {batch, percent}, ascending by batch", k.Batch, last)
		}
	}
	for i := range c.Inputs {
		if at := root.Find("inputs", i, "rows"); c.Inputs[i].Rows != nil {
			at.Reject("is for outputs")
		}
	}
	for i := range c.Outputs {
		c.checkRows(root.Find("outputs", i, "rows"), &c.Outputs[i])
	}
	c.decodeState(f.State)
	c.decodeLabels(f.Labels)
	c.decodeDecoder(f.Decoder)
	c.packInputs(root.Find("inputs"))
	c.checkBytes(root)
	return f.Outputs, model
}

// checkProgram checks the program that runs the model: a built-in framework or the user's
// own.
func (c *Card) checkProgram(root document.Value, f *cardFile) {
	hasCommand := root.Has("command")
	switch {
	case !root.Has("framework") && f.Framework == "" && !hasCommand:
		root.Reject("has neither framework (onnx, pytorch) nor command (a program that links libml), want one")
	case (root.Has("framework") || f.Framework != "") && hasCommand:
		root.Find("command").Reject("is set next to framework, want one of the two")
	}
	c.Framework = f.Framework
	for i, word := range f.Command {
		c.checkWord(root.Find("command", i), i, word)
	}
	c.checkModel(root, f)
}

// checkWord checks a word of the command. The first word is the program.
func (c *Card) checkWord(at document.Value, i int, word string) {
	if strings.ContainsRune(word, 0) {
		at.Reject("has a zero byte, want a program's argument")
	}
	// A bare name is looked up in PATH when the program starts.
	if i == 0 && strings.Contains(word, "/") {
		word = c.resolve(word)
		if info, err := os.Stat(word); err != nil {
			at.Reject("program %s: %v", word, reason(err))
		} else if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			at.Reject("program %s is not executable", word)
		}
	}
	c.Command = append(c.Command, word)
}

func (c *Card) checkModel(root document.Value, f *cardFile) {
	model := root.Find("model")
	if f.Model == "" {
		if !root.Has("model") && (c.Framework == "onnx" || c.Framework == PyTorch) {
			model.Reject("is missing, want the model's file, relative to the card")
		}
		return
	}
	c.Model = c.resolve(f.Model)
	switch info, err := os.Stat(c.Model); {
	case err != nil:
		model.Reject("file %s: %v", c.Model, reason(err))
	case !info.Mode().IsRegular():
		model.Reject("file %s is not a regular file", c.Model)
	case info.Size() == 0:
		model.Reject("file %s is empty", c.Model)
	case c.Framework == "onnx":
		c.checkONNX(model)
	}
}

// checkONNX finds the other files of an ONNX model. ONNX Runtime checks the rest when the model is loaded.
func (c *Card) checkONNX(model document.Value) {
	if known := onnxfile.Describe(c.Model); known != "" {
		model.Reject("file %s is %s", c.Model, known)
		return
	}
	var err error
	if c.Data, err = onnxfile.DataFiles(c.Model); err != nil {
		model.Reject("file %s: %v", c.Model, err)
	}
}

// Files returns the files that the model is read from.
func (c *Card) Files() []string {
	if c.Model == "" {
		return nil
	}
	return append([]string{c.Model}, c.Data...)
}

// resolve makes a card's path absolute.
func (c *Card) resolve(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(c.Dir, path)
}

// reason returns an error without its path, which the message already has.
func reason(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (c *Card) checkInput(v document.Value, f *inputFile) {
	in := &c.Input
	*in = Input{
		Name: f.Name, WireType: f.Wire.Type, WireLayout: f.Wire.Layout, TensorType: f.Tensor.Type, TensorLayout: f.Tensor.Layout,
		Fit: f.Fit, Pad: f.Pad, Antialias: f.Antialias, ReverseChannels: f.ReverseChannels || f.Colour == "bgr", Background: [3]uint8{255, 255, 255},
	}
	if !v.IsMap() {
		return // already reported
	}
	if c.Framework == "onnx" && !v.Has("name") {
		v.Find("name").Reject("is missing, want the model's input")
	}
	if len(f.Size) == 3 {
		in.Height, in.Width, in.Channels = f.Size[0], f.Size[1], f.Size[2]
	}
	if in.Channels > maxChannels {
		v.Find("size", 2).Reject("is %d, want an integer from 1 to %d", in.Channels, maxChannels)
	}
	if total := in.WireBytes(); total > maxRequestBytes {
		v.Find("size").Reject("is %d bytes on the wire, want at most %d", total, maxRequestBytes)
	}
	in.checkColours(v, f)

	for key, n := range map[string]int{"mean": len(f.Mean), "std": len(f.Std), "pad": len(f.Pad)} {
		if n > 0 && in.Channels > 0 && n != in.Channels {
			v.Find(key).Reject("has %d elements, want %d, one per channel", n, in.Channels)
		}
	}
	switch hasMean, hasStd := v.Has("mean"), v.Has("std"); {
	case !hasMean && hasStd:
		v.Find("std").Reject("is set without mean, want both or neither")
	case hasMean && !hasStd:
		v.Find("mean").Reject("is set without std, want both or neither")
	case in.WireType == U8:
		warnScale(v, f)
	}
	in.fold(f)
}

// checkColours checks what the channels are, and what is behind and between the values of pictures.
func (in *Input) checkColours(v document.Value, f *inputFile) {
	right := map[int]string{1: "grey", 3: "rgb or bgr"}[in.Channels]
	switch {
	case in.Channels == 0: // already reported
	case f.Colour != "" && v.Has("reverse_channels"):
		v.Find("colour").Reject("is set next to reverse_channels, want one of the two")
	case f.Colour != "" && !strings.Contains(right, f.Colour):
		v.Find("colour").Reject("is %s, want %s: size has %d channels", f.Colour, cmp.Or(right, "none"), in.Channels)
	case f.ReverseChannels && in.Channels == 1:
		v.Find("reverse_channels").Reject("is true, want false: there is one channel")
	}
	for i, level := range f.Background {
		in.Background[i] = uint8(level)
	}
	if copy(in.Range[2-len(f.Range):], f.Range); len(f.Range) > 0 && in.Range[0] >= in.Range[1] {
		v.Find("range").Reject("has black %d and white %d, want black below white", in.Range[0], in.Range[1])
	}
}

// fold sets mean and std for values without scale.
func (in *Input) fold(f *inputFile) {
	in.Mean, in.Std = f.Mean, f.Std
	if f.Scale == 1 {
		return
	}
	in.Mean, in.Std = make([]float32, in.Channels), make([]float32, in.Channels)
	for c := range in.Channels {
		mean, std := float32(0), float32(1)
		if len(f.Mean) == in.Channels && len(f.Std) == in.Channels {
			mean, std = f.Mean[c], f.Std[c]
		}
		in.Mean[c], in.Std[c] = float32(float64(mean)/float64(f.Scale)), float32(float64(std)/float64(f.Scale))
	}
}

// warnScale warns of a mean and std for pictures of 0 to 1, as PyTorch's have, if those on the wire have
// bytes and no scale, and of the opposite.
func warnScale(v document.Value, f *inputFile) {
	mean, std := f.Mean, f.Std
	within := func(values []float32) bool {
		return !slices.ContainsFunc(values, func(x float32) bool { return x < -1 || x > 1 })
	}
	same := func(values []float32, all float32) bool {
		return !slices.ContainsFunc(values, func(x float32) bool { return x != all })
	}
	switch white := 255 * float64(f.Scale); {
	case len(mean) == 0:
	case f.Scale != 1:
		if most := slices.Max(mean); float64(most) > white {
			v.Find("mean").Warn("has %v, and scale makes 0 to %.4g of a picture; want a mean of that, or no scale", most, white)
		}
	case !within(std) || same(std, 1) && (same(mean, 0) || !within(mean)):
	case within(mean):
		v.Find("std").Warn("is for pictures of 0 to 1, and requests of u8 have 0 to 255; want scale: 1/255, or mean: %s and std: %s", inBytes(mean), inBytes(std))
	default:
		v.Find("std").Warn("is at most 1, so the tensor has up to %.4g; requests of u8 have 0 to 255, and (v - mean) is divided by std", (255-slices.Min(mean))/slices.Min(std))
	}
}

// inBytes returns numbers for pictures of 0 to 1 as numbers for 0 to 255.
func inBytes(values []float32) string {
	text := make([]string, len(values))
	for i, v := range values {
		text[i] = strconv.FormatFloat(math.Round(float64(v)*255*1e4)/1e4, 'f', -1, 64)
	}
	return "[" + strings.Join(text, ", ") + "]"
}

func (c *Card) checkTensors(v document.Value, files []tensorFile) (tensors []Tensor) {
	for i, f := range files {
		t, at := Tensor{Name: f.Name, Type: f.Type, Shape: f.Shape, BatchAxis: f.BatchAxis, Rows: f.Rows}, v.Find(i)
		if t.Rows != nil {
			t.Shape = slices.Insert(slices.Clone(t.Shape), 0, int64(t.Rows.Max))
		}
		if t.Name != "" && slices.ContainsFunc(tensors, func(o Tensor) bool { return o.Name == t.Name }) {
			at.Find("name").Reject("%q is listed twice", t.Name)
		}
		switch at := at.Find("batch_axis"); {
		case t.BatchAxis > len(t.Shape):
			at.Reject("is %d, want at most %d: the model's tensor has an axis more than shape %v", t.BatchAxis, len(t.Shape), t.Shape)
		case t.BatchAxis > 0 && c.Framework != "onnx":
			at.Reject("is for framework onnx; a program's buffers have one image after the other")
		}
		total := int64(1)
		for _, n := range t.Shape {
			if total *= n; total > maxElements {
				at.Find("shape").Reject("has more than %d elements", int64(maxElements))
				t.Shape = nil
				break
			}
		}
		tensors = append(tensors, t)
	}
	return tensors
}

// checkRows checks an output whose number of rows depends on the image.
func (c *Card) checkRows(v document.Value, t *Tensor) {
	r := t.Rows
	if r == nil {
		return
	}
	switch {
	case c.Framework != "onnx":
		v.Reject("is for framework onnx; a program writes the largest shape")
	case t.BatchAxis > 0:
		v.Reject("is set next to batch_axis, want one of the two")
	case t.Type == F16 || t.Type == BF16:
		v.Reject("is for other types than %s; put a Cast node behind the output", t.Type)
	case r.Count != "" && r.BatchColumn:
		v.Reject("has count and batch_column, want one of the two")
	case r.Count != "":
		i := slices.IndexFunc(c.Outputs, func(o Tensor) bool { return o.Name == r.Count })
		if i < 0 || c.Outputs[i].Rows != nil || c.Outputs[i].Elements() != 1 {
			v.Find("count").Reject("is %q, want an output in this card with one number per image", r.Count)
		}
	case r.BatchColumn:
		if len(t.Shape) != 2 {
			v.Find("batch_column").Reject("is true, and a row has shape %v without it; want one dimension", t.Shape[1:])
		}
	case len(c.Batches) > 0 && c.MaxBatch() > 1:
		v.Reject("has neither count nor batch_column, which say what rows an image has; want one, or batches: [1]")
	}
}

// packInputs describes requests of tensors.
func (c *Card) packInputs(v document.Value) {
	if len(c.Inputs) == 0 || len(c.Batches) == 0 {
		return
	}
	total := 0
	for i := range c.Inputs {
		if total += c.Inputs[i].Bytes(); total > maxRequestBytes {
			v.Reject("take more than %d bytes in a request", maxRequestBytes)
			return
		}
	}
	c.Input = c.pack()
}

// chooseBatches sets the batch sizes: those of the card, or that of the model, or automatic ones.
func (c *Card) chooseBatches(list []int, model *onnxfile.Model) {
	if c.Batches = list; len(list) > 1 || len(list) == 1 && list[0] != 1 {
		return
	}
	switch n := c.fixedBatch(model); {
	case len(list) == 1:
	case n > 0:
		c.Batches = []int{n}
	default:
		c.AutoBatches, c.Batches = true, slices.Clone(autoBatches)
		c.Batches = c.batchesWithin(c.MaxBatch(), maxTensorBytes)
	}
}

// fixedBatch returns the batch of the model's file, if that is the same for all requests; else 0. A tensor that has the
// card's shape in the file has no batch axis; the batch is then 1. If the card says batches: [1], the file may leave
// dimensions of the shape open.
func (c *Card) fixedBatch(model *onnxfile.Model) (batch int) {
	if model == nil {
		return 0
	}
	declared := map[string][]onnxfile.Dim{}
	for _, v := range slices.Concat(model.Inputs, model.Outputs) {
		declared[v.Name] = v.Shape
	}
	fits := func(d onnxfile.Dim, n int64) bool { return d.Size == n || d.Size < 0 && len(c.Batches) == 1 }
	single := false

	inputs := c.InputTensors()
	for _, tensors := range [][]Tensor{inputs, c.Outputs} {
		for i := range tensors {
			t := &tensors[i]
			dims := declared[t.Name]
			switch {
			case t.Rows != nil || dims == nil:
			case t.BatchAxis == 0 && slices.EqualFunc(dims, t.Shape, fits):
				t.BatchAxis, single = NoBatchAxis, true
			case batch == 0 && len(dims) == 1+len(t.Shape) && t.BatchAxis < len(dims):
				if n := dims[t.BatchAxis].Size; n > 0 && n <= MaxBatchSize {
					batch = int(n)
				}
			}
		}
	}
	if len(c.Inputs) == 0 {
		c.Input.BatchAxis = inputs[0].BatchAxis
	}
	copy(c.Inputs, inputs)
	if single {
		return 1
	}
	return batch
}

// decodeConstants reads inputs that no request has.
func (c *Card) decodeConstants(v document.Value) {
	const rule = "a map from names of inputs to a number, or a list of numbers"
	if v.Absent() {
		return
	}
	plain, ok := v.Plain().(map[string]any)
	if !ok {
		v.Reject("is no map, want %s, like {sr: 16000}", rule)
		return
	}
	c.Constants = map[string][]float64{}
	for name, value := range plain {
		list, ok := value.([]any)
		if !ok {
			list = []any{value}
		}
		for _, e := range list {
			switch n := e.(type) {
			case int64:
				c.Constants[name] = append(c.Constants[name], float64(n))
			case float64:
				c.Constants[name] = append(c.Constants[name], n)
			default:
				v.Reject("%s is %v, want %s", name, value, rule)
				return
			}
		}
		if len(list) == 0 || len(list) > maxChannels {
			v.Reject("%s has %d numbers, want 1 to %d", name, len(list), maxChannels)
		}
		if slices.ContainsFunc(c.InputTensors(), func(t Tensor) bool { return t.Name == name }) {
			v.Reject("%s is an input of requests, too; want it in one of the two", name)
		}
	}
}

// maxStateBytes limits the state of a stream, so that a process can keep that of many.
const maxStateBytes = 1 << 20

// decodeState moves outputs that become inputs of the next request from Outputs to State.
func (c *Card) decodeState(v document.Value) {
	const rule = "a map from names of inputs to names of outputs, like {h: hn}"
	if v.Absent() {
		return
	}
	plain, ok := v.Plain().(map[string]any)
	if !ok {
		v.Reject("is no map, want %s", rule)
		return
	}
	if c.Framework != "onnx" {
		v.Reject("is for framework onnx; keep the state of other models in the client")
	}
	for _, input := range slices.Sorted(maps.Keys(plain)) {
		output, ok := plain[input].(string)
		at := slices.IndexFunc(c.Outputs, func(t Tensor) bool { return t.Name == output })
		_, constant := c.Constants[input]
		switch {
		case !ok:
			v.Reject("%s is %v, want %s", input, plain[input], rule)
		case at < 0:
			v.Reject("%s is the output %q, which outputs does not list, or which is another state", input, output)
		case c.Outputs[at].Rows != nil:
			v.Reject("%s is the output %q, whose rows depend on the picture; want one of a fixed shape", input, output)
		case constant, slices.ContainsFunc(c.InputTensors(), func(t Tensor) bool { return t.Name == input }):
			v.Reject("%s is an input of requests or a constant, too; want it in one place", input)
		default:
			c.State = append(c.State, State{input, c.Outputs[at]})
			c.Outputs = slices.Delete(c.Outputs, at, at+1)
		}
	}
	if bytes := c.StateBytes(); bytes > maxStateBytes {
		v.Reject("has %d bytes per stream, want at most %d", bytes, maxStateBytes)
	}
	if len(c.Outputs) == 0 && len(c.State) > 0 {
		v.Reject("has all outputs; want another one, for the answers")
	}
}

// checkBytes limits the memory of a batch.
func (c *Card) checkBytes(root document.Value) {
	if len(c.Batches) == 0 {
		return
	}
	n := int64(c.MaxBatch())
	total := int64(c.Input.BatchBytes(int(n)))
	for i := range c.Outputs {
		total += n * int64(c.Outputs[i].Bytes())
	}
	total += 2 * n * int64(c.StateBytes())
	if total > maxTensorBytes {
		root.Find("batches").Reject("tensors of a batch of %d take %d bytes, want at most %d", n, total, int64(maxTensorBytes))
	}
}

// decodeLabels reads the classes' names: a list, or a file with one name per line.
func (c *Card) decodeLabels(v document.Value) {
	const rule = "a list of names, or a file with one name per line"
	if v.Absent() {
		return
	}
	if v.IsList() {
		list := v.List(rule)
		if len(list) > maxLabels {
			v.Reject("has %d names, want at most %d", len(list), maxLabels)
			return
		}
		for _, e := range list {
			label := e.Text("a name; quote it where it is a number or a word like no")
			if label == "" {
				continue // already reported
			}
			if err := checkLabel(label); err != nil {
				e.Reject("%v", err)
			}
			c.Labels = append(c.Labels, label)
		}
		return
	}
	file := v.Text(rule)
	if file == "" {
		return
	}
	path := c.resolve(file)
	data, err := private.ReadFile(path, maxLabels*16)
	if err != nil {
		v.Reject("file %s: %v", path, reason(err))
		return
	}
	lines := strings.Split(strings.TrimRight(string(data), "\r\n"), "\n")
	if len(lines) > maxLabels {
		v.Reject("file %s has %d lines, want at most %d", path, len(lines), maxLabels)
		return
	}
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\r")
		if err := checkLabel(line); err != nil {
			v.Reject("file %s:%d: %v", path, i+1, err)
			return
		}
		c.Labels = append(c.Labels, line)
	}
}

func checkLabel(s string) error {
	switch {
	case s == "":
		return errors.New("name is empty")
	case len(s) > maxLabelBytes:
		return fmt.Errorf("name has %d bytes, want at most %d", len(s), maxLabelBytes)
	case !utf8.ValidString(s), strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("name %q is not plain text", s)
	}
	return nil
}
