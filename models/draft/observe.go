package draft

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/onnxfile"
)

// Tensor is an input or output of one run.
type Tensor struct {
	Name, Type string
	Shape      []int64
	Values     []float64
}

// Observed is what runs have shown of a model.
type Observed struct {
	Inputs  []Input  `json:"inputs"`
	Outputs []Output `json:"outputs"`
	// Batch is the only batch size, or 0 if the model takes any.
	Batch int64 `json:"batch"`
	// Single is why a batch has one image although the model takes more; it may be empty.
	Single string `json:"single,omitempty"`
	// SizeGuessed: the file leaves dimensions open, and they were chosen because the model runs with them.
	SizeGuessed bool `json:"size_guessed,omitempty"`
}

// Input is an input with the shape of one image.
type Input struct {
	Name  string  `json:"name"`
	Type  string  `json:"type"`
	Shape []int64 `json:"shape"`
	// Axis is the batch axis of the model's tensor, -1 if it has none.
	Axis int `json:"axis"`
	// Constant are the values of an input that requests do not have.
	Constant []float64 `json:"constant,omitempty"`
	// State is the output that becomes this input of the next request.
	State string `json:"state,omitempty"`
}

// Output is an output with the shape of one image.
type Output struct {
	Name  string  `json:"name"`
	Type  string  `json:"type"`
	Shape []int64 `json:"shape"`
	Axis  int     `json:"axis"`
	// Rows is set if the number of rows depends on what is in the image. Shape then begins with Rows.Max.
	Rows *models.Rows `json:"rows,omitempty"`
	// Fractions: all values are from 0 to 1. Probabilities: their sum is 1, too, for each image.
	Fractions     bool `json:"fractions,omitempty"`
	Probabilities bool `json:"probabilities,omitempty"`
}

// Runner runs a model with inputs in the order of its file, and returns all outputs.
type Runner interface {
	Run(inputs []Tensor) (outputs []Tensor, err error)
}

// Observe runs a model with one image and with two. size are the dimensions that the file leaves open, without
// the batch, in order; Observe chooses them if there are none.
func Observe(model *onnxfile.Model, size []int64, runner Runner) (*Observed, error) {
	if len(model.Inputs) == 0 || len(model.Outputs) == 0 {
		return nil, fmt.Errorf("model has %d inputs and %d outputs, want at least one each", len(model.Inputs), len(model.Outputs))
	}
	tries, err := sizes(model, size)
	if err != nil {
		return nil, err
	}
	var first error
	for _, try := range tries {
		o := &Observed{Batch: fixedBatch(model), SizeGuessed: len(tries) > 1 || len(size) == 0 && len(try) > 0 && model.Metadata["imgsz"] == ""}
		o.Inputs = inputs(model, try)
		err := o.observe(model, runner)
		if err == nil && o.Batch > 1 && o.Single != "" {
			o, err = o.whole(model, runner)
		}
		if err == nil {
			return o, nil
		} else if first == nil {
			first = err
		}
	}
	if len(tries) > 1 {
		return nil, fmt.Errorf("model does not run with the sizes that were tried for its open dimensions: %w; give them with --size", first)
	}
	return nil, fmt.Errorf("run model: %w", first)
}

// batchName returns the name of the batch axis, and whether the file leaves the batch open.
func batchName(model *onnxfile.Model) (name string, open bool) {
	for _, v := range model.Inputs {
		if len(v.Shape) > 0 && v.Shape[0].Size < 0 {
			return v.Shape[0].Name, true
		}
	}
	return "", false
}

func fixedBatch(model *onnxfile.Model) int64 {
	if _, open := batchName(model); open {
		return 0
	}
	for _, v := range model.Inputs {
		if len(v.Shape) > 1 {
			return v.Shape[0].Size
		}
	}
	return 1
}

// batchAxis returns the batch axis of an input, or -1.
func batchAxis(model *onnxfile.Model, v onnxfile.Value) int {
	name, open := batchName(model)
	if !open {
		if len(v.Shape) > 1 && v.Shape[0].Size == fixedBatch(model) {
			return 0
		}
		return -1
	}
	if len(v.Shape) > 0 && v.Shape[0].Size < 0 {
		return 0
	}
	return slices.IndexFunc(v.Shape, func(d onnxfile.Dim) bool { return d.Size < 0 && d.Name == name })
}

