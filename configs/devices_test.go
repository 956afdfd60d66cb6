package configs

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

const (
	firstGPU  = "GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"
	secondGPU = "GPU-1b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"
)

func TestDevices(t *testing.T) {
	s := schema(t)
	for text, row := range map[string]struct {
		names    string
		resolved string // with two GPUs
	}{
		"device: cuda":                      {"cuda", "cuda"},
		"devices: all":                      {"all", "GPU-0b1c2d3e GPU-1b1c2d3e"},
		"devices: [cpu]":                    {"cpu", "cpu"},
		"devices: [cpu, cuda:1, 0]":         {"cpu cuda:1 cuda:0", "cpu cuda:1 cuda:0"},
		"devices: ['1', cuda, GPU-2b]":      {"cuda:1 cuda GPU-2b", "cuda:1 cuda GPU-2b"},
		"devices: [" + secondGPU + "]":      {secondGPU, secondGPU},
		"devices: [MIG-1a2b-3c, MIG-1a2c]":  {"MIG-1a2b-3c MIG-1a2c", "MIG-1a2b-3c MIG-1a2c"},
		"device: MIG-0b1c2d3e-4f50-6172-83": {"MIG-0b1c2d3e-4f50-6172-83", "MIG-0b1c2d3e-4f50-6172-83"},
	} {
		c, err := Decode("f.yaml", []byte(text))
		must.OK(t, err)
		if got := strings.Join(c.DeviceNames(), " "); got != row.names {
			t.Errorf("%s: devices are %s, want %s", text, got, row.names)
		}
		c.Resolve([]string{firstGPU, secondGPU})
		if got := strings.Join(c.DeviceNames(), " "); got != row.resolved {
			t.Errorf("%s: devices are resolved to %s, want %s", text, got, row.resolved)
		}
		if err := valid(t, s, text); err != nil {
			t.Errorf("%s: schema: %v", text, err)
		}
	}

	c, err := Decode("f.yaml", []byte("devices: all"))
	must.OK(t, err)
	twins := []string{firstGPU, firstGPU + "1"}
	if c.Resolve(twins); !slices.Equal(c.DeviceNames(), twins) {
		t.Errorf("devices with the same first digits are %s", c.DeviceNames())
	}
	c.Devices = []DeviceName{DeviceAll}
	if c.Resolve(nil); !slices.Equal(c.DeviceNames(), []string{DeviceCPU}) {
		t.Errorf("devices without a GPU are %s", c.DeviceNames())
	}
}

func TestDeviceErrors(t *testing.T) {
	const functions = ", functions: [{name: a, port: 1"
	for text, words := range map[string][]string{
		"devices: []":                      {"f.yaml:1:", "devices", "0 elements", "1 to 16"},
		"devices: cuda":                    {"devices", `"cuda"`, "all, or a list"},
		"devices: [all, cuda]":             {"devices", "a list with all", "`devices: all`"},
		"devices: [gpu0]":                  {"devices[0]", `"gpu0"`, "cpu, cuda:N", "nvidia-smi -L"},
		"devices: [-1]":                    {"devices[0]", "-1", "cuda:N"},
		"{device: cpu, devices: [cuda]}":   {"devices", "device is, too"},
		"devices: [cuda, cpu, 0]":          {"devices", "cuda and cuda:0", "one device"},
		"devices: [GPU-1a2b, GPU-1A2B-3c]": {"GPU-1a2b and GPU-1A2B-3c", "one device"},

		"{devices: [cpu, 1]" + functions + ", devices: ['cuda:2', cpu]}]}":                {"functions[0].devices", "cuda:2", "cpu, cuda:1"},
		"{device: cuda" + functions + ", devices: [all]}]}":                               {"functions[0].devices", "has all", "leave the key out"},
		"{device: cuda" + functions + ", devices: [cpu]}]}":                               {"functions[0].devices", "has cpu", "are cuda;"},
		"{devices: all" + functions + ", devices: []}]}":                                  {"functions[0].devices", "0 elements"},
		"{devices: [0, 1]" + functions + ", devices: [1, 'cuda:1']}]}":                    {"functions[0].devices", "cuda:1 and cuda:1"},
		"{devices: [cpu]" + functions + ", in_flight: 2}]}":                               {"functions[0].in_flight", "cpu"},
		"{devices: [cpu, cuda]" + functions + ", devices: [cpu], in_flight: 2}]}":         {"functions[0].in_flight", "cpu"},
		"{devices: [cpu, cuda]" + functions + ", devices: [cuda], change: in-place}]}":    {"functions[0].change", "cuda"},
		"{devices: [0, 1], shares: {change: in-place}}":                                   {"shares.change", "cuda:0"},
		"{devices: [0, 1]" + functions + ", share_percent: 60, instances: 2}]}":           nil,
		"{devices: [0, 1]" + functions + ", share_percent: 101}]}":                        {"functions[0].share_percent", "101"},
		"{devices: [cpu, cuda]" + functions + ", in_flight: 2, change: in-place}]}":       nil,
		"{devices: all" + functions + ", in_flight: 2, change: partition}]}":              nil,
		"{devices: all" + functions + ", devices: [3, cpu], weights: shared}]}":           nil,
		"{devices: [cpu, cuda], weights: shared, shares: {change: partition}}":            nil,
		"{devices: [cpu, 'cuda:0']" + functions + ", devices: [cuda], weights: shared}]}": nil,
	} {
		t.Run(text, func(t *testing.T) { decodeChecked(t, text, words) })
	}
}

// A function may use another name than the node for a device. Indexes and UUIDs are compared when the GPUs are known.
func TestDevicesOf(t *testing.T) {
	c, err := Decode("f.yaml", []byte("{devices: all, functions: [{name: a, port: 1, devices: [1]}, {name: b, port: 2, devices: [GPU-0b1c]}, {name: c, port: 3}]}"))
	must.OK(t, err)
	c.Resolve([]string{firstGPU, secondGPU})
	for i, want := range [][]string{{"GPU-1b1c2d3e"}, {"GPU-0b1c2d3e"}, {"GPU-0b1c2d3e", "GPU-1b1c2d3e"}} {
		if got := c.DevicesOf(&c.Functions[i]); !slices.Equal(got, want) {
			t.Errorf("function %s may use %s, want %s", c.Functions[i].Name, got, want)
		}
	}
	must.OK(t, c.Check())

	c.Functions[0].Devices = []DeviceName{"cuda:1", secondGPU}
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), "one device") {
		t.Errorf("a device under two names: %v", err)
	}
	c.Functions[0].Devices = []DeviceName{"cuda:2"}
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), "has cuda:2, and the devices of the node are GPU-0b1c2d3e, GPU-1b1c2d3e") {
		t.Errorf("a third GPU: %v", err)
	}
}
