package serve_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/internal/serve"
	"github.com/penstock/penstock/libml/reference"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

func card() *models.Card {
	return &models.Card{
		Name: "null", Version: 1, Framework: "null",
		Input: models.Input{
			Height: 6, Width: 5, Channels: 3,
			WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW,
			ReverseChannels: true, Mean: []float32{1, 2, 3}, Std: []float32{4, 5, 6},
		},
		Outputs: []models.Tensor{{Name: "a", Type: models.F32, Shape: []int64{4}}, {Name: "b", Type: models.F32, Shape: []int64{2, 3}}},
		Batches: []int{1, 2, 4, 8},
		SLO:     3600e9,
		Decoder: models.Decoder{Name: "raw"},
	}
}

func build(b null.Behaviour) framework.Build {
	return func(*models.Card) (framework.Framework, error) { return null.NewWith(b), nil }
}

// A batch changes when an answer comes, but never its content.
func TestReference(t *testing.T) {
	answersAsTheReference(t, card(), func(pictures [][]byte) [][]byte {
		return serve.Answers(t, card(), build(null.Behaviour{}), pictures)
	})
}

func answersAsTheReference(t *testing.T, card *models.Card, answers func(pictures [][]byte) [][]byte) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	pictures := make([][]byte, 40)
	for i := range pictures {
		pictures[i] = make([]byte, card.Input.WireBytes())
		for j := range pictures[i] {
			pictures[i][j] = byte(random.Uint32())
		}
	}
	reference, err := reference.New(card, build(null.Behaviour{}))
	must.OK(t, err)
	defer func() {
		if err := reference.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i, got := range answers(pictures) {
		want, kind, err := reference.Answer(pictures[i])
		if err != nil || wire.Kind(kind) != card.Kind() || len(want) != card.ResultBytes() {
			t.Fatalf("the reference answers %d bytes of kind %d, %v", len(want), kind, err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("picture %d: the process answers % x, the reference % x", i, got, want)
		}
	}
}

// New and Answer return the error of the step that fails.
func TestReferenceErrors(t *testing.T) {
	for _, step := range []string{"init", "load", "link", "configure"} {
		if _, err := reference.New(card(), build(null.Behaviour{Fail: step})); !errors.Is(err, null.ErrOrdered) {
			t.Errorf("%s fails, New gives %v", step, err)
		}
	}
	r, err := reference.New(card(), build(null.Behaviour{Fail: "infer"}))
	must.OK(t, err)
	defer r.Close()
	if _, _, err := r.Answer(make([]byte, card().Input.WireBytes())); !errors.Is(err, null.ErrOrdered) {
		t.Errorf("infer fails, Answer gives %v", err)
	}
	if _, _, err := r.Answer(make([]byte, card().Input.WireBytes()-1)); err == nil {
		t.Error("a picture of another size is answered")
	}
	none, err := reference.New(card(), build(null.Behaviour{NoHostStage: true}))
	if err != nil {
		t.Fatalf("a framework without a host stage: %v", err)
	}
	none.Close()
}
