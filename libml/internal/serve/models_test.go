package serve_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/internal/serve"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/libml/reference"
	"github.com/penstock/penstock/models"
)

// TestONNXModels serves generated models in a process. It compares each answer with
// the one computed from the model's weights, and with the reference.
func TestONNXModels(t *testing.T) {
	const dynamic = tinymodel.Dynamic
	for _, c := range []struct {
		name    string
		element tinymodel.Type
		dtype   models.DType
		batch   int64 // of the model
		ladder  []int
	}{
		{"f32", tinymodel.F32, models.F32, dynamic, []int{1, 2, 4}},
		{"f16", tinymodel.F16, models.F16, dynamic, []int{1, 2, 4}},
		{"u8", tinymodel.U8, models.U8, dynamic, []int{1, 2, 4}},
		{"f32 fixed at 1", tinymodel.F32, models.F32, 1, []int{1}},
		{"f32 fixed at 4", tinymodel.F32, models.F32, 4, []int{4}},
		{"f16 fixed at 4", tinymodel.F16, models.F16, 4, []int{4}},
		{"u8 fixed at 4", tinymodel.U8, models.U8, 4, []int{4}},
		{"dynamic, ladder from 2", tinymodel.F32, models.F32, dynamic, []int{2, 8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const outputs = 4
			card := card()
			in := &card.Input
			in.Name, in.TensorType, in.TensorLayout = "x", c.dtype, models.HWC
			in.ReverseChannels, in.Mean, in.Std = false, nil, nil
			card.Name, card.Framework, card.Batches = "tiny", "onnx", c.ladder
			card.Outputs = []models.Tensor{{Name: "y", Type: models.F32, Shape: []int64{outputs}}}
			card.Model = filepath.Join(t.TempDir(), "tiny.onnx")
			model := tinymodel.Linear(c.element, outputs, c.batch, int64(in.Height), int64(in.Width), int64(in.Channels))
			must.OK(t, os.WriteFile(card.Model, model.Encode(), 0o600))
			build := func(*models.Card) (framework.Framework, error) { return onnx.New(), nil }

			random := rand.New(rand.NewPCG(1, 2))
			pictures := make([][]byte, 7) // not a multiple of a batch: the last one is padded
			for i := range pictures {
				pictures[i] = make([]byte, in.WireBytes())
				for j := range pictures[i] {
					pictures[i][j] = byte(random.Uint32())
				}
			}
			reference, err := reference.New(card, build)
			must.OK(t, err)
			defer func() {
				if err := reference.Close(); err != nil {
					t.Error(err)
				}
			}()
			for i, got := range serve.Answers(t, card, build, pictures) {
				var want []byte
				for o := range outputs {
					sum := 0 // in 1024ths, exact in f32
					for k, v := range pictures[i] {
						sum += int(v) * (k + 1) * (o + 1)
					}
					want = binary.LittleEndian.AppendUint32(want, math.Float32bits(float32(sum)/1024))
				}
				alone, _, err := reference.Answer(pictures[i])
				must.OK(t, err)
				if string(got) != string(want) || string(alone) != string(want) {
					t.Errorf("picture %d: the process answers % x, the reference % x, want % x", i, got, alone, want)
				}
			}
		})
	}
}

// The weights of a model are in another file, which lies next to the model. A file of the same name in the
// working folder, which is the card's, is not read.
func TestWeightsInAnotherFile(t *testing.T) {
	folder := t.TempDir()
	m := tinymodel.Linear(tinymodel.F32, 4, tinymodel.Dynamic, 6, 5, 3)
	m.Weights[0].File = "parts/w.data"
	right := m.Weights[0].Data()
	for name, data := range map[string][]byte{
		"parts/w.data": make([]byte, len(right)), "sub/parts/w.data": right, "sub/tiny.onnx": m.Encode(),
	} {
		file := filepath.Join(folder, name)
		must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, data, 0o600)))
	}
	t.Chdir(folder)
	card := card()
	card.Name, card.Framework, card.Input.Name, card.Input.TensorLayout = "tiny", "onnx", "x", models.HWC
	card.Input.Mean, card.Input.Std = nil, nil
	card.Outputs = []models.Tensor{{Name: "y", Type: models.F32, Shape: []int64{4}}}
	card.Model, card.Data = filepath.Join(folder, "sub/tiny.onnx"), []string{filepath.Join(folder, "sub/parts/w.data")}
	build := func(*models.Card) (framework.Framework, error) { return onnx.New(), nil }

	picture := bytes.Repeat([]byte{1}, card.Input.WireBytes())
	model, err := reference.New(card, build)
	must.OK(t, err)
	got, _, err := model.Answer(picture)
	must.OK(t, errors.Join(err, model.Close()))
	n := float32(len(picture))
	if want := math.Float32bits(n * (n + 1) / 2 / 1024); binary.LittleEndian.Uint32(got) != want {
		t.Errorf("got % x, want %x first", got, want)
	}

	card.Data = nil
	if _, err := reference.New(card, build); err == nil || !strings.Contains(err.Error(), "penstock if replace") {
		t.Errorf("a model that names another file than before: %v", err)
	}
}
