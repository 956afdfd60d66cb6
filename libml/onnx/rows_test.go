//go:build cgo

package onnx

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// found is a model whose output y has a row [image, place] for each value of x that is not 0. The output num has
// the values of the input count.
var found = tinymodel.Model{
	Inputs: []tinymodel.Value{{Name: "x", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 4}}, {Name: "count", Type: tinymodel.I64, Dims: []int64{tinymodel.Dynamic}}},
	Outputs: []tinymodel.Value{
		{Name: "y", Type: tinymodel.I64, Dims: []int64{tinymodel.Dynamic, 2}}, {Name: "num", Type: tinymodel.I64, Dims: []int64{tinymodel.Dynamic}},
	},
	Nodes: []tinymodel.Node{
		{Op: "NonZero", Inputs: []string{"x"}, Outputs: []string{"places"}}, {Op: "Transpose", Inputs: []string{"places"}, Outputs: []string{"y"}},
		{Op: "Identity", Inputs: []string{"count"}, Outputs: []string{"num"}},
	},
}

// rowsCases are batches of found.
var rowsCases = map[string]struct {
	output string // of the card
	counts []float64
	images [][4]float64
	want   []float32 // of y
	err    string
	failed []int
}{
	"batch column": {"shape: [1], rows: {max: 3, batch_column: true}", nil, [][4]float64{twoRows, noRows, {1, 1, 1, 0}}, []float32{1, 3, 0, 0, 0, 0, 0, 1, 2}, "", nil},
	"count":        {"shape: [2], rows: {max: 2, count: num}", []float64{2, 0, 1}, [][4]float64{twoRows, noRows, {1}}, []float32{0, 1, 0, 3, 0, 0, 0, 0, 2, 0, 0, 0}, "", nil},
	"one image":    {"shape: [2], rows: {max: 3}", nil, [][4]float64{twoRows}, []float32{0, 1, 0, 3, 0, 0}, "", nil},
	"no rows":      {"shape: [2], rows: {max: 3}", nil, [][4]float64{noRows}, make([]float32, 6), "", nil},
	"too many":     {"shape: [1], rows: {max: 3, batch_column: true}", nil, [][4]float64{fourRows, twoRows, fourRows}, []float32{0, 1, 2, 1, 3, 0, 0, 1, 2}, `output "y" has 4 rows, want at most 3: rows.max in the card`, []int{0, 2}},
	"wrong count":  {"shape: [2], rows: {max: 3, count: num}", []float64{1, 0, 1}, [][4]float64{twoRows, noRows, {1}}, nil, `output "y" of shape [3 2]: num says that the images have [1 0 1] rows`, nil},
}

var fourRows, noRows, twoRows = [4]float64{1, 1, 1, 1}, [4]float64{}, [4]float64{0, 5, 0, 5}

// Each image has its own rows, and zeros behind them. An image with more rows than the card allows fails alone.
func TestRows(t *testing.T) {
	testRows(t, func(t *testing.T, card *models.Card, n int, x, count, num, y []byte) error {
		f := linked(t, card)
		_, err := f.ConfigureBatch(0, n, device.HostBuffers(x, count), device.HostBuffers(num, y))
		must.OK(t, err)
		return f.InferBatch(0, n)
	})
}

// A binding for a GPU has the same answers, in its memory.
func TestRowsBinding(t *testing.T) {
	if !inChild(t) {
		return
	}
	context := bound(t)
	weights := somePool(t, context)
	scratch, err := newScratchPool(weights.device)
	must.OK(t, err)
	s := sessionOnCPU(t, weights, found.Encode())
	testRows(t, func(t *testing.T, card *models.Card, n int, x, count, num, y []byte) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		must.OK(t, context.Bind())
		ins, outs := onDevice(weights, n, card.InputTensors()...), onDevice(weights, n, card.Outputs...)
		b, err := s.bind(ins, outs)
		must.OK(t, err)
		defer b.close()
		copies := func(p place, data []byte, toHost bool) {
			to, from := p.at, cuda.At(data)
			if toHost {
				to, from = from, to
			}
			must.OK(t, errors.Join(s.stream.Copy(to, from, len(data)), s.stream.Synchronize()))
		}
		copies(ins[0], x, false)
		copies(ins[1], count, false)
		copies(outs[1], y, false)
		err = b.run(scratch)
		copies(outs[1], y, true)
		return err
	})
	must.OK(t, scratch.close())
}

// testRows runs the cases. run has a batch answered: num and y are the outputs.
func testRows(t *testing.T, run func(t *testing.T, card *models.Card, n int, x, count, num, y []byte) error) {
	for name, c := range rowsCases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), found.Encode(), 0o600))
			batches := "batches: [1, 2, 3]\n"
			if len(c.images) == 1 {
				batches = "batches: [1]\n"
			}
			text := "name: found\nversion: 1\nframework: onnx\nmodel: model.onnx\nslo: 1s\n" + batches +
				"inputs: [{name: x, shape: [4]}, {name: count, type: i64, shape: []}]\noutputs: [{name: num, type: i64, shape: []}, {name: y, type: i64, " + c.output + "}]\n"
			must.OK(t, os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(text), 0o600))
			card, err := models.ReadCard(filepath.Join(dir, "card.yaml"))
			must.OK(t, err)

			n := len(c.images)
			x, count := []byte{}, make([]byte, 8*n)
			for i := range n {
				for _, v := range c.images[i] {
					x = models.F32.Append(x, v)
				}
				if c.counts != nil {
					copy(count[8*i:], models.I64.Append(nil, c.counts[i]))
				}
			}
			num, y := make([]byte, 8*n), slices.Repeat([]byte{0xff}, n*card.Outputs[1].Bytes())
			err = run(t, card, n, x, count, num, y)

			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("got %v, want %q", err, c.err)
			}
			var some *framework.ImagesError
			if errors.As(err, &some) != (c.failed != nil) || some != nil && !slices.Equal(some.Images, c.failed) {
				t.Errorf("images %+v fail, want %v", some, c.failed)
			}
			if got := answer.Floats(models.I64, y); c.want != nil && !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// Outputs of shape [n, rows, ...] have as many rows as the image with most of them.
func TestSplitPadded(t *testing.T) {
	r := rowsOutput{
		Tensor: &models.Tensor{Name: "y", Type: models.U8, Shape: []int64{2, 2}, Rows: &models.Rows{Max: 2, Count: "num"}},
		images: make([]byte, 8), count: []byte{1, 2}, counts: models.U8,
	}
	must.OK(t, r.split([]int64{2, 3, 2}, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2))
	if want := []byte{1, 2, 0, 0, 7, 8, 9, 10}; !slices.Equal(r.images, want) {
		t.Errorf("got %v, want %v", r.images, want)
	}
	if err := r.split([]int64{2, 3}, make([]byte, 6), 2); err == nil || !strings.Contains(err.Error(), "want rows of shape [2]") {
		t.Errorf("got %v for rows of another shape", err)
	}
}
