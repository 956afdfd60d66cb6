//go:build cgo

package gpu_test

import (
	"errors"
	"testing"

	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
)

// Devices with the same gather kernel share a module, and the last one that closes unloads it.
func TestModuleShared(t *testing.T) {
	cudafake.Check(t)
	first, err := open()
	must.OK(t, err)
	alone := cudafake.Now().Modules
	second, tensors := opened(t)
	if n := cudafake.Now().Modules; n != alone {
		t.Errorf("%d modules for two devices, %d for one", n, alone)
	}
	must.OK(t, first.Close())
	if err := errors.Join(second.Bind(), batch(second, tensors, 0)); err != nil {
		t.Errorf("after the other device has closed: %v", err)
	}
}
