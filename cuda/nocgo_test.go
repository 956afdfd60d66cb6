//go:build !cgo

package cuda_test

import (
	"errors"
	"testing"

	"github.com/penstock/penstock/cuda"
)

func TestNoCgo(t *testing.T) {
	_, devices := cuda.Devices()
	_, find := cuda.Find("cuda")
	_, split := cuda.Device{}.Split()
	_, open := cuda.Device{}.OpenContext()
	for _, err := range []error{cuda.Open(), devices, find, split, open, cuda.StreamOf(1).Synchronize()} {
		if !errors.Is(err, cuda.ErrNoCgo) {
			t.Errorf("the error is %v", err)
		}
	}
}