// openDims returns the dimensions that a size is needed for, in order. Those of one name have one size. sizes are from shapes, of
// inputs by their names, without the batch. A size is -1 if the shapes do not have it.
func openDims(model *onnxfile.Model, shapes map[string][]int64) (dims []onnxfile.Dim, sizes []int64) {
	for _, v := range model.Inputs {
		axis := batchAxis(model, v)
		given := shapes[v.Name]
		for i, d := range v.Shape {
			if i == axis || d.Size >= 0 || d.Name != "" && d.Name != "?" && slices.Contains(dims, d) {
				continue
			}
			size := int64(-1)
			if at := i - len(v.Shape) + len(given); at >= 0 && len(given) > 0 {
				size = given[at]
			}
			dims, sizes = append(dims, d), append(sizes, size)
		}
	}
	return dims, sizes
}

// SizeOf returns Options.Size for inputs of these shapes, without the batch; nil if they leave a size open.
func SizeOf(model *onnxfile.Model, shapes map[string][]int64) []int64 {
	_, sizes := openDims(model, shapes)
	if slices.Contains(sizes, -1) {
		return nil
	}
	return sizes
}

// sizes returns the sizes to try for the open dimensions.
func sizes(model *onnxfile.Model, size []int64) ([][]int64, error) {
	for _, v := range model.Inputs {
		if v.Shape == nil {
			return nil, fmt.Errorf("input %q has no shape in the file; export the model with shapes", v.Name)
		}
	}
	open, _ := openDims(model, nil)
	switch declared := ints(model.Metadata["imgsz"]); {
	case len(size) > 0 && len(size) != len(open):
		return nil, fmt.Errorf("--size has %d numbers, want %d, one for each dimension that the file leaves open: %s", len(size), len(open), onnxfile.List(model.Inputs))
	case len(size) > 0:
		return [][]int64{size}, nil
	case len(open) == 0:
		return [][]int64{nil}, nil
	case len(declared) == len(open):
		return [][]int64{declared}, nil
	}

	var tries [][]int64
	square := []int64{640, 320, 224, 512}
	picture := picture(model)
	switch {
	case picture && model.Metadata["character"] != "" && len(open) <= 2: // the width, or both sides
		size := []int64{48, textWidths[len(textWidths)-1]}
		return [][]int64{size[2-len(open):]}, nil
	case picture && len(open) == 1 && slices.ContainsFunc(model.Inputs[0].Shape, func(d onnxfile.Dim) bool { return d.Size == 48 || d.Size == 32 }):
		square = []int64{320}
	case picture && len(model.Outputs) < 3 && len(model.Outputs[0].Shape) == 2: // classes or features
		square = []int64{224, 256, 640}
	case !picture:
		square = []int64{512, 16000, 128, 16, 1}
	}
	for _, n := range square {
		tries = append(tries, slices.Repeat([]int64{n}, len(open)))
	}
	return tries, nil
}

// textWidths are the widths of a draft for a line of text, if the file leaves them open.
var textWidths = []int64{320, 480, 640, 960}

// picture reports whether the first input may be a picture, and no other input is one.
func picture(model *onnxfile.Model) bool {
	_, ok := pictureAxes(model.Inputs)
	return ok && !slices.ContainsFunc(model.Inputs[1:], func(v onnxfile.Value) bool { return len(v.Shape) > 3 })
}

// pictureAxes returns the channels' axis of the first input, without the batch axis: 0 or 2.
func pictureAxes(inputs []onnxfile.Value) (channels int, ok bool) {
	if len(inputs) == 0 || len(inputs[0].Shape) != 4 || !slices.Contains(models.PictureTypes, inputs[0].Type) {
		return 0, false
	}
	s := inputs[0].Shape
	few := func(d onnxfile.Dim) bool { return d.Size == 1 || d.Size == 3 }
	switch {
	case few(s[1]) && !few(s[2]) && !few(s[3]):
		return 0, true
	case few(s[3]) && !few(s[1]) && !few(s[2]):
		return 2, true
	}
	return 0, false
}

