package draft

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/models/onnxfile"
)

// value returns an input or output with dimensions like "n 3 ? 8".
func value(name, kind, dims string) onnxfile.Value {
	v := onnxfile.Value{Name: name, Type: kind, Shape: []onnxfile.Dim{}}
	for _, word := range strings.Fields(dims) {
		d := onnxfile.Dim{Size: -1}
		if n, err := strconv.ParseInt(word, 10, 64); err == nil {
			d.Size = n
		} else if word != "?" {
			d.Name = word
		}
		v.Shape = append(v.Shape, d)
	}
	return v
}

// run is a model as a function.
type run func(inputs []Tensor) ([]Tensor, error)

func (r run) Run(inputs []Tensor) ([]Tensor, error) { return r(inputs) }

// tensor returns an output whose values f computes from the index.
func tensor(name string, f func(i int) float64, shape ...int64) Tensor {
	t := Tensor{Name: name, Type: "f32", Shape: shape}
	for i := range int(elements(shape)) {
		t.Values = append(t.Values, f(i))
	}
	return t
}

// mean returns the mean of an image on axis 0.
func mean(in Tensor, image int) (sum float64) {
	each := len(in.Values) / int(in.Shape[0])
	for _, v := range in.Values[image*each : (image+1)*each] {
		sum += v / float64(each)
	}
	return sum
}

func TestObserveOutputs(t *testing.T) {
	model := &onnxfile.Model{Inputs: []onnxfile.Value{value("x", "f32", "n 3 8 8")}, Outputs: []onnxfile.Value{value("y", "f32", "")}}
	fixed := &onnxfile.Model{Inputs: []onnxfile.Value{value("x", "f32", "4 3 8 8")}, Outputs: model.Outputs}
	single := &onnxfile.Model{Inputs: []onnxfile.Value{value("x", "f32", "1 3 8 8")}, Outputs: model.Outputs}
	for name, c := range map[string]struct {
		model  *onnxfile.Model
		run    run
		shape  []int64
		axis   int
		batch  int64
		single string
	}{
		"rows": {model, func(in []Tensor) ([]Tensor, error) {
			return []Tensor{tensor("y", func(i int) float64 { return mean(in[0], i/2) }, in[0].Shape[0], 2)}, nil
		}, []int64{2}, 0, 0, ""},
		"scalars": {model, func(in []Tensor) ([]Tensor, error) {
			return []Tensor{tensor("y", func(i int) float64 { return mean(in[0], i) }, in[0].Shape[0])}, nil
		}, []int64{}, 0, 0, ""},
		"time first": {model, func(in []Tensor) ([]Tensor, error) {
			n := in[0].Shape[0]
			return []Tensor{tensor("y", func(i int) float64 { return mean(in[0], i/2%int(n)) }, 4, n, 2)}, nil
		}, []int64{4, 2}, 1, 0, ""},
		"mixed": {model, func(in []Tensor) ([]Tensor, error) {
			n := in[0].Shape[0]
			return []Tensor{tensor("y", func(int) float64 { return mean(in[0], int(n)-1) }, n, 2)}, nil
		}, []int64{2}, 0, 0, `the values of output "y" depend on the other images`},
		"shape of content": {model, func(in []Tensor) ([]Tensor, error) {
			return []Tensor{tensor("y", func(int) float64 { return 1 }, 1+int64(in[0].Values[0]*1e3), 4)}, nil
		}, []int64{maxRows, 4}, -1, 0, `the shape of output "y" depends on what is in the image`},
		"no batch axis": {model, func(in []Tensor) ([]Tensor, error) {
			return []Tensor{tensor("y", func(int) float64 { return 1 }, 3)}, nil
		}, []int64{3}, -1, 0, `no axis of output "y" follows the batch`},
		"several rows": {model, func(in []Tensor) ([]Tensor, error) {
			return []Tensor{tensor("y", func(int) float64 { return 1 }, 3*in[0].Shape[0], 4)}, nil
		}, []int64{3, 4}, -1, 0, `output "y" has 3 rows per image`},
		"one only": {model, func(in []Tensor) ([]Tensor, error) {
			if in[0].Shape[0] != 1 {
				return nil, errors.New("reshape")
			}
			return []Tensor{tensor("y", func(i int) float64 { return 1 }, 1, 2)}, nil
		}, []int64{2}, 0, 1, "a batch of 2 does not run: reshape"},
		"fixed batch": {fixed, func(in []Tensor) ([]Tensor, error) {
			return []Tensor{tensor("y", func(i int) float64 { return mean(in[0], i/2) }, 4, 2)}, nil
		}, []int64{2}, 0, 4, ""},
		"fixed batch, mixed": {fixed, func(in []Tensor) ([]Tensor, error) {
			return []Tensor{tensor("y", func(i int) float64 { return mean(in[0], 1) }, 4, 2)}, nil
		}, []int64{4, 2}, -1, 1, "depend on the other images"},
		"fixed first axis, no batch": {fixed, func(in []Tensor) ([]Tensor, error) {
			return []Tensor{tensor("y", func(i int) float64 { return mean(in[0], 1) }, 1, 2)}, nil
		}, []int64{2}, 0, 1, `no axis of output "y" follows the batch`},
		"one fixed, without batch axis": {single, func(in []Tensor) ([]Tensor, error) {
			return []Tensor{tensor("y", func(i int) float64 { return 1 }, 12, 1)}, nil
		}, []int64{12, 1}, -1, 1, ""},
	} {
		o, err := Observe(c.model, nil, c.run)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		out := o.Outputs[0]
		if c.shape != nil && !slices.Equal(out.Shape, c.shape) || out.Axis != c.axis || o.Batch != c.batch || (o.Single == "") != (c.single == "") || !strings.Contains(o.Single, c.single) {
			t.Errorf("%s: got %+v of %+v", name, out, o)
		}
	}
}

