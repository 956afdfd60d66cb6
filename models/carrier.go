//go:build onnxruntime_carrier

// The module below is required for one file it carries, libonnxruntime.so,
// which `make build` copies to bin/lib. Its Go code is never linked; this
// import, behind a tag nobody sets, keeps the requirement in go.mod.
package models

import _ "github.com/k2-fsa/sherpa-onnx-go-linux"