// inputs returns the inputs with these sizes in place of the open dimensions.
func inputs(model *onnxfile.Model, size []int64) (list []Input) {
	open, _ := openDims(model, nil)
	next := 0
	for i, v := range model.Inputs {
		in := Input{Name: v.Name, Type: v.Type, Axis: batchAxis(model, v), Shape: []int64{}}
		for axis, d := range v.Shape {
			switch {
			case axis == in.Axis:
				continue
			case d.Size >= 0:
				in.Shape = append(in.Shape, d.Size)
			case d.Name == "" || d.Name == "?":
				in.Shape = append(in.Shape, size[next])
				next++
			default:
				at := slices.Index(open, d)
				in.Shape = append(in.Shape, size[at])
				next = max(next, at+1)
			}
		}
		if i > 0 {
			in.State = stateOf(v, model.Outputs)
		}
		list = append(list, in)
	}
	for i := range list[min(1, len(list)):] {
		if in := &list[i+1]; in.State == "" {
			in.Constant = constant(in, list[0].Shape, picture(model))
		}
	}
	return list
}

// stateOf returns the output that holds the next value of an input, as its name says.
func stateOf(in onnxfile.Value, outputs []onnxfile.Value) string {
	names := []string{
		in.Name + "N", in.Name + "n", in.Name + "_n", in.Name + "_out", in.Name + "_new", "new_" + in.Name, "next_" + in.Name, "out_" + in.Name,
		strings.Replace(in.Name, "past", "present", 1), strings.Replace(in.Name, "prev", "next", 1), strings.TrimSuffix(in.Name, "_in") + "_out",
	}
	for _, out := range outputs {
		if out.Type == in.Type && len(out.Shape) == len(in.Shape) && out.Name != in.Name && slices.Contains(names, out.Name) {
			return out.Name
		}
	}
	return ""
}

// constant guesses the values of an input that says something about the main input, or returns nil.
func constant(in *Input, main []int64, picture bool) []float64 {
	n := elements(in.Shape)
	name := strings.ToLower(in.Name)
	switch {
	case n == 1 && (name == "sr" || strings.Contains(name, "sampl")):
		return []float64{16000}
	case picture && n == 2 && (strings.Contains(name, "size") || strings.Contains(name, "shape")):
		if main[0] <= 3 {
			main = main[1:]
		}
		return []float64{float64(main[0]), float64(main[1])}
	case picture && n <= 2, in.Axis < 0 && n == 1:
		return slices.Repeat([]float64{1}, int(n))
	}
	return nil
}

// whole observes a model whose first axis is not one of independent images: a request has all of it.
func (o *Observed) whole(model *onnxfile.Model, runner Runner) (*Observed, error) {
	all := &Observed{Batch: 1, Single: o.Single, SizeGuessed: o.SizeGuessed, Inputs: slices.Clone(o.Inputs)}
	for i := range all.Inputs {
		if in := &all.Inputs[i]; in.Axis >= 0 {
			in.Shape, in.Axis = slices.Insert(slices.Clone(in.Shape), in.Axis, o.Batch), -1
		}
	}
	return all, all.observe(model, runner)
}

// maxElements bounds the inputs of a run.
const maxElements = 1 << 25

func elements(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		if d > maxElements/max(n, 1) {
			return maxElements + 1
		}
		n *= max(d, 0)
	}
	return n
}

