//go:build cgo

package gpu_test

import (
	"testing"

	"github.com/penstock/penstock/cuda/cudatest"
	"github.com/penstock/penstock/cuda/fake"
	"github.com/penstock/penstock/libml/device/gpu/gputest"
)

func TestMain(m *testing.M) {
	gputest.Child()
	fake.Main(m, fake.Kernels(gputest.Twins), fake.Kernels(cudatest.Kernels))
}

func TestTheSuiteOnTheFake(t *testing.T) {
	fake.Check(t)
	gputest.Run(t)
}
