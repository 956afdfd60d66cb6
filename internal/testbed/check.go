package testbed

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/cuda/nvml"
)

// errNoGPU is returned by CheckDevice if there is no GPU to measure.
var errNoGPU = errors.New("no GPU on this machine")

// CheckDevice returns an error if there is no device to measure. It does not open
// the device, because a GPU that this process had opened would influence the
// measurement.
func CheckDevice(name string) error {
	if name == configs.DeviceCPU {
		return nil
	}
	session, err := nvml.Open()
	if err != nil {
		return fmt.Errorf("%w: %w", errNoGPU, err)
	}
	devices, err := session.Devices()
	if err != nil {
		return fmt.Errorf("%w: %w", errNoGPU, err)
	}
	if len(devices) == 0 {
		return errNoGPU
	}
	return nil
}