// observe runs the model with these inputs.
func (o *Observed) observe(model *onnxfile.Model, runner Runner) error {
	if o.Batch > 1024 {
		return fmt.Errorf("its batch is fixed at %d, want at most 1024", o.Batch)
	}
	n := int(max(1, o.Batch))
	for _, in := range o.Inputs {
		switch elements := elements(in.Shape); {
		case elements > maxElements/int64(max(2, n)):
			return fmt.Errorf("input %q has more than %d elements", in.Name, maxElements)
		case elements == 0:
			return fmt.Errorf("input %q has no elements", in.Name)
		}
	}
	run := func(images ...int) ([]Tensor, error) {
		for len(images) < n {
			images = append(images, 0)
		}
		return runner.Run(o.tensors(images))
	}
	one, err := run(0)
	if err != nil {
		return err
	}
	other, err := run(1)
	if err != nil {
		return err
	}
	for i, t := range one {
		out := Output{Name: t.Name, Type: t.Type, Axis: -1, Shape: t.Shape}
		if !slices.Equal(t.Shape, other[i].Shape) || slices.Contains(t.Shape, 0) {
			out.Rows = &models.Rows{Max: maxRows}
		}
		o.Outputs = append(o.Outputs, out)
	}

	two := one
	if o.Batch == 0 {
		if two, err = run(0, 1); err != nil {
			o.Batch, o.Single, two = 1, "a batch of 2 does not run: "+err.Error(), one
		}
	} else if n > 1 {
		if two, err = run(0, 1); err != nil {
			return err
		}
	}
	for i := range o.Outputs {
		out := &o.Outputs[i]
		if shape := model.Outputs[i].Shape; o.Batch == 0 && len(shape) > 0 && shape[0].Size < 0 && slices.Equal(one[i].Shape, two[i].Shape) {
			out.Rows = &models.Rows{Max: maxRows} // open, and not the batch
		}
		if out.Rows == nil {
			out.compare(one[i], other[i], two[i], n, o)
		} else if err := o.compareRows(out, one, other, two, i); err != nil {
			return err
		}
	}
	o.alignStates()
	for _, in := range o.Inputs {
		if in.Axis < 0 && in.Constant == nil && o.Single == "" && o.Batch == 0 {
			o.Single = fmt.Sprintf("no axis of input %q follows the batch", in.Name)
		}
	}
	return nil
}

// alignStates gives inputs that are states the batch axis of their outputs: a file with a fixed batch does not
// say which axis that is.
func (o *Observed) alignStates() {
	for i := range o.Inputs {
		in := &o.Inputs[i]
		at := slices.IndexFunc(o.Outputs, func(out Output) bool { return out.Name == in.State })
		if at < 0 || in.Axis >= 0 || o.Outputs[at].Axis < 0 {
			continue
		}
		if axis := o.Outputs[at].Axis; slices.Equal(slices.Delete(slices.Clone(in.Shape), axis, axis+1), o.Outputs[at].Shape) {
			in.Axis, in.Shape = axis, o.Outputs[at].Shape
		}
	}
}

// compare finds an output's batch axis, and whether an image's values depend on the other images. n is the
// batch of one and other.
func (out *Output) compare(one, other, two Tensor, n int, o *Observed) {
	if o.Batch == 0 {
		for axis := range one.Shape {
			if len(two.Shape) == len(one.Shape) && two.Shape[axis] == 2*one.Shape[axis] && one.Shape[axis] > 0 && elements(two.Shape) == 2*elements(one.Shape) {
				out.Axis = axis
				break
			}
		}
	} else if axis := slices.Index(one.Shape, int64(n)); axis == 0 || n > 1 {
		out.Axis = axis // a dimension of 1 further on may be anything
	}
	switch {
	case out.Axis < 0 && o.Batch == 1: // as good as any
	case out.Axis < 0:
		o.Single = fmt.Sprintf("no axis of output %q follows the batch", out.Name)
	case one.Shape[out.Axis] != int64(n):
		o.Single = fmt.Sprintf("output %q has %d rows per image", out.Name, one.Shape[out.Axis])
		out.Axis = -1
	default:
		out.Shape = slices.Delete(slices.Clone(one.Shape), out.Axis, out.Axis+1)
	}

	alone, different, batched := row(one, out.Axis), row(other, out.Axis), row(two, out.Axis)
	if out.Axis < 0 {
		batched = alone
	}
	var spread, largest, distance, sum float64
	lowest := math.Inf(1)
	for i, v := range alone {
		largest = max(largest, math.Abs(v))
		spread = max(spread, math.Abs(v-different[i]))
		distance = max(distance, math.Abs(v-batched[i]))
		lowest, sum = min(lowest, v), sum+v
	}
	out.Fractions = lowest >= 0 && largest <= 1
	out.Probabilities = len(alone) > 1 && out.Fractions && math.Abs(sum-1) < 1e-3
	if distance > max(0.1*spread, 1e-3*largest) {
		o.Single = fmt.Sprintf("the values of output %q depend on the other images of a batch", out.Name)
	}
}

// maxRows is how many rows a drafted card allows.
const maxRows = 300

