//go:build gpu

package gpu

import (
	"testing"

	"github.com/penstock/penstock/cuda/cudatest"
	"github.com/penstock/penstock/libml/device/gpu/gputest"
)

func TestCUDA(t *testing.T) { cudatest.Run(t) }

func TestGather(t *testing.T) { gputest.Run(t) }
