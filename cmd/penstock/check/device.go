package check

import (
	"fmt"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/orchestrator/gpu"
)

// Device says, before anything is started, why there is no GPU of the name that
// the configuration wants.
func Device(c configs.Config) error {
	if c.Device == configs.DeviceCPU || c.Device == configs.DeviceAuto {
		return nil
	}
	if err := gpu.StayOut(c.RuntimeDir); err != nil {
		return err
	}
	if _, err := cuda.Find(c.Device); err != nil {
		return fmt.Errorf("device %s: %w; list the devices with `penstock doctor`, or set `device: auto` to fall back to the CPU", c.Device, err)
	}
	return nil
}
