//go:build onnxruntime_carrier

// The module below is required for one of its files, libonnxruntime.so, which
// `make build` copies to bin/lib. Its Go code is never linked. This import,
// behind a build tag that is never set, keeps the requirement in go.mod.
package models

import _ "github.com/k2-fsa/sherpa-onnx-go-linux"
