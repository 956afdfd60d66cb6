// Package gpu tests what needs a GPU: package cuda and the gather on a real driver,
// ONNX Runtime with CUDA, and whole nodes with provoked failures. The tests have the
// build tag gpu. A skipped test counts as a failure.
//
// kit.sh packs them with all they need (make gpu-kit). run.sh runs them on a GPU
// server without Go (make test-gpu).
package gpu
