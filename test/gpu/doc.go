// Package gpu tests what needs a GPU: package cuda and the gather on a real driver,
// ONNX Runtime with CUDA, and whole nodes that are treated badly. The tests have the
// build tag gpu and fail where one of them is skipped.
//
// kit.sh packs them with all they need (make gpu-kit), run.sh runs them on a GPU
// server that has no Go (make test-gpu).
package gpu
