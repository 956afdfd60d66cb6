//go:build gpu

package gpu

import (
	"testing"

	"github.com/penstock/penstock/cuda/cudatest"
)

func TestCUDA(t *testing.T) { cudatest.Run(t) }
