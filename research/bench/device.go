package bench

import (
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/device/cpu"
	"github.com/penstock/penstock/libml/device/gpu"
	"github.com/penstock/penstock/models"
)

// openDevice opens a device for a model's input. The name is as in
// configs.Config.Device.
func openDevice(name string, in models.Input) (device.Device, error) {
	if name == configs.DeviceCPU {
		d, err := cpu.New(in, nil)
		if err != nil {
			return nil, err // an untyped nil, not a nil *Device in an interface
		}
		return d, nil
	}
	d, err := gpu.New(in, gpu.Options{Device: name})
	if err != nil {
		return nil, err
	}
	return d, nil
}
