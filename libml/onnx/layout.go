//go:build cgo

package onnx

import (
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/models"
)

// Convolutions run in NHWC, the layout of tensor cores, if the model gains from it.
//
// Active: on every GPU, for models whose input tensor is f16. There is no setting. If a
// batch size cannot be captured in NHWC, it is linked in NCHW (link.go). The smallest size
// decides for all.

// prefersNHWC reports whether a model's sessions are tried in NHWC first. A ResNet-50 in f16
// is a quarter faster in NHWC. The shipped models in f32 do not gain: one takes 0.09 ms
// instead of 0.07, and another cannot be captured. The third takes 0.37 ms instead of 0.62
// at batch 8, but compiles its kernels for 7 s instead of 1.9.
func prefersNHWC(card *models.Card) bool { return card.Input.TensorType == models.F16 }

// layoutName returns the layout's name in the key of a prepared model.
func layoutName(nhwc bool) string {
	if nhwc {
		return "nhwc"
	}
	return "nchw"
}

// sessionOptions are ONNX Runtime's options of a session.
var sessionOptions = [][2]string{
	{"session.use_env_allocators", "1"},                    // our pools
	{"session.use_device_allocator_for_initializers", "1"}, // for weights too
	{"session.intra_op.allow_spinning", "0"},
	{"session.inter_op.allow_spinning", "0"},
}

// providerOptions returns the options of ONNX Runtime's CUDA provider.
func providerOptions(s settings) [][2]string {
	return [][2]string{
		{"device_id", "0"}, // the process sees only one
		// HEURISTIC is mode A of cuDNN's heuristics. EXHAUSTIVE is mode B: it chooses the same
		// kernels for ResNet-50 and MobileNetV2, and takes as long. The kernels of DEFAULT are
		// ten times slower.
		{"cudnn_conv_algo_search", "HEURISTIC"},
		{"prefer_nhwc", flag(s.nhwc)},
		{"use_tf32", flag(s.tf32)},
		{"enable_cuda_graph", "0"}, // we capture the graphs
	}
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// settings returns the settings of a session with private weights.
func (g *gpu) settings(stream cuda.Stream, nhwc bool) settings {
	return settings{
		stream: stream, nhwc: nhwc,
		// use_tf32=0 also keeps f16 convolutions from tensor cores. With f32 input, TF32 would
		// leave 11 of 24 bits of mantissa.
		tf32: g.env.Card.Input.TensorType == models.F16,
	}
}
