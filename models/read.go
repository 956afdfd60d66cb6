package models

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/models/document"
)

// The limits of a card. They are far above any model of use, and low enough that
// no product of them overflows and a slip of the pen takes no gigabyte.
const (
	MaxSide     = 1 << 14 // height, width
	MaxChannels = 1 << 10
	// MaxRequestBytes is 65,535 pieces (the datagram counts them in 16 bits) of
	// 1 KiB.
	MaxRequestBytes = 65535 << 10
	MaxBatchSize    = 1 << 10
	MaxLadder       = 16 // steps: each is prepared and warmed up
	MaxOutputs      = 32
	MaxRank         = 8
	// MaxTensorBytes bounds the buffer that holds the tensors of the largest batch.
	MaxTensorBytes = 1 << 30
	MaxLabels      = 1 << 16
	MaxLabelBytes  = 256
	MaxThreads     = 1 << 10
	MaxSLO         = time.Hour
)

// Frameworks and Decoders are the names that a card may use.
var (
	Frameworks = []string{"onnx", "pytorch", "null"}
	Decoders   = []string{"topk", "boxes", "raw"}
)

// NamePattern is what a model's name looks like.
var NamePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// tensorName is what a tensor's name looks like: frameworks use ':', '/', '.'.
var tensorName = regexp.MustCompile(`^[!-~]{1,255}$`)

// ReadCard reads a card and checks every value of it, the model's file and the
// labels' too. The error names all that is wrong, a line each: file, line,
// column, field, and what would be right; each is a *document.Problem.
//
// A card that is returned is right in itself; whether the model fits it shows
// when a framework loads it.
func ReadCard(path string) (*Card, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("read card: %w", err)
	}
	data, err := readSmall(path, document.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("read card: %w", err)
	}
	return decodeCard(path, data)
}

// ReadDir reads the cards of a folder: NAME/card.yaml and *.yaml in the folder
// itself, sorted by name. It returns the cards that are right beside the error
// that says what is wrong with the others.
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
			problems = append(problems, fmt.Errorf("%s: name %s is %s's already", path, card.Name, other))
			continue
		}
		from[card.Name] = path
		cards = append(cards, card)
	}
	slices.SortFunc(cards, func(a, b *Card) int { return strings.Compare(a.Name, b.Name) })
	return cards, errors.Join(problems...)
}

// readSmall reads a regular file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, want at most %d", path, info.Size(), limit)
	}
	return os.ReadFile(path)
}

// decodeCard is ReadCard of bytes already read from path, an absolute one.
func decodeCard(path string, data []byte) (*Card, error) {
	doc, err := document.Parse(path, data)
	if err != nil {
		return nil, err
	}
	c := &Card{File: path, Dir: filepath.Dir(path)}
	c.decode(doc.Root())
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Card) decode(root document.Value) {
	m := root.Map("name", "version", "framework", "command", "model", "input", "outputs",
		"batches", "slo", "knee_percent", "knees", "threads", "decoder", "labels")

	const nameRule = "lower case letters, digits, '-' and '_', at most 64"
	name := m.Need("name", nameRule)
	if c.Name = name.Text(nameRule); c.Name != "" && !NamePattern.MatchString(c.Name) {
		name.Reject("is %q, want %s", c.Name, nameRule)
	}
	c.Version = uint32(m.Need("version", "an integer from 1").Int(1, 1<<32-1))
	c.decodeProgram(m)
	c.Input.decode(m.Need("input", "what arrives and what tensor the model wants"), c.Framework == "onnx")
	c.decodeOutputs(m.Need("outputs", "a list of {name, shape}"))
	c.decodeBatches(m.May("batches"))
	c.SLO = m.Need("slo", "a duration with its unit, like 25ms").Duration(time.Microsecond, MaxSLO)
	c.KneePercent = m.May("knee_percent").Float(0, 100)
	c.decodeKnees(m.May("knees"))
	c.Threads = int(m.May("threads").Int(0, MaxThreads))
	c.decodeLabels(m.May("labels"))
	c.decodeDecoder(m.May("decoder"))
	c.checkBytes(m)
}

