package cuda_test

import (
	"testing"

	"github.com/penstock/penstock/cuda/cudatest"
	"github.com/penstock/penstock/cuda/fake"
)

func TestMain(m *testing.M) {
	cudatest.Child()
	fake.Main(m, fake.Kernels(cudatest.Kernels))
}

func TestTheSuiteOnTheFake(t *testing.T) {
	fake.Check(t)
	cudatest.Run(t)
}
