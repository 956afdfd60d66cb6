package bench

import (
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/device/cpu"
	"github.com/penstock/penstock/libml/device/gpu"
	"github.com/penstock/penstock/models"
)

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
