//go:build cgo

package onnx

import (
	"path/filepath"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/models"
)

// folderKey is the option for the folder of a model's other files. Without it, ONNX Runtime takes the
// process's working folder, which is the card's: a session is made from bytes.
const folderKey = "session.model_external_initializers_file_folder_path"

// settings of a session.
type settings struct {
	stream cuda.Stream // for its work
	nhwc   bool        // convolutions in NHWC if there are kernels for it
	tf32   bool        // tensor cores; f32 values then have TF32's 11 bits of mantissa
	// folder has the model's other files.
	folder string
	// initializers are weights that are in the GPU's memory. The model is then optimised, and
	// refers to a file in folder for its weights. ONNX Runtime does not read that file.
	initializers []initializer
}

// initializer is a tensor of weights in the GPU's memory, which the session only reads.
type initializer struct {
	name    string
	at      cuda.Pointer
	bytes   int64
	shape   []int64
	element int // ONNXTensorElementDataType
}

// sessionOptions are ONNX Runtime's options of all sessions.
var sessionOptions = [][2]string{
	{"session.use_env_allocators", "1"}, // the arena, and our pools
	// Threads that spin between two operators use the CPU time of the next batch.
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
		stream: stream, nhwc: nhwc, folder: filepath.Dir(g.env.Card.Model),
		// use_tf32=0 also keeps f16 convolutions from tensor cores. With f32 input, TF32 would
		// leave 11 of 24 bits of mantissa.
		tf32: g.env.Card.Input.TensorType == models.F16,
	}
}