// decodeProgram reads what runs the model: a built-in framework or the user's
// own program.
func (c *Card) decodeProgram(m document.Map) {
	framework, command := m.May("framework"), m.May("command")
	// The framework null may stand without quotes.
	named := !framework.Absent() || framework.SaysNull()
	switch {
	case !named && command.Absent():
		m.At().Reject("has neither framework (%s) nor command (a program that links libml), want one", strings.Join(Frameworks, ", "))
	case named && !command.Absent():
		command.Reject("stands beside framework, want one of the two")
	}
	if c.Framework = framework.Choice(Frameworks...); framework.SaysNull() {
		c.Framework = "null"
	}

	const rule = "a program and its arguments, like [./my-if, --flag]"
	words := command.List(rule)
	if command.IsList() && len(words) == 0 {
		command.Reject("is empty, want %s", rule)
	}
	for i, w := range words {
		s := w.Text(rule)
		if strings.ContainsRune(s, 0) {
			w.Reject("has a zero byte, which no program can be given")
		}
		// A bare name is looked up in PATH when the program is started.
		if i == 0 && strings.Contains(s, "/") {
			s = c.resolve(s)
			if info, err := os.Stat(s); err != nil {
				w.Reject("program %s: %v", s, reason(err))
			} else if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
				w.Reject("program %s is not executable", s)
			}
		}
		c.Command = append(c.Command, s)
	}

	model := m.May("model")
	if c.Framework == "onnx" || c.Framework == PyTorch {
		model = m.Need("model", "the model's file, beside the card")
	}
	file := model.Text("the model's file, beside the card")
	if file == "" {
		return
	}
	c.Model = c.resolve(file)
	switch info, err := os.Stat(c.Model); {
	case err != nil:
		model.Reject("file %s: %v", c.Model, reason(err))
	case !info.Mode().IsRegular():
		model.Reject("file %s is no regular file", c.Model)
	case info.Size() == 0:
		model.Reject("file %s is empty", c.Model)
	}
}

// resolve makes a card's path absolute.
func (c *Card) resolve(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(c.Dir, path)
}

