//go:build cgo

package onnx

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

func TestGPUConfigureErrors(t *testing.T) {
	r := newRig(t, &played{}).linked()
	b := r.tensors(2)
	for what, err := range map[string]error{
		"an input cut short":   second(r.f.ConfigureBatch(0, 2, []device.Buffer{b.inputs[0].Slice(4, b.inputs[0].Len())}, b.outputs)),
		"an output cut short":  second(r.f.ConfigureBatch(0, 2, b.inputs, []device.Buffer{b.outputs[0].Slice(4, b.outputs[0].Len())})),
		"no outputs":           second(r.f.ConfigureBatch(0, 2, b.inputs, nil)),
		"a size of no session": second(r.f.ConfigureBatch(0, 3, r.tensors(3).inputs, r.tensors(3).outputs)),
		"a batch that is not":  r.f.InferBatch(0, 2),
	} {
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second(_ int64, err error) error { return err }

func TestGPUDeinit(t *testing.T) {
	r := newRig(t, &played{})
	if err := r.f.Deinit(); err != nil {
		t.Errorf("before LoadModel: %v", err)
	}
	r.loaded()
	if err := r.f.Deinit(); err != nil {
		t.Errorf("after LoadModel: %v", err)
	}
	if _, err := r.f.LinkModel(); err == nil || !strings.Contains(err.Error(), "no model is loaded") {
		t.Errorf("linked after Deinit: %v", err)
	}
	for _, call := range []string{"cuStreamCreate", "cuEventCreate", "cuMemAddressReserve", "cuMemGetInfo_v2"} {
		t.Run(call, func(t *testing.T) {
			r := newRig(t, &played{})
			must.OK(t, errors.Join(r.gpu.init(), r.f.LoadModel()))
			cudafake.Set(t, cudafake.Refuse(call, 0, cuda.Code(999)))
			if _, err := r.f.LinkModel(); err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s refused: %v", call, err)
			}
			cudafake.Reset()
		})
	}
}

// copies is a model whose outputs y, z and w are its inputs x, k and c.
var copies = tinymodel.Model{
	Inputs: []tinymodel.Value{
		{Name: "c", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 3}},
		{Name: "x", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 4}}, {Name: "k", Type: tinymodel.I64, Dims: []int64{tinymodel.Dynamic, 1}},
	},
	Outputs: []tinymodel.Value{
		{Name: "y", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 4}}, {Name: "z", Type: tinymodel.I64, Dims: []int64{tinymodel.Dynamic, 1}},
		{Name: "w", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 3}},
	},
	Nodes: []tinymodel.Node{
		{Op: "Identity", Inputs: []string{"x"}, Outputs: []string{"y"}}, {Op: "Identity", Inputs: []string{"k"}, Outputs: []string{"z"}},
		{Op: "Identity", Inputs: []string{"c"}, Outputs: []string{"w"}},
	},
}

// cardOf writes a model and its card, and reads the card.
func cardOf(t *testing.T, m tinymodel.Model, text string) *models.Card {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), m.Encode(), 0o600))
	text = "name: tiny\nversion: 1\nframework: onnx\nmodel: model.onnx\nslo: 1s\n" + text
	must.OK(t, os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(text), 0o600))
	card, err := models.ReadCard(filepath.Join(dir, "card.yaml"))
	must.OK(t, err)
	return card
}

// A batch has several inputs, and constants. The CPU has answered a sample of them, with which the answers are compared.
func TestGPUInputs(t *testing.T) {
	for name, unqueued := range map[string]func(settings) error{"graph": nil, "node by node": func(s settings) error { return s.stream.Synchronize() }} {
		t.Run(name, func(t *testing.T) {
			card := cardOf(t, copies, "inputs: [{name: x, shape: [4]}, {name: k, type: i64, shape: [1]}]\nconstants: {c: [1, 2, 3]}\n"+
				"outputs: [{name: y, shape: [4]}, {name: z, type: i64, shape: [1]}, {name: w, shape: [3]}]\nbatches: [1, 2]\n")
			r := newRigOf(t, bound(t), &played{unqueued: unqueued}, card)
			r.gpu.ask = newReference
			r.linked()
			b := r.tensors(2)
			for slot := range 2 {
				r.configure(slot, 2, b)
				for i, in := range b.inputs {
					r.fill(in, byte(1+i+2*slot))
				}
				r.infer(slot, 2)
				for i := range b.inputs {
					if got := r.read(b.outputs[i]); !all(got, byte(1+i+2*slot)) {
						t.Errorf("output %d in slot %d is % x", i, slot, got)
					}
				}
				if got, want := answer.Floats(models.F32, r.read(b.outputs[2])), []float32{1, 2, 3, 1, 2, 3}; !slices.Equal(got, want) {
					t.Errorf("the constants are %v, want %v", got, want)
				}
			}
			if want := unqueued == nil; r.f.Demotable(0, 2) != want {
				t.Errorf("it runs as a graph: %v, want %v", !want, want)
			}
		})
	}
}

// A batch's states go to the device and back.
func TestGPUState(t *testing.T) {
	stateful := tinymodel.Model{Inputs: copies.Inputs[1:], Outputs: copies.Outputs[:2], Nodes: copies.Nodes[:2]}
	for name, unqueued := range map[string]func(settings) error{"graph": nil, "node by node": func(s settings) error { return s.stream.Synchronize() }} {
		t.Run(name, func(t *testing.T) {
			card := cardOf(t, stateful, "inputs: [{name: x, shape: [4]}]\nstate: {k: z}\noutputs: [{name: y, shape: [4]}, {name: z, type: i64, shape: [1]}]\nbatches: [1, 2]\n")
			r := newRigOf(t, bound(t), &played{unqueued: unqueued}, card)
			r.gpu.ask = newReference
			r.linked()
			for _, slot := range []int{0, 1, 2} {
				b, host := r.tensors(2), r.pinned(32)
				before, after := host[:16], host[16:]
				b.inputs[1], b.outputs = device.HostBuffer(before), append(b.outputs, device.HostBuffer(after))
				r.configure(slot, 2, b)
				for value := range byte(3) {
					for i := range before {
						before[i] = value + byte(i)
					}
					r.fillWith(b, value)
					r.infer(slot, 2)
					if got := r.output(b); !bytes.Equal(before, after) || !all(got, value) {
						t.Errorf("slot %d: answer % x, state % x after % x", slot, got, after, before)
					}
				}
			}
		})
	}
}
