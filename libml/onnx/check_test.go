//go:build cgo

package onnx

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// The played model answers with the beginning of its input.
func TestRightAnswers(t *testing.T) {
	r := newRig(t, &played{})
	r.gpu.ask = func(env framework.Environment, _ *modelFile) (*answer.Reference, error) {
		picture, err := answer.Sample(env.Card, 0)
		return &answer.Reference{Input: picture, Outputs: [][]float32{answer.Floats(models.F32, picture[:40])}}, err
	}
	r.linked()
	if got := len(r.gpu.reference.Input); got != r.card.Input.TensorBytes() {
		t.Errorf("a sample of %d bytes", got)
	}
}

func TestWrongAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		spoil  func(*testing.T, *rig)
		want   string
		absent string
	}{
		{"as a graph", func(*testing.T, *rig) {}, "output prob", "MPS"},
		{"node by node", func(t *testing.T, r *rig) {
			host, err := r.context.AllocateHost(8)
			must.OK(t, err)
			t.Cleanup(func() { r.context.FreeHost(host) })
			r.played.toHost = host
		}, "output prob", "MPS"},
		{"where MPS limits it", func(t *testing.T, r *rig) {
			t.Setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30")
		}, "multiprocessors (30 %)", "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, &played{})
			r.gpu.ask = newReference // the real model's, on the CPU
			c.spoil(t, r)
			r.loaded()
			if r.gpu.reference == nil || len(r.gpu.reference.Outputs[0]) != 10 {
				t.Fatalf("the CPU answered %+v", r.gpu.reference)
			}
			_, err := r.f.LinkModel()
			if !errors.Is(err, device.ErrWrongAnswers) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), c.absent) {
				t.Errorf("got %v", err)
			}
			r.end()
			if r.played.sessions != 0 {
				t.Errorf("%d sessions are left", r.played.sessions)
			}
		})
	}
}
