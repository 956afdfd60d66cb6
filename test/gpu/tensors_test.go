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
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/wire"
)

// startTiny starts a node that serves a model, with this part of its card.
func startTiny(t *testing.T, name string, model tinymodel.Model, tensors string) *node.Node {
	t.Helper()
	dir, err := os.MkdirTemp("", "penstock-tensors-")
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	card := fmt.Sprintf("name: %s\nversion: 1\nframework: onnx\nmodel: model.onnx\nslo: 1s\nbatches: [1, 4]\n%s", name, tensors)
	must.OK(t, os.Chmod(dir, 0o755))
	must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), model.Encode(), 0o644))
	must.OK(t, os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(card), 0o644))
	return start(t, fmt.Sprintf("functions:\n  - {name: %s, model: %s, port: 0, slo: 20s}\n", name, filepath.Join(dir, "card.yaml")))
}

// A model has a row [image, place] for each value that is not 0. Requests of one batch get their own rows, and one with
// too many fails alone.
func TestRows(t *testing.T) {
	model := tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "x", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 4}}},
		Outputs: []tinymodel.Value{{Name: "y", Type: tinymodel.I64, Dims: []int64{tinymodel.Dynamic, 2}}},
		Nodes:   []tinymodel.Node{{Op: "NonZero", Inputs: []string{"x"}, Outputs: []string{"places"}}, {Op: "Transpose", Inputs: []string{"places"}, Outputs: []string{"y"}}},
	}
	n := startTiny(t, "found", model, "inputs: [{name: x, shape: [4]}]\noutputs: [{name: y, type: i64, shape: [1], rows: {max: 3, batch_column: true}}]\n")
	const requests, rounds = 16, 8
	answers := make(chan client.Result, requests)
	c := nodetest.Dial(t, n, "found", client.Options{Timeout: 30 * time.Second, InFlight: requests, Deliver: func(r *client.Result) {
		kept := *r
		kept.Payload = slices.Clone(r.Payload)
		answers <- kept
	}})
	together := 0
	for i := range rounds * requests {
		x := make([]float32, 4)
		for k := range x {
			x[k] = float32(i >> k & 1)
		}
		payload, err := binary.Append(nil, binary.LittleEndian, x)
		must.OK(t, err)
		_, err = c.Send(payload, client.RequestOptions{Tag: uint64(i)})
		must.OK(t, err)
		if i%requests < requests-1 {
			continue
		}
		for range requests {
			r := <-answers
			i := int(r.Tag)
			if i&15 == 15 {
				if r.Status != client.StatusFailed {
					t.Errorf("request %d with 4 rows: %s, want failed", i, r.Status)
				}
				continue
			}
			if r.Err != nil || r.Status != client.StatusOK {
				t.Fatalf("request %d: %s, %v", i, r.Status, r.Err)
			}
			var content wire.Content
			must.OK(t, content.Decode(r.Kind, r.Payload))
			want := make([]int64, 0, 4)
			for k := range int64(4) {
				if i>>k&1 == 1 {
					want = append(want, k)
				}
			}
			if got := content.Tensors[0].Values().([]int64); !slices.Equal(got, want[:3]) {
				t.Errorf("request %d: rows %v, want %v", i, got, want[:3])
			}
			if r.Batch > 1 {
				together++
			}
		}
	}
	if together == 0 {
		t.Error("no request shared a batch")
	}
}

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
	n := startTiny(t, "sum", model, "inputs: [{name: x, shape: [5]}, {name: k, shape: [1]}]\n"+
		fmt.Sprintf("constants: {sr: %d}\nstate: {h: hn}\noutputs: [{name: y, shape: [5]}, {name: hn, shape: [5]}]\n", rate))

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
