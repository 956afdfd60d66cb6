//go:build gpu

package gpu

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/wire"
)

// A model has two inputs, a constant and a state: y = x * k * sr + h, and the next h is h + x. Each stream has its own.
func TestTensors(t *testing.T) {
	const rate, streams = 3, 4
	batch := []int64{tinymodel.Dynamic, 5}
	f32 := func(name string) tinymodel.Value {
		return tinymodel.Value{Name: name, Type: tinymodel.F32, Dims: batch}
	}
	model := tinymodel.Model{
		Inputs:  []tinymodel.Value{f32("x"), {Name: "k", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 1}}, {Name: "sr", Type: tinymodel.F32}, f32("h")},
		Outputs: []tinymodel.Value{f32("y"), f32("hn")},
		Nodes: []tinymodel.Node{
			{Op: "Mul", Inputs: []string{"x", "k"}, Outputs: []string{"xk"}}, {Op: "Mul", Inputs: []string{"xk", "sr"}, Outputs: []string{"scaled"}},
			{Op: "Add", Inputs: []string{"scaled", "h"}, Outputs: []string{"y"}}, {Op: "Add", Inputs: []string{"x", "h"}, Outputs: []string{"hn"}},
		},
	}
	dir, err := os.MkdirTemp("", "penstock-tensors-")
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	card := "name: sum\nversion: 1\nframework: onnx\nmodel: sum.onnx\nslo: 1s\nbatches: [1, 4]\ninputs: [{name: x, shape: [5]}, {name: k, shape: [1]}]\n" +
		fmt.Sprintf("constants: {sr: %d}\nstate: {h: hn}\noutputs: [{name: y, shape: [5]}, {name: hn, shape: [5]}]\n", rate)
	must.OK(t, os.Chmod(dir, 0o755))
	must.OK(t, os.WriteFile(filepath.Join(dir, "sum.onnx"), model.Encode(), 0o644))
	must.OK(t, os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(card), 0o644))
	n := start(t, fmt.Sprintf("functions:\n  - {name: sum, model: %s, port: 0, slo: 20s}\n", filepath.Join(dir, "card.yaml")))

	answers := make(chan client.Result, streams)
	c := nodetest.Dial(t, n, "sum", client.Options{Timeout: 30 * time.Second, InFlight: streams, Deliver: func(r *client.Result) {
		kept := *r
		kept.Payload = slices.Clone(r.Payload)
		answers <- kept
	}})
	sums := [streams]float32{}
	for round := range 20 {
		x := func(stream int) float32 { return float32(1 + round + 7*stream) }
		for s := range streams {
			payload, err := binary.Append(nil, binary.LittleEndian, []float32{x(s), x(s), x(s), x(s), x(s), float32(s)})
			must.OK(t, err)
			_, err = c.Send(payload, client.RequestOptions{Stream: uint32(1 + s), Tag: uint64(s)})
			must.OK(t, err)
		}
		for range streams {
			r := <-answers
			if r.Err != nil || r.Status != client.StatusOK {
				t.Fatalf("round %d, stream %d: %s, %v", round, r.Tag, r.Status, r.Err)
			}
			s := int(r.Tag)
			var c wire.Content
			must.OK(t, c.Decode(r.Kind, r.Payload))
			y := c.Tensors[0].Values().([]float32)
			if want := slices.Repeat([]float32{x(s)*float32(s)*rate + sums[s]}, 5); !slices.Equal(y, want) {
				t.Errorf("round %d, stream %d: %v, want %v", round, s, y, want)
			}
			sums[s] += x(s)
		}
	}
}
