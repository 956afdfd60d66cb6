package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
)

// firstGPU is the device name of the first visible GPU.
const firstGPU = "cuda"

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
	if err := showOnly(name); err != nil {
		return nil, err
	}
	d, err := gpu.New(in, gpu.Options{Device: firstGPU})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// visibleDevices is CUDA's variable for the GPUs that a process sees, in their order.
const visibleDevices = "CUDA_VISIBLE_DEVICES"

// showOnly hides all other GPUs from this process, because frameworks run on the first GPU that
// they see. It has no effect after the first use of CUDA.
func showOnly(name string) error {
	visible, err := entryOf(name, os.Getenv(visibleDevices))
	if err != nil || visible == "" {
		return err
	}
	return os.Setenv(visibleDevices, visible)
}

// entryOf returns the value of CUDA_VISIBLE_DEVICES that leaves only the named GPU of those that
// are visible. It is empty if name is firstGPU.
func entryOf(name, visible string) (string, error) {
	number, ok := strings.CutPrefix(name, firstGPU+":")
	if !ok {
		return strings.TrimPrefix(name, firstGPU), nil // a UUID, or the first
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 {
		return "", fmt.Errorf("device %q: want cpu, cuda, cuda:N or a GPU's UUID", name)
	}
	if visible == "" {
		return number, nil
	}
	entries := strings.Split(visible, ",")
	if n >= len(entries) {
		return "", fmt.Errorf("device %q: %s=%s has %d", name, visibleDevices, visible, len(entries))
	}
	return strings.TrimSpace(entries[n]), nil
}

// deviceAndModels are the lines of a node's configuration that a set-up decides.
func deviceAndModels(o *Setup) string {
	lines := fmt.Sprintf("device: %s\n", o.Device)
	if o.Models == "" {
		return lines
	}
	folder := o.Models
	if absolute, err := filepath.Abs(folder); err == nil {
		folder = absolute
	}
	return lines + fmt.Sprintf("models: [%q]\n", folder)
}

// checkCards returns an error if a model has no card.
func checkCards(o *Setup, names []string) error {
	for _, name := range names {
		if _, err := o.Card(name); err != nil {
			return err
		}
	}
	return nil
}
