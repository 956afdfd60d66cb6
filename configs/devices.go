package configs

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models/document"
)

// The values of Config.Device and Config.Devices that are no GPU's. DeviceAll stands for all GPUs until Resolve.
const (
	DeviceCPU  = control.DeviceCPU
	DeviceAuto = control.DeviceAuto
	DeviceAll  = "all"
)

// DeviceName is a name of control.Desired.Devices. In a file, N stands for cuda:N.
type DeviceName string

// Want is what the errors of keys of this type say.
func (DeviceName) Want() string { return "cpu, cuda:N or just N, or a UUID (nvidia-smi -L)" }

// Pattern is what the text of a name looks like.
func (DeviceName) Pattern() string {
	return `^(all|cpu|cuda(:[0-9]{1,3})?|[0-9]{1,3}|(GPU|MIG)-[0-9a-fA-F-]{1,36})$`
}

// UnmarshalText reads a name.
func (n *DeviceName) UnmarshalText(text []byte) error {
	*n = DeviceName(text)
	if index, err := strconv.Atoi(string(text)); err == nil {
		*n = DeviceName(fmt.Sprint("cuda:", index))
	}
	return nil
}

// DeviceNames are the names of the node's devices for control.Desired, at least one.
func (c *Config) DeviceNames() (names []string) {
	if len(c.Devices) == 0 {
		return []string{c.Device}
	}
	for _, n := range c.Devices {
		names = append(names, string(n))
	}
	return names
}

// DevicesOf are those of the node's devices that a function may use, by the node's names.
func (c *Config) DevicesOf(f *Function) []string {
	all := c.DeviceNames()
	if len(f.Devices) == 0 || c.unresolved() {
		return all
	}
	return slices.DeleteFunc(all, func(name string) bool {
		return !slices.ContainsFunc(f.Devices, func(n DeviceName) bool { return c.same(name, string(n)) })
	})
}

// severalDevices reports whether the node has more than one device, or may have.
func (c *Config) severalDevices() bool { return len(c.Devices) > 1 || c.unresolved() }

func (c *Config) unresolved() bool { return slices.Contains(c.Devices, DeviceAll) }

// Resolve replaces `devices: all` by the first digits of UUIDs: an index may change when a GPU is lost. gpus are the
// UUIDs of the GPUs of this machine, in the order of their indexes.
func (c *Config) Resolve(gpus []string) {
	c.GPUs = gpus
	if !c.unresolved() {
		return
	}
	c.Devices = nil
	for _, uuid := range gpus {
		short := uuid[:min(len(uuid), len("GPU-")+8)]
		if slices.ContainsFunc(gpus, func(other string) bool { return other != uuid && strings.HasPrefix(other, short) }) {
			short = uuid
		}
		c.Devices = append(c.Devices, DeviceName(short))
	}
	if len(gpus) == 0 {
		c.Devices = []DeviceName{DeviceCPU}
	}
}

// same reports whether two names are of one device. Before Resolve, names of different forms are different.
func (c *Config) same(a, b string) bool {
	a, b = c.uuid(a), c.uuid(b)
	if len(a) > len(b) {
		a, b = b, a
	}
	return strings.EqualFold(a, b) || strings.Contains(a, "-") && strings.EqualFold(a, b[:len(a)])
}

// uuid returns the UUID of a GPU that an index names, and other names unchanged.
func (c *Config) uuid(name string) string {
	if name == "cuda" {
		name = "cuda:0"
	}
	if index, ok := strings.CutPrefix(name, "cuda:"); ok {
		if i, err := strconv.Atoi(index); err == nil && i < len(c.GPUs) {
			return c.GPUs[i]
		}
	}
	return name
}

// checkDevices finds faults of devices that the rules of the single keys do not cover.
func (c *Config) checkDevices(root document.Value) {
	if root.Has("device") && root.Peek("device") != c.Device {
		c.Device = DeviceAuto // it is invalid; suppress further errors about it
	}
	if !root.Has("devices") {
		return
	}
	at := root.Find("devices")
	switch {
	case root.Has("device"):
		at.Reject("is given, and device is, too; want one of them left out")
	case root.Peek("devices") == DeviceAll:
		c.Devices = []DeviceName{DeviceAll}
		return
	case c.unresolved():
		at.Reject("is a list with all; want `devices: all` without others")
	case len(c.Devices) > 0 && !slices.Contains(c.Devices, ""): // else an element is invalid
		if err := c.checkTwice(c.Devices); err != nil {
			at.Reject("%v", err)
		}
		return
	}
	c.Devices, c.Device = nil, DeviceAuto // suppress further errors
}

// checkTwice returns an error if a list names a device twice.
func (c *Config) checkTwice(list []DeviceName) error {
	for i, n := range list {
		for _, other := range list[:i] {
			if c.same(string(n), string(other)) {
				return fmt.Errorf("has %s and %s, which are one device; want each once", other, n)
			}
		}
	}
	return nil
}

// checkDevices returns an error if the function names devices that the node does not have.
func (f *Function) checkDevices(c *Config) error {
	if c.unresolved() || slices.Contains(f.Devices, "") { // not known yet, or reported already
		return nil
	}
	node := c.DeviceNames()
	for _, n := range f.Devices {
		if !slices.ContainsFunc(node, func(name string) bool { return c.same(name, string(n)) }) {
			return fmt.Errorf("has %s, and the devices of the node are %s; want some of these, or leave the key out", n, strings.Join(node, ", "))
		}
	}
	return c.checkTwice(f.Devices)
}

// anyOf returns nil if a key suits one of the devices, else the error about the first one.
func anyOf(devices []string, suits func(device string) error) (first error) {
	for _, d := range devices {
		err := suits(d)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// On returns an error if device does not support this place for weights. DeviceAuto supports all.
func (w Weights) On(device string) error {
	if w == WeightsShared && device == DeviceCPU {
		return errors.New("is shared, which is for a GPU, and the device is cpu; want `device: cuda`, or delete the key")
	}
	return nil
}

// inFlightOn returns an error if device does not support n batches in flight. DeviceAuto supports
// all.
func inFlightOn(n int, device string) error {
	if n > 1 && device == DeviceCPU {
		return fmt.Errorf("is %d, which is for a GPU, and the device is cpu; want `device: cuda`, or auto", n)
	}
	return nil
}

// On returns an error if device does not support this change of shares. DeviceAuto and DeviceAll support all.
func (c Change) On(device string) error {
	switch {
	case device == DeviceAuto, device == DeviceAll:
	case c == ChangePartition && device == DeviceCPU:
		return errors.New("is partition, which is for a GPU, and the device is cpu; want shadow or in-place, or `device: cuda`")
	case c == ChangeInPlace && device != DeviceCPU:
		return fmt.Errorf("is in-place, which is for a CPU, and the device is %s; want shadow or partition", device)
	}
	return nil
}
