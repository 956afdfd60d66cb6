//go:build gpu

package gpu

import (
	"testing"

	"github.com/penstock/penstock/cuda/cudatest"
	"github.com/penstock/penstock/cuda/nvml/nvmltest"
	"github.com/penstock/penstock/libml/device/gpu/gputest"
	"github.com/penstock/penstock/libml/null/nulltest"
	"github.com/penstock/penstock/libml/onnx/onnxtest"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/orchestrator/mps/mpstest"
)

func TestCUDA(t *testing.T) { cudatest.Run(t) }

func TestGather(t *testing.T) { gputest.Run(t) }

func TestNull(t *testing.T) { nulltest.Run(t) }

func TestNVML(t *testing.T) { nvmltest.Run(t) }

func TestMPS(t *testing.T) { mpstest.Run(t) }

// The shipped models, and two of fp16 with random weights.
func TestONNX(t *testing.T) {
	cards := onnxtest.Zoo(t)
	for _, name := range []string{"mobilenetv2", "resnet50"} {
		card, err := models.ReadCard(exported(t, name))
		if err != nil {
			t.Fatal(err)
		}
		cards = append(cards, card)
	}
	onnxtest.Run(t, cards...)
}
