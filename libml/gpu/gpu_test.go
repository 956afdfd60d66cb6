//go:build cgo

package gpu_test

import (
	"testing"

	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/cudatest"
	"github.com/penstock/penstock/internal/testing/gputest"
)

func TestMain(m *testing.M) {
	occupier()
	gputest.Child()
	cudafake.Main(m, cudafake.Kernels(gputest.Twins), cudafake.Kernels(cudatest.Kernels))
}

func TestSuiteOnFake(t *testing.T) {
	cudafake.Check(t)
	gputest.Run(t)
}
