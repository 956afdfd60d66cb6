//go:build !cgo

package gpu

import (
	"errors"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/models"
)

func TestWithoutCgo(t *testing.T) {
	in := models.Input{Height: 1, Width: 1, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC}
	if _, err := New(in, Options{Device: "cuda"}); !errors.Is(err, cuda.ErrNoCgo) {
		t.Errorf("open says %v, want %v", err, cuda.ErrNoCgo)
	}
}
