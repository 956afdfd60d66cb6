//go:build cgo

package onnx

import (
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/models"
)

// Convolutions run in NHWC, the layout of tensor cores, if the model gains from it.
//
// Active: on every GPU, for models whose input tensor is f16. There is no setting. If a
// batch size cannot be captured in NHWC, it is linked in NCHW. The smallest size decides for
// all.

// prefersNHWC reports whether a model's sessions are tried in NHWC first. A ResNet-50 in f16
// is a quarter faster in NHWC. The shipped models, in f32 without TF32, do not gain. One takes
// 0.09 ms instead of 0.07, and another cannot be captured. The third takes 0.37 ms instead of
// 0.62 at batch 8, but compiles its kernels for 7 s instead of 1.9.
func prefersNHWC(card *models.Card) bool { return card.Input.TensorType == models.F16 }

// layoutName returns the layout's name in the key of a prepared model.
func layoutName(nhwc bool) string {
	if nhwc {
		return "nhwc"
	}
	return "nchw"
}

// linkInNCHW links a size that cannot be captured in NHWC. Its error wraps errNoGraph if the
// size cannot be captured in NCHW either.
func (g *gpu) linkInNCHW(n int, why error) (*size, error) {
	g.env.Log.Debug("cannot capture batch size in NHWC", "error", why, "batch", n)
	s, err := g.newTriedSize(n, cuda.Stream{}, false)
	if err == nil {
		err = s.tryGraph()
	}
	return s, err
}
