//go:build gpu

package gpu

import (
	"testing"

	"github.com/penstock/penstock/internal/testing/cudatest"
	"github.com/penstock/penstock/internal/testing/gputest"
	"github.com/penstock/penstock/internal/testing/mpstest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nulltest"
	"github.com/penstock/penstock/internal/testing/nvmltest"
	"github.com/penstock/penstock/internal/testing/onnxtest"
	"github.com/penstock/penstock/models"
)

func TestCUDA(t *testing.T) { cudatest.Run(t) }

func TestGather(t *testing.T) { gputest.Run(t) }

func TestNull(t *testing.T) { nulltest.Run(t) }

func TestNVML(t *testing.T) { nvmltest.Run(t) }

func TestMPS(t *testing.T) { mpstest.Run(t) }

// The shipped models, and four of fp16 with random weights. Graphs of VGG-19 and GNMT write outside
// their lanes.
func TestONNX(t *testing.T) {
	cards := onnxtest.Zoo(t)
	for _, name := range []string{"mobilenetv2", "resnet50", "vgg19", "gnmt"} {
		card, err := models.ReadCard(exported(t, name))
		must.OK(t, err)
		cards = append(cards, card)
	}
	onnxtest.Run(t, cards...)
}