// The runs show which rows belong to which image.
func TestObserveRows(t *testing.T) {
	model := &onnxfile.Model{
		Inputs:  []onnxfile.Value{value("x", "f32", "n 3 8 8")},
		Outputs: []onnxfile.Value{value("y", "f32", "k 3"), value("num", "i32", "n")},
	}
	second := (&Input{Type: "f32", Shape: []int64{1}}).values(1, 0)
	for name, c := range map[string]struct {
		rows  []int64 // of the images 0 and 1
		shape func(n, rows int64) []int64
		first func(image int) float64 // of a row
		count bool                    // num has the number of rows
		want  string
	}{
		"batch column": {[]int64{2, 3}, func(_, rows int64) []int64 { return []int64{rows, 3} }, func(image int) float64 { return float64(image) }, false, "[300 2] true "},
		"count":        {[]int64{2, 3}, func(_, rows int64) []int64 { return []int64{rows, 3} }, func(int) float64 { return 5 }, true, "[300 3] false num"},
		"padded":       {[]int64{2, 3}, func(n, rows int64) []int64 { return []int64{n, min(3, rows), 3} }, func(int) float64 { return 5 }, true, "[300 3] false num"},
		"neither":      {[]int64{2, 3}, func(_, rows int64) []int64 { return []int64{rows, 3} }, func(int) float64 { return 5 }, false, `[300 3] false the shape of output "y" depends on what is in the image`},
		"one each":     {[]int64{1, 1}, func(int64, int64) []int64 { return []int64{1, 3} }, func(int) float64 { return 5 }, true, `[300 3] false the shape of output "y" depends on what is in the image`},
		"nothing":      {[]int64{0, 0}, func(_, rows int64) []int64 { return []int64{rows, 3} }, nil, false, `[300 3] false the shape of output "y" depends on what is in the image`},
	} {
		o, err := Observe(model, nil, run(func(in []Tensor) ([]Tensor, error) {
			n := in[0].Shape[0]
			num := tensor("num", func(int) float64 { return 7 }, n)
			num.Type = "i32"
			owners := []int{}
			for i := range int(n) {
				image := 0
				if in[0].Values[i*192] == second[0] {
					image = 1
				}
				owners = append(owners, slices.Repeat([]int{i}, int(c.rows[image]))...)
				if c.count {
					num.Values[i] = float64(c.rows[image])
				}
			}
			y := tensor("y", func(i int) float64 {
				if i%3 > 0 {
					return 0.5
				}
				return c.first(owners[min(i/3, len(owners)-1)])
			}, c.shape(n, int64(len(owners)))...)
			return []Tensor{y, num}, nil
		}))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		out := o.Outputs[0]
		if got := fmt.Sprint(out.Shape, out.Rows.BatchColumn, " ", out.Rows.Count, o.Single); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

func TestObserveInputs(t *testing.T) {
	answer := run(func(in []Tensor) ([]Tensor, error) {
		for _, x := range in {
			if elements(x.Shape) != int64(len(x.Values)) {
				return nil, fmt.Errorf("%s has shape %v and %d values", x.Name, x.Shape, len(x.Values))
			}
		}
		if s := in[0].Shape; len(s) == 4 && s[1] == 3 && s[2]%32 != 0 {
			return nil, errors.New("a size is no multiple of 32")
		}
		out := []Tensor{tensor("y", func(int) float64 { return 1 }, in[0].Shape[0], 1)}
		for _, x := range in[1:] {
			if x.Name == "state" || x.Name == "h" {
				out = append(out, Tensor{Name: x.Name + "N", Type: "f32", Shape: x.Shape, Values: x.Values})
			}
		}
		return out, nil
	})
	for name, c := range map[string]struct {
		inputs string // name type dims; ...
		size   []int64
		meta   map[string]string
		want   string // shapes, constants and states
		err    string
	}{
		"fixed":             {inputs: "x i32 n 2048", want: "x[2048]"},
		"no batch":          {inputs: "x f32 1 3 32 32", want: "x[3 32 32]"},
		"state":             {inputs: "x f32 ? ?; state f32 2 ? 128; sr i64", size: []int64{576}, want: "x[576] state[2 128]=stateN sr[]=16000"},
		"state, named axes": {inputs: "x f32 batch t; sr i64; state f32 2 batch 128", size: []int64{576}, want: "x[576] sr[]=16000 state[2 128]=stateN"},
		"state, fixed":      {inputs: "x f32 1 576; state f32 2 1 128", want: "x[576] state[2 1 128]=stateN"},
		"state, fixed at 4": {inputs: "x f32 4 576; state f32 2 4 128", want: "x[576] state[2 128]=stateN"},
		"one size by name":  {inputs: "x f32 n s; mask f32 n s", size: []int64{7}, want: "x[7] mask[7]"},
		"size chosen":       {inputs: "x f32 n ?", want: "x[512]"},
		"picture":           {inputs: "x f32 n 3 h w", want: "x[3 224 224]"},
		"metadata":          {inputs: "x f32 n 3 h w", meta: map[string]string{"imgsz": "[320, 320]"}, want: "x[3 320 320]"},
		"size of pictures":  {inputs: "x f32 n 3 32 32; orig_size i64 n 2", want: "x[3 32 32] orig_size[2]=32 32"},
		"size given":        {inputs: "x f32 n 3 h w", size: []int64{64, 96}, want: "x[3 64 96]"},
		"too many sizes":    {inputs: "x f32 n 3 32 32", size: []int64{64, 96}, err: "--size has 2 numbers, want 0, one for each dimension that the file leaves open: x f32 [n, 3, 32, 32]"},
		"size does not run": {inputs: "x f32 n 3 h w", size: []int64{50, 50}, err: "run model: a size is no multiple of 32"},
		"huge":              {inputs: "x f32 n 3 1000000 1000000", err: "more than 33554432 elements"},
		"huge, overflow":    {inputs: "x f32 n 4294967296 4294967296", err: "more than 33554432 elements"},
		"huge batch":        {inputs: "x f32 4294967296 1", err: "its batch is fixed at 4294967296"},
		"zero":              {inputs: "x f32 n 0", err: "has no elements"},
	} {
		model := &onnxfile.Model{Metadata: c.meta}
		for _, text := range strings.Split(c.inputs, "; ") {
			words := strings.SplitN(text+" ", " ", 3)
			model.Inputs = append(model.Inputs, value(words[0], words[1], words[2]))
		}
		model.Outputs = []onnxfile.Value{value("y", "f32", "n 1")}
		if i := slices.IndexFunc(model.Inputs, func(v onnxfile.Value) bool { return v.Name == "state" }); i > 0 {
			model.Outputs = append(model.Outputs, value("stateN", "f32", "? ? ?"))
		}
		o, err := Observe(model, c.size, answer)
		if err != nil || c.err != "" {
			if err == nil || c.err == "" || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", name, err, c.err)
			}
			continue
		}
		var got []string
		for _, in := range o.Inputs {
			text := in.Name + fmt.Sprint(in.Shape)
			if in.State != "" {
				text += "=" + in.State
			} else if in.Constant != nil {
				text += "=" + strings.Trim(fmt.Sprint(in.Constant), "[]")
			}
			got = append(got, text)
		}
		if text := strings.Join(got, " "); text != c.want || o.Single != "" {
			t.Errorf("%s: %s, want %s; %s", name, text, c.want, o.Single)
		}
	}
	for _, model := range []*onnxfile.Model{{}, {Inputs: []onnxfile.Value{value("x", "f32", "n 1")}}, {Inputs: []onnxfile.Value{{Name: "x"}}, Outputs: []onnxfile.Value{value("y", "f32", "n")}}} {
		if _, err := Observe(model, nil, answer); err == nil {
			t.Errorf("%+v: no error", model)
		}
	}
}
