//go:build cgo

package onnx

import (
	"testing"

	"github.com/penstock/penstock/cuda/cudatest"
	"github.com/penstock/penstock/cuda/fake"
)

// The tests of the GPU path run on the fake driver. The others know nothing of it.
func TestMain(m *testing.M) { fake.Main(m, fake.Kernels(cudatest.Kernels)) }