// reason is an error without the path that its reader has just been told.
func reason(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (in *Input) decode(v document.Value, needName bool) {
	m := v.Map("name", "size", "wire", "tensor", "reverse_channels", "mean", "std")
	name := m.May("name")
	if needName {
		name = m.Need("name", "the model's input")
	}
	in.Name = tensorNameOf(name)

	const sizeRule = "[height, width, channels]"
	size := m.Need("size", sizeRule)
	dims := size.List(sizeRule)
	if size.IsList() && len(dims) != 3 {
		size.Reject("has %d elements, want %s", len(dims), sizeRule)
	}
	if len(dims) == 3 {
		in.Height = int(dims[0].Int(1, MaxSide))
		in.Width = int(dims[1].Int(1, MaxSide))
		in.Channels = int(dims[2].Int(1, MaxChannels))
	}
	in.WireType, in.WireLayout = decodeFormat(m.Need("wire", "{type: u8, layout: hwc}"))
	in.TensorType, in.TensorLayout = decodeFormat(m.Need("tensor", "{type: f32, layout: chw}"))
	if total := in.WireBytes(); total > MaxRequestBytes {
		size.Reject("is %d bytes on the wire, want at most %d", total, MaxRequestBytes)
	}
	reverse := m.May("reverse_channels")
	if in.ReverseChannels = reverse.Bool(); in.ReverseChannels && in.Channels == 1 {
		reverse.Reject("is true, want false: there is one channel")
	}

	mean, std := m.May("mean"), m.May("std")
	const largest = 1e6
	in.Mean = in.decodeChannels(mean, -largest, largest)
	in.Std = in.decodeChannels(std, 1e-6, largest)
	switch {
	case mean.Absent() && !std.Absent():
		std.Reject("stands without mean, want both or neither")
	case std.Absent() && !mean.Absent():
		mean.Reject("stands without std, want both or neither")
	}
}

func decodeFormat(v document.Value) (DType, Layout) {
	m := v.Map("type", "layout")
	t := m.Need("type", "u8, f16 or f32").Choice(string(U8), string(F16), string(F32))
	l := m.Need("layout", "hwc or chw").Choice(string(HWC), string(CHW))
	return DType(t), Layout(l)
}

// decodeChannels reads one number a channel.
func (in *Input) decodeChannels(v document.Value, least, most float64) []float32 {
	elements := v.List("a list of one number a channel")
	if v.IsList() && in.Channels > 0 && len(elements) != in.Channels {
		v.Reject("has %d elements, want %d, one a channel", len(elements), in.Channels)
		return nil
	}
	var out []float32
	for _, e := range elements {
		out = append(out, float32(e.Float(least, most)))
	}
	return out
}

func tensorNameOf(v document.Value) string {
	const rule = "a tensor's name, printable and without blanks"
	s := v.Text(rule)
	if s != "" && !tensorName.MatchString(s) {
		v.Reject("is %q, want %s", s, rule)
		return ""
	}
	return s
}

func (c *Card) decodeOutputs(v document.Value) {
	const rule = "a list of {name, shape}"
	list := v.List(rule)
	if v.IsList() && (len(list) == 0 || len(list) > MaxOutputs) {
		v.Reject("has %d elements, want 1 to %d of {name, shape}", len(list), MaxOutputs)
		return
	}
	for _, e := range list {
		m := e.Map("name", "shape")
		name := m.Need("name", "the model's output")
		o := Output{Name: tensorNameOf(name)}
		if o.Name != "" && slices.ContainsFunc(c.Outputs, func(p Output) bool { return p.Name == o.Name }) {
			name.Reject("%q stands twice", o.Name)
		}
		const shapeRule = "the shape of one image's output, without the batch, like [512, 16]"
		shape := m.Need("shape", shapeRule)
		dims := shape.List(shapeRule)
		if shape.IsList() && (len(dims) == 0 || len(dims) > MaxRank) {
			shape.Reject("has %d dimensions, want 1 to %d", len(dims), MaxRank)
		}
		total := int64(1)
		for _, d := range dims {
			n := d.Int(1, MaxTensorBytes/4)
			o.Shape = append(o.Shape, n)
			if total *= n; total > MaxTensorBytes/4 {
				shape.Reject("has more than %d elements", int64(MaxTensorBytes/4))
				total, o.Shape = 0, nil
				break
			}
		}
		c.Outputs = append(c.Outputs, o)
	}
}

func (c *Card) decodeBatches(v document.Value) {
	if v.Absent() {
		c.Batches = []int{1}
		return
	}
	const rule = "batch sizes, ascending from 1, like [1, 2, 4, 8]"
	list := v.List(rule)
	if v.IsList() && (len(list) == 0 || len(list) > MaxLadder) {
		v.Reject("has %d elements, want 1 to %d %s", len(list), MaxLadder, rule)
		return
	}
	last := 0
	for i, e := range list {
		n := int(e.Int(1, MaxBatchSize))
		switch {
		case n == 0: // said already
		case i == 0 && n != 1:
			e.Reject("is %d, want 1: %s", n, rule)
		case n <= last:
			e.Reject("is %d after %d, want %s", n, last, rule)
		}
		last = n
		c.Batches = append(c.Batches, n)
	}
}

func (c *Card) decodeKnees(v document.Value) {
	const rule = "a list of {batch, percent}, ascending by batch"
	for _, e := range v.List(rule) {
		m := e.Map("batch", "percent")
		batch := m.Need("batch", "a batch size")
		k := Knee{Batch: int(batch.Int(1, MaxBatchSize)), Percent: m.Need("percent", "the knee in percent").Float(0, 100)}
		if n := len(c.Knees); k.Batch > 0 && n > 0 && k.Batch <= c.Knees[n-1].Batch {
			batch.Reject("is %d after %d, want %s", k.Batch, c.Knees[n-1].Batch, rule)
		}
		c.Knees = append(c.Knees, k)
	}
}

// checkBytes bounds the memory that a batch takes.
func (c *Card) checkBytes(m document.Map) {
	if len(c.Batches) == 0 {
		return
	}
	n := int64(c.MaxBatch())
	total := n * int64(c.Input.TensorBytes())
	for i := range c.Outputs {
		total += n * int64(c.Outputs[i].Bytes())
	}
	if total > MaxTensorBytes {
		m.May("batches").Reject("tensors of a batch of %d take %d bytes, want at most %d", n, total, int64(MaxTensorBytes))
	}
}

// decodeLabels reads the classes' names: a list, or a file with one a line.
func (c *Card) decodeLabels(v document.Value) {
	const rule = "a list of names, or a file with one a line"
	if v.Absent() {
		return
	}
	if v.IsList() {
		list := v.List(rule)
		if len(list) > MaxLabels {
			v.Reject("has %d names, want at most %d", len(list), MaxLabels)
			return
		}
		for _, e := range list {
			label := e.Text("a name; quote it where it is a number or a word like no")
			if label == "" {
				continue // said already
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
	data, err := readSmall(path, MaxLabels*16)
	if err != nil {
		v.Reject("file %s: %v", path, reason(err))
		return
	}
	lines := strings.Split(strings.TrimRight(string(data), "\r\n"), "\n")
	if len(lines) > MaxLabels {
		v.Reject("file %s has %d lines, want at most %d", path, len(lines), MaxLabels)
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
	case len(s) > MaxLabelBytes:
		return fmt.Errorf("name has %d bytes, want at most %d", len(s), MaxLabelBytes)
	case !utf8.ValidString(s), strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("name %q is not plain text", s)
	}
	return nil
}
