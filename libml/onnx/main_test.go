//go:build cgo

package onnx

import (
	"testing"

	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/cudatest"
)

// The tests of the GPU path run on the fake driver. The others know nothing of it.
func TestMain(m *testing.M) { cudafake.Main(m, cudafake.Kernels(cudatest.Kernels)) }
