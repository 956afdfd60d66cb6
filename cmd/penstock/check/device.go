package check

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/penstock/penstock/cmd/penstock/apart"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/orchestrator/gpu"
)

// Devices says, before anything is started, why there is no GPU of a name that
// the configuration wants.
func Devices(c configs.Config) error {
	_, err := findDevices(c)
	return err
}

// findDevices returns the GPUs that a configuration names. For "all" these are all.
func findDevices(c configs.Config) (list []cuda.Device, err error) {
	hint := "`device: auto` to fall back to the CPU"
	if len(c.Devices) > 0 {
		hint = "`devices: all`"
	}
	for _, name := range c.DeviceNames() {
		if name == configs.DeviceCPU || name == configs.DeviceAuto {
			continue
		}
		if err := gpu.StayOut(c.RuntimeDir); err != nil {
			return nil, err
		}
		if name == configs.DeviceAll {
			if list, err = cuda.Devices(); gpu.Missing(err) {
				err = nil
			}
			return list, err
		}
		d, err := cuda.Find(name)
		if err != nil {
			return nil, fmt.Errorf("device %s: %w; list the devices with `penstock doctor`, or set %s", name, err, hint)
		}
		if slices.Contains(list, d) {
			return nil, fmt.Errorf("device %s is %v, which the list has already; want each once", name, d)
		}
		list = append(list, d)
	}
	return list, nil
}

// GPUsVerb is the verb of a process that lists GPUs. A manager asks it, as it makes no use of CUDA itself: it would keep a
// lost GPU open.
const GPUsVerb = "gpus"

// Resolve completes the devices of a configuration with the GPUs of this machine.
func Resolve(ctx context.Context, c *configs.Config) error {
	if len(c.Devices) == 0 {
		return nil
	}
	output, err := apart.Run(ctx, GPUsVerb, c.RuntimeDir)
	if err != nil {
		return fmt.Errorf("list GPUs: %w", err)
	}
	var gpus []string
	if err := json.Unmarshal(output, &gpus); err != nil {
		return fmt.Errorf("list GPUs: %w", err)
	}
	c.Resolve(gpus)
	return nil
}

// GPUs returns the UUIDs of the GPUs of this machine, in the order of their indexes. dir is the runtime folder.
func GPUs(dir string) ([]string, error) {
	if err := gpu.StayOut(dir); err != nil {
		return nil, err
	}
	devices, err := cuda.Devices()
	if err != nil && !gpu.Missing(err) {
		return nil, err
	}
	uuids := []string{}
	for _, d := range devices {
		uuids = append(uuids, d.UUID())
	}
	return uuids, nil
}
