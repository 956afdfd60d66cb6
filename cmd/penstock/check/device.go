package check

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/penstock/penstock/cmd/penstock/apart"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/orchestrator/gpu"
)

// Devices says, before anything is started, why there is no GPU of a name that
// the configuration wants.
func Devices(c configs.Config) error {
	_, err := findDevices(c, nvml.Open)
	return err
}

// device is a GPU, or a MIG instance.
type device struct{ name, uuid, product string }

func newDevice(d cuda.Device) device {
	return device{fmt.Sprintf("cuda:%d", d.Ordinal()), d.UUID(), d.Name()}
}

func newInstance(in nvml.Instance) device {
	return device{fmt.Sprintf("%.12s", in.UUID), in.UUID, in.Name}
}

// findDevice returns a device by its name in a configuration. CUDA shows this process one instance of all.
func findDevice(name string, open func() (nvml.Session, error)) (device, error) {
	if !nvml.IsInstance(name) {
		d, err := cuda.Find(name)
		return newDevice(d), err
	}
	session, err := open()
	if err != nil {
		return device{}, err
	}
	in, err := nvml.FindInstance(session, name)
	return newInstance(in), err
}

// listDevices returns the GPUs that CUDA shows, and all MIG instances unless CUDA_VISIBLE_DEVICES chooses one.
func listDevices(open func() (nvml.Session, error)) (list []device, err error) {
	devices, err := cuda.Devices()
	if err != nil && !gpu.Missing(err) {
		return nil, err
	}
	for _, d := range devices {
		list = append(list, newDevice(d))
	}
	session, err := open()
	if _, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); err != nil || set {
		return list, nil
	}
	instances, err := session.Instances()
	for _, in := range instances {
		if !slices.ContainsFunc(list, func(d device) bool { return d.uuid == in.UUID }) {
			list = append(list, newInstance(in))
		}
	}
	return list, err
}

// findDevices returns the GPUs that a configuration names. For "all" these are all.
func findDevices(c configs.Config, open func() (nvml.Session, error)) (list []device, err error) {
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
			return listDevices(open)
		}
		d, err := findDevice(name, open)
		if err != nil {
			return nil, fmt.Errorf("device %s: %w; list the devices with `penstock doctor`, or set %s", name, err, hint)
		}
		if slices.ContainsFunc(list, func(other device) bool { return other.uuid == d.uuid }) {
			return nil, fmt.Errorf("device %s is %s %s, which the list has already; want each once", name, d.name, d.uuid)
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
	devices, err := listDevices(nvml.Open)
	uuids := []string{}
	for _, d := range devices {
		uuids = append(uuids, d.uuid)
	}
	return uuids, err
}
