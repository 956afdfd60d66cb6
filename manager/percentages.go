package manager

import (
	"slices"

	"github.com/penstock/penstock/configs"
)

// cuBLAS chooses its f16 kernels by the number of multiprocessors that it sees. Under an MPS
// percentage it sees only those of the share. For most numbers some kernels then return wrong
// results. Partitions show it the whole device, and results are always right.

// rightPercentages has, by the name of the GPU, the MPS percentages at which f16 models return
// right answers, ascending. A GPU that was not measured is missing. On it each process still
// checks its answers before it serves.
var rightPercentages = map[string][]float64{
	// 8, 10, 12, 14, 30, 34, 62, 66, 118, 124 and 132 of 132 multiprocessors, with driver 580,
	// CUDA 13.0 and cuBLAS 13.1 (docs/adr/0007-onnx-on-a-gpu.md, docs/gpu.md).
	"NVIDIA H200": {7, 8, 10, 11, 24, 26, 47.5, 50, 90, 95, 100},
}

// steps returns the allowed shares, ascending, or nil if all are allowed. changes are those of
// functions that are being added. If shares are not tuned, the operator chooses them freely.
func (m *Manager) steps(changes ...configs.Change) []float64 {
	if !m.onGPU() || !m.device.mps || !m.cfg.Shares.Tune {
		return nil
	}
	for _, f := range m.functions {
		changes = append(changes, f.change)
	}
	if !slices.ContainsFunc(changes, byPercentage) {
		return nil
	}
	return rightPercentages[m.device.gpu.Name]
}

// byPercentage reports whether a changed share on a GPU needs another MPS percentage.
func byPercentage(c configs.Change) bool {
	return c == configs.ChangeShadow || c == configs.ChangeRestart
}
