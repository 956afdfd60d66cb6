//go:build gpu

package gpu

import (
	"testing"

	"github.com/penstock/penstock/cuda/cudatest"
	"github.com/penstock/penstock/cuda/nvml/nvmltest"
	"github.com/penstock/penstock/libml/device/gpu/gputest"
	"github.com/penstock/penstock/libml/null/nulltest"
	"github.com/penstock/penstock/orchestrator/mps/mpstest"
)

func TestCUDA(t *testing.T) { cudatest.Run(t) }

func TestGather(t *testing.T) { gputest.Run(t) }

func TestNull(t *testing.T) { nulltest.Run(t) }

func TestNVML(t *testing.T) { nvmltest.Run(t) }

func TestMPS(t *testing.T) { mpstest.Run(t) }
