//go:build cgo

package onnx

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/framework"
)

// The stored answer belongs to the card's picture. For another picture the CPU is asked again.
func TestPreparedAnswerSample(t *testing.T) {
	processes(t, func(_ *testing.T, r *rig, _ *shares) { r.linked() }, func(t *testing.T, r *rig, _ *shares) {
		asked := 0
		r.gpu.ask = func(_ framework.Environment, file *modelFile) (*answer.Reference, error) {
			asked++
			if len(file.data) == 0 {
				t.Error("without a model")
			}
			return nil, errors.New("is not asked")
		}
		r.card.Input.Mean, r.card.Input.Std = []float32{3}, []float32{2}
		r.loaded()
		if asked != 1 || r.gpu.shared.entry == nil {
			t.Errorf("the CPU was asked %d times", asked)
		}
	})
}

func TestDamagedPreparedModel(t *testing.T) {
	weights := ""
	processes(t, func(_ *testing.T, r *rig, s *shares) {
		r.linked()
		weights = s.asked[0]
	}, func(t *testing.T, r *rig, _ *shares) {
		must.OK(t, os.Truncate(weights, 7))
		r.linked()
		if r.played.optimises != 1 || !r.logged("preparing it again") || len(r.played.made[0].initializers) != 1 {
			t.Errorf("optimised %d times: %s", r.played.optimises, r.log.String())
		}
	})
}

// A process in the node's sandbox reads prepared models but cannot write them: the node
// prepares them.
func TestPreparedByTheNode(t *testing.T) {
	t.Run("once", func(t *testing.T) {
		dir := t.TempDir()
		for i := range 2 {
			sandboxed(t, dir, nil, func(r *rig, s *shares, asked int) {
				if asked != 1-i || len(s.asked) != 1 || !r.shares() {
					t.Errorf("asked the node %d times, for weights %v: %s", asked, s.asked, r.log.String())
				}
			})
		}
	})
	t.Run("failed", func(t *testing.T) {
		sandboxed(t, t.TempDir(), fmt.Errorf("%w: no GPU memory", framework.ErrNoWeights), func(r *rig, _ *shares, asked int) {
			if asked != 1 || !r.logged("no GPU memory") || r.shares() {
				t.Errorf("asked %d times: %s", asked, r.log.String())
			}
		})
	})
}

// If the node's prepared weights are damaged, the node prepares the model for the next process.
func TestDamagedWeightsOfTheNode(t *testing.T) {
	dir := t.TempDir()
	weights := ""
	sandboxed(t, dir, nil, func(_ *rig, s *shares, _ int) { weights = s.asked[0] })
	text, err := os.ReadFile(weights)
	must.OK(t, err)
	text[0]++
	must.OK(t, os.WriteFile(weights, text, 0o600))

	sandboxed(t, dir, nil, func(r *rig, _ *shares, asked int) {
		if asked != 1 || r.shares() {
			t.Errorf("asked %d times: %s", asked, r.log.String())
		}
	})
	sandboxed(t, dir, nil, func(r *rig, _ *shares, asked int) {
		if asked != 0 || !r.shares() {
			t.Errorf("asked %d times after the repair: %s", asked, r.log.String())
		}
	})
}

// sandboxed runs one process. Its node prepares the model if it is asked, or fails with answer.
// asked is how often the node was asked.
func sandboxed(t *testing.T, dir string, answer error, check func(r *rig, s *shares, asked int)) {
	t.Run("process", func(t *testing.T) {
		r, s := sharingRig(t, dir)
		asked := 0
		r.gpu.node.Prepared = dir
		r.gpu.node.Prepare = func() error {
			asked++
			if answer != nil {
				return answer
			}
			return prepareInNode(t, dir)
		}
		r.linked()
		if r.played.optimises > 0 {
			t.Errorf("it optimised the model itself: %s", r.log.String())
		}
		check(r, s, asked)
	})
}

// prepareInNode prepares the model as the node does.
func prepareInNode(t *testing.T, dir string) (err error) {
	t.Run("node", func(t *testing.T) {
		node, _ := sharingRig(t, dir)
		err = errors.Join(node.gpu.prepareOnly(), node.gpu.deinit())
	})
	return err
}

// shares reports whether the first session uses shared weights.
func (r *rig) shares() bool { return len(r.played.made[0].initializers) == 1 }