// compareRows finds out which rows of the i-th output belong to which image of a batch.
func (o *Observed) compareRows(out *Output, one, other, two []Tensor, i int) error {
	axis := 0
	for axis < len(out.Shape) && out.Shape[axis] > 0 && len(other[i].Shape) == len(out.Shape) && other[i].Shape[axis] == out.Shape[axis] {
		axis++
	}
	if axis == len(out.Shape) {
		axis = 0 // as many rows by chance
	}
	if axis > 1 || axis == 1 && out.Shape[0] != 1 || len(out.Shape) != len(other[i].Shape) {
		return fmt.Errorf("output %q has shape %v for one image and %v for another; want rows on the first axis, or on the second one behind a batch of 1", out.Name, out.Shape, other[i].Shape)
	}
	rows := []float64{float64(out.Shape[axis]), float64(other[i].Shape[axis])}
	out.Shape = slices.Insert(slices.Clone(out.Shape[axis+1:]), 0, maxRows)

	whose := slices.Concat(make([]float64, int(rows[0])), slices.Repeat([]float64{1}, int(rows[1])))
	switch count := o.countOf(rows, two); {
	case rows[0] == 0 || rows[1] == 0 || axis == 0 && float64(two[i].Shape[0]) != rows[0]+rows[1]: // shows nothing
	case count != "":
		out.Rows.Count = count
		return nil
	case axis == 0 && len(out.Shape) == 2 && out.Shape[1] > 1 && slices.Equal(firstColumn(two[i]), whose):
		out.Rows.BatchColumn = true
		out.Shape[1]--
		return nil
	}
	o.Single = fmt.Sprintf("the shape of output %q depends on what is in the image", out.Name)
	return nil
}

// countOf returns the output that has these numbers of rows of two images.
func (o *Observed) countOf(rows []float64, two []Tensor) string {
	for i := range two {
		if o.Outputs[i].Rows == nil && whole(two[i].Type) && slices.Equal(two[i].Values, rows) {
			return two[i].Name
		}
	}
	return ""
}

func firstColumn(t Tensor) (values []float64) {
	for at := 0; at < len(t.Values); at += int(t.Shape[1]) {
		values = append(values, t.Values[at])
	}
	return values
}

// row returns the values of the first image, or all if the tensor has no axis for images.
func row(t Tensor, axis int) (values []float64) {
	if axis < 0 {
		return t.Values
	}
	inner := int(elements(t.Shape[axis+1:]))
	stride := inner * int(t.Shape[axis])
	for at := 0; at+inner <= len(t.Values) && stride > 0; at += stride {
		values = append(values, t.Values[at:at+inner]...)
	}
	return values
}

// tensors returns the inputs for a batch of images: noise of that number each.
func (o *Observed) tensors(images []int) (list []Tensor) {
	for i, in := range o.Inputs {
		t := Tensor{Name: in.Name, Type: in.Type, Shape: slices.Clone(in.Shape)}
		batch := images
		outer, inner := int64(1), elements(in.Shape)
		if in.Axis < 0 {
			batch = images[:1]
		} else {
			t.Shape = slices.Insert(t.Shape, in.Axis, int64(len(images)))
			outer, inner = elements(in.Shape[:in.Axis]), elements(in.Shape[in.Axis:])
		}
		each := make([][]float64, len(batch))
		for b, image := range batch {
			each[b] = in.values(image, i)
		}
		for at := range outer {
			for b := range batch {
				t.Values = append(t.Values, each[b][at*inner:(at+1)*inner]...)
			}
		}
		list = append(list, t)
	}
	return list
}

// values returns one image of an input.
func (in *Input) values(image, input int) []float64 {
	if in.Constant != nil {
		return in.Constant
	}
	values := make([]float64, elements(in.Shape))
	if in.State != "" {
		return values
	}
	rng := rand.New(rand.NewPCG(uint64(image), uint64(input)))
	for i := range values {
		switch in.Type {
		case "f16", "bf16", "f32", "f64":
			values[i] = rng.Float64()
		case "u8":
			values[i] = float64(rng.IntN(256))
		case "bool":
			values[i] = float64(rng.IntN(2))
		default:
			values[i] = float64(rng.IntN(8)) // may be indices of small tables
		}
	}
	return values
}
