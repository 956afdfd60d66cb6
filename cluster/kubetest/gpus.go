package kubetest

import (
	"cmp"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/penstock/penstock/plan"
)

// DriverName is the name of NVIDIA's DRA driver, for which simulated GPUs stand in.
const DriverName = "gpu.nvidia.com"

// GPU is a simulated GPU.
type GPU struct {
	// Product is NVML's name. The default is an A100 with 80 GB.
	Product string
	// Uncut GPUs are one device each. Others can be cut as MIG allows: each place of each size is a device, and
	// shared counters say which exclude each other.
	Uncut bool
	// Gone GPUs keep their number, but are not published.
	Gone bool
}

// The limits of ResourceSlices are 64 devices that use counters, and 8 sets of counters.
const (
	gpusPerSlice    = 4 // of 14 places each
	countersPerPool = 8
)

// DefaultProduct is the product of a GPU without a name.
const DefaultProduct = "NVIDIA A100-SXM4-80GB"

// UUID returns the UUID of a GPU of a node.
func UUID(node string, gpu int) string { return fmt.Sprintf("GPU-%s-%d", node, gpu) }

// resourceSlices returns what the driver publishes for a node's GPUs: the attributes and counters of NVIDIA's driver 25.8.
func resourceSlices(node string, gpus []GPU) ([]resourceslice.Slice, error) {
	if len(gpus) > countersPerPool {
		return nil, fmt.Errorf("simulate the GPUs of %s: there are %d, at most %d are possible", node, len(gpus), countersPerPool)
	}

	var counters resourceslice.Slice
	var devices []resourceslice.Slice
	for i, g := range gpus {
		table, err := plan.ForDevice(cmp.Or(g.Product, DefaultProduct))
		if err != nil {
			return nil, fmt.Errorf("simulate the GPUs of %s: %w", node, err)
		}

		if i%gpusPerSlice == 0 {
			devices = append(devices, resourceslice.Slice{})
		}
		if g.Gone {
			continue
		}
		last := &devices[len(devices)-1].Devices
		if g.Uncut {
			*last = append(*last, wholeDevice(node, i, g, table))
			continue
		}
		set := counterSet(i, table)
		counters.SharedCounters = append(counters.SharedCounters, set)
		*last = append(*last, migDevices(node, i, g, table, set.Name)...)
	}

	if len(counters.SharedCounters) == 0 {
		return devices, nil
	}
	return append([]resourceslice.Slice{counters}, devices...), nil
}

func wholeDevice(node string, i int, g GPU, table plan.GPU) resourceapi.Device {
	return resourceapi.Device{
		Name: fmt.Sprintf("gpu-%d", i),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type":        text("gpu"),
			"uuid":        text(UUID(node, i)),
			"productName": text(cmp.Or(g.Product, DefaultProduct)),
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: mebibytes(table.MemoryMiB)}},
	}
}

// counterSet has what instances of a GPU use up: multiprocessors and memory slices.
func counterSet(i int, table plan.GPU) resourceapi.CounterSet {
	set := resourceapi.CounterSet{
		Name:     fmt.Sprintf("gpu-%d-counter-set", i),
		Counters: map[string]resourceapi.Counter{"multiprocessors": {Value: count(table.UsableSMs())}},
	}
	for slot := range table.Slots {
		set.Counters[memorySlice(slot)] = resourceapi.Counter{Value: count(1)}
	}
	return set
}

// migDevices returns a device for each place of each size.
func migDevices(node string, i int, g GPU, table plan.GPU, set string) []resourceapi.Device {
	var devices []resourceapi.Device
	for _, size := range table.Sizes {
		for _, start := range size.Starts {
			used := map[string]resourceapi.Counter{"multiprocessors": {Value: count(size.SMs)}}
			for slot := start; slot < start+size.Slots; slot++ {
				used[memorySlice(slot)] = resourceapi.Counter{Value: count(1)}
			}
			devices = append(devices, resourceapi.Device{
				Name: fmt.Sprintf("gpu-%d-mig-%s-%d", i, strings.ReplaceAll(size.Profile, ".", ""), start),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"type":        text("mig"),
					"profile":     text(size.Profile),
					"parentUUID":  text(UUID(node, i)),
					"productName": text(cmp.Or(g.Product, DefaultProduct)),
				},
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
					"memory": {Value: mebibytes(size.MemoryMiB)},
				},
				ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: used}},
			})
		}
	}
	return devices
}

func memorySlice(slot int) string { return fmt.Sprintf("memory-slice-%d", slot) }

func text(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }

func count(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

func mebibytes(n int) resource.Quantity {
	return *resource.NewQuantity(int64(n)<<20, resource.BinarySI)
}
