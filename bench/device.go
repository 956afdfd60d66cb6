package bench

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/device/cpu"
	"github.com/penstock/penstock/libml/device/gpu"
	"github.com/penstock/penstock/models"
)

// ErrNoGPU is returned by CheckDevice where there is no GPU to measure.
var ErrNoGPU = errors.New("no GPU on this machine")

// CheckDevice reports whether there is a device to measure, without touching it: a
// GPU that this process had opened would take part in what it measures.
func CheckDevice(name string) error {
	if name == configs.DeviceCPU {
		return nil
	}
	session, err := nvml.Open()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoGPU, err)
	}
	devices, err := session.Devices()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoGPU, err)
	}
	if len(devices) == 0 {
		return ErrNoGPU
	}
	return nil
}

// openDevice opens a device by a name as configs.Config.Device has it, for a model's
// input.
func openDevice(name string, in models.Input) (device.Device, error) {
	if name == configs.DeviceCPU {
		d, err := cpu.New(in, nil)
		if err != nil {
			return nil, err // not a nil *Device in an interface
		}
		return d, nil
	}
	d, err := gpu.New(in, gpu.Options{Device: name})
	if err != nil {
		return nil, err
	}
	return d, nil
}
