package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// addSized adds a model y = x for positive x, whose input leaves the batch and these axes open.
func addSized(t *testing.T, runtimeDir string, dims []int64, keys string) {
	t.Helper()
	dir, err := openFolder("", "models")
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, os.RemoveAll(dir)) })
	model := tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "x", Type: tinymodel.F32, Dims: dims}},
		Outputs: []tinymodel.Value{{Name: "y", Type: tinymodel.F32, Dims: dims}},
		Nodes:   []tinymodel.Node{{Op: "Relu", Inputs: []string{"x"}, Outputs: []string{"y"}}},
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), model.Encode(), 0o644))
	card := filepath.Join(dir, "card.yaml")
	must.OK(t, os.WriteFile(card, []byte("name: sized\nversion: 1\nframework: onnx\nmodel: model.onnx\nslo: 5s\n"+keys), 0o644))
	if out, err := run(t, runtimeDir, "if", "add", "sized", "--model", card); err != nil {
		t.Fatalf("add: %v\n%s", err, out)
	}
}

// Requests of several lengths run at the same time, each with its own. Shorter ones are filled up.
func TestLengths(t *testing.T) {
	nd := start(t, "functions: []\n")
	addSized(t, nd.Dir, []int64{tinymodel.Dynamic, tinymodel.Dynamic}, "inputs: [{name: x, shape: [9]}]\nlengths: [3, 6, 9]\npad_lengths: true\noutputs: [{name: y, shape: [9]}]\n")
	c, err := client.Dial(t.Context(), nodetest.Address(t, nd, "sized"), client.Options{Timeout: 10 * time.Second})
	must.OK(t, err)
	defer c.Close()
	var all sync.WaitGroup
	for i := range 27 { // fewer than the function has slots
		all.Go(func() {
			length, padded := i%9+1, i%9/3*3+3
			var x []byte
			for k := range length {
				x = models.F32.Append(x, float64(100*i+k))
			}
			want := append(slices.Clip(x), make([]byte, 4*(padded-length))...)
			r, err := c.Do(t.Context(), x, client.RequestOptions{})
			if err != nil {
				t.Errorf("%d values: %v", length, err)
				return
			}
			var answer wire.Content
			if err := answer.Decode(r.Kind, r.Payload); err != nil {
				t.Error(err)
				return
			}
			if y := answer.Tensors[0]; !slices.Equal(y.Shape, []int64{int64(padded)}) || !bytes.Equal(y.Data, want) {
				t.Errorf("%d values: y is %v % x, want % x", length, y.Shape, y.Data, want)
			}
		})
	}
	all.Wait()
	for _, bytes := range []int{4 * 10, 4*9 + 1, 4*5 + 2} {
		if _, err := c.Do(t.Context(), make([]byte, bytes), client.RequestOptions{}); err == nil || !strings.Contains(err.Error(), "the function takes 36") {
			t.Errorf("a request of %d bytes: %v", bytes, err)
		}
	}
}

// A photo gets the width that suits it, and so does a picture that says its shape.
func TestWidths(t *testing.T) {
	nd, url := startWithGateway(t)
	addSized(t, nd.Dir, []int64{tinymodel.Dynamic, 1, 2, tinymodel.Dynamic}, `input: {name: x, size: [2, 8, 1], widths: [2, 4, 8], fit: left, wire: {type: u8, layout: hwc}, tensor: {type: f32, layout: chw}}
outputs: [{name: y, shape: [1, 2, 8]}]
`)
	wait.For(t, "the gateway to know the function", func() bool { return gatewayReady(url, "sized") })
	c, err := client.Dial(t.Context(), nodetest.Address(t, nd, "sized"), client.Options{Timeout: 10 * time.Second})
	must.OK(t, err)
	defer c.Close()
	for _, p := range []struct{ width, height, want int }{{2, 2, 2}, {1, 2, 2}, {3, 2, 4}, {4, 2, 4}, {6, 3, 4}, {5, 2, 8}, {8, 2, 8}, {8, 1, 8}} {
		gray := image.NewGray(image.Rect(0, 0, p.width, p.height))
		for i := range gray.Pix {
			gray.Pix[i] = 7
		}
		shape := fmt.Sprintf(`"shape":[1,1,2,%d]`, p.want)
		var file bytes.Buffer
		must.OK(t, png.Encode(&file, gray))
		response, err := http.Post(url+"/v2/models/sized/infer", "image/png", &file)
		must.OK(t, err)
		body, err := io.ReadAll(response.Body)
		must.OK(t, errors.Join(err, response.Body.Close()))
		if !strings.Contains(string(body), shape) {
			t.Errorf("a photo of %d x %d: %s, want %s", p.width, p.height, body, shape)
		}
		if bytes := p.width * p.height; bytes > 16 {
			continue
		}
		r, err := c.Do(t.Context(), gray.Pix, client.RequestOptions{Picture: wire.Picture{Format: wire.FormatGrey8, Width: p.width, Height: p.height}})
		must.OK(t, err)
		var answer wire.Content
		must.OK(t, answer.Decode(r.Kind, r.Payload))
		if got := answer.Tensors[0].Shape; !slices.Equal(got, []int64{1, 2, int64(p.want)}) {
			t.Errorf("a picture of %d x %d: y is %v, want a width of %d", p.width, p.height, got, p.want)
		}
	}
}
