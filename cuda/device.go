package cuda

import (
	"fmt"
	"strconv"
	"strings"
)

// Device is one GPU that this process can see. It is a plain value without open
// resources, and two values of the same GPU are equal.
type Device struct {
	ordinal int
	handle  uint64
	uuid    string
	name    string
}

// Devices lists the GPUs that this process can see (CUDA_VISIBLE_DEVICES), in the
// driver's order. CUDA shows a process at most one MIG instance. Devices makes no context, and any goroutine may call it.
func Devices() ([]Device, error) {
	if err := Open(); err != nil {
		return nil, err
	}
	count, err := cuDeviceGetCount.get(out)
	if err != nil {
		return nil, err
	}
	devices := make([]Device, count)
	for i := range devices {
		handle, err := cuDeviceGet.get(out, uint64(i))
		if err != nil {
			return nil, err
		}
		var uuid [16]byte
		if _, err := with(cuDeviceGetUuid, &uuid, buffer, handle); err != nil {
			return nil, err
		}
		var name [256]byte
		if _, err := with(cuDeviceGetName, &name, buffer, uint64(len(name)), handle); err != nil {
			return nil, err
		}
		devices[i] = Device{ordinal: i, handle: handle, name: untilZero(name[:])}
		kind := "GPU"
		if strings.Contains(devices[i].name, " MIG ") {
			kind = "MIG"
		}
		devices[i].uuid = fmt.Sprintf("%s-%x-%x-%x-%x-%x", kind, uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
	}
	return devices, nil
}

// Find returns the device with a name. "cuda" is the first, "cuda:1" the second. Any
// other name is a UUID, "GPU-…" or "MIG-…", or a unique prefix of one. If there is no such
// device, the error is ErrNoDevice and lists the devices.
func Find(name string) (Device, error) {
	devices, err := Devices()
	if err != nil {
		return Device{}, err
	}
	return find(name, devices)
}

func find(name string, devices []Device) (Device, error) {
	if name == "cuda" {
		name = "cuda:0"
	}
	var found []Device
	for _, d := range devices {
		if rest, ok := strings.CutPrefix(name, "cuda:"); ok {
			if n, err := strconv.Atoi(rest); err == nil && n == d.ordinal {
				return d, nil
			}
		} else if len(name) > len("GPU-") && len(name) <= len(d.uuid) && strings.EqualFold(d.uuid[:len(name)], name) {
			found = append(found, d)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Device{}, fmt.Errorf("%w %q: there is %s", ErrNoDevice, name, list(devices))
	}
	return Device{}, fmt.Errorf("%w %q alone: %s begin so", ErrNoDevice, name, list(found))
}

func list(devices []Device) string {
	if len(devices) == 0 {
		return "none"
	}
	texts := make([]string, len(devices))
	for i, d := range devices {
		texts[i] = fmt.Sprintf("cuda:%d = %s (%s)", d.ordinal, d.uuid, d.name)
	}
	return strings.Join(texts, ", ")
}

// Ordinal is the device's index among those that this process can see.
func (d Device) Ordinal() int { return d.ordinal }

// UUID identifies the GPU in every process. It is "GPU-", or "MIG-" for an instance, and 32
// hexadecimal digits in five groups, as in nvidia-smi.
func (d Device) UUID() string { return d.uuid }

// Name is the product name: "NVIDIA H200".
func (d Device) Name() string { return d.name }

// String returns a text like "cuda:0 GPU-… (NVIDIA H200)".
func (d Device) String() string { return fmt.Sprintf("cuda:%d %s (%s)", d.ordinal, d.uuid, d.name) }

// Properties describe a device and its capabilities.
type Properties struct {
	// SMs is the number of multiprocessors that this process sees: all of the device's,
	// or under MPS those of its percentage.
	SMs         int
	MemoryBytes int64
	// Major and Minor are the compute capability: 9.0 on Hopper.
	Major, Minor int
	// ClockKHz is the max clock of the multiprocessors.
	ClockKHz int
	// ReadOnlyHostRegister: Register works on read-only
	// mappings. HostPointer: registered memory has the same address for the CPU and the
	// GPU.
	ReadOnlyHostRegister, HostPointer bool
	// VirtualMemory: Arena works. FileHandles: an Arena can be exported.
	VirtualMemory, FileHandles bool
	// MPS: contexts of this process are clients of an MPS server.
	MPS bool
}

// Properties queries the driver. It makes no context. Any goroutine may call it.
func (d Device) Properties() (Properties, error) {
	if err := Open(); err != nil {
		return Properties{}, err
	}
	var first error
	ask := func(attribute uint64) int {
		value, err := cuDeviceGetAttribute.get(out, attribute, d.handle)
		// A driver refuses attributes that are newer than itself. The device does not
		// have those.
		if err != nil && !isCode(err, InvalidValue) && first == nil {
			first = err
		}
		return int(int32(value))
	}
	total, err := cuDeviceTotalMem.get(out, d.handle)
	if err != nil {
		return Properties{}, err
	}
	// The numbers are cuda.h's CU_DEVICE_ATTRIBUTE_…
	p := Properties{
		MemoryBytes:          int64(total),
		SMs:                  ask(attributeSMs),
		Major:                ask(75),       // COMPUTE_CAPABILITY_MAJOR
		Minor:                ask(76),       // COMPUTE_CAPABILITY_MINOR
		ClockKHz:             ask(13),       // CLOCK_RATE
		ReadOnlyHostRegister: ask(113) != 0, // READ_ONLY_HOST_REGISTER_SUPPORTED
		HostPointer:          ask(91) != 0,  // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
		VirtualMemory:        ask(102) != 0, // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
		FileHandles:          ask(103) != 0, // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
		MPS:                  ask(133) != 0, // MPS_ENABLED
	}
	return p, first
}

// attributeSMs is CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
const attributeSMs = 16
