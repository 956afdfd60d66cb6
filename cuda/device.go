package cuda

import (
	"fmt"
	"strconv"
	"strings"
)

// Device is one GPU that this process can see. It is a plain value: it holds
// nothing open, and two of the same GPU are equal.
type Device struct {
	ordinal int
	handle  int32
	uuid    string
	name    string
}

// Devices lists the GPUs that this process can see (CUDA_VISIBLE_DEVICES), in the
// driver's order. It makes no context. Any goroutine.
func Devices() ([]Device, error) {
	if err := Open(); err != nil {
		return nil, err
	}
	count, code := deviceCount()
	if err := check("cuDeviceGetCount", code); err != nil {
		return nil, err
	}
	devices := make([]Device, count)
	for i := range devices {
		handle, code := deviceHandle(i)
		if err := check("cuDeviceGet", code); err != nil {
			return nil, err
		}
		uuid, code := deviceUUID(handle)
		if err := check("cuDeviceGetUuid_v2", code); err != nil {
			return nil, err
		}
		name, code := deviceName(handle)
		if err := check("cuDeviceGetName", code); err != nil {
			return nil, err
		}
		devices[i] = Device{ordinal: i, handle: handle, name: name, uuid: fmt.Sprintf("GPU-%x-%x-%x-%x-%x",
			uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])}
	}
	return devices, nil
}

// Find returns the device of a name: "cuda" is the first, "cuda:1" the second, and
// any other name is a UUID, "GPU-…", or the beginning of just one. The error where
// there is none, which is ErrNoDevice, lists what there is.
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

// Ordinal is the device's place among those that this process can see.
func (d Device) Ordinal() int { return d.ordinal }

// UUID names the GPU in every process: "GPU-" and 32 hexadecimal digits in five
// groups, as nvidia-smi writes it.
func (d Device) UUID() string { return d.uuid }

// Name is the product: "NVIDIA H200".
func (d Device) Name() string { return d.name }

// String is like "cuda:0 GPU-… (NVIDIA H200)".
func (d Device) String() string { return fmt.Sprintf("cuda:%d %s (%s)", d.ordinal, d.uuid, d.name) }

// Properties are what a device is and can do.
type Properties struct {
	// SMs counts the multiprocessors that this process sees: all of the device's,
	// or under MPS those of its percentage.
	SMs         int
	MemoryBytes int64
	// Major and Minor are the compute capability: 9.0 on Hopper.
	Major, Minor int
	L2Bytes      int
	// ThreadsPerSM is how many threads can be resident on one multiprocessor.
	ThreadsPerSM int
	// ClockKHz is the highest clock of the multiprocessors.
	ClockKHz int
	// CanMapHost says that kernels can read pinned host memory.
	CanMapHost bool
	// UnifiedAddressing says that an address means the same on both sides.
	UnifiedAddressing bool
	// HostRegister says that Register works, ReadOnlyHostRegister that it works on
	// read-only mappings, HostPointer that registered memory has the same address
	// on both sides.
	HostRegister, ReadOnlyHostRegister, HostPointer bool
	// PageableAccess says that kernels can read host memory that nobody registered.
	PageableAccess bool
	// VirtualMemory says that Arena works, FileHandles that it can be exported.
	VirtualMemory, FileHandles bool
	// MPS says that contexts of this process are clients of an MPS server.
	MPS bool
}

// Properties asks the driver. It makes no context. Any goroutine.
func (d Device) Properties() (Properties, error) {
	if err := Open(); err != nil {
		return Properties{}, err
	}
	var first error
	ask := func(attribute int32) int {
		value, code := deviceAttribute(d.handle, attribute)
		// A driver refuses attributes that are younger than itself: those the
		// device does not have.
		if err := check("cuDeviceGetAttribute", code); err != nil && Code(code) != InvalidValue && first == nil {
			first = err
		}
		return int(value)
	}
	memory, code := deviceMemory(d.handle)
	if err := check("cuDeviceTotalMem_v2", code); err != nil {
		return Properties{}, err
	}
	// The numbers are cuda.h's CU_DEVICE_ATTRIBUTE_…
	p := Properties{
		MemoryBytes:          int64(memory),
		SMs:                  ask(attributeSMs),
		Major:                ask(75),       // COMPUTE_CAPABILITY_MAJOR
		Minor:                ask(76),       // COMPUTE_CAPABILITY_MINOR
		L2Bytes:              ask(38),       // L2_CACHE_SIZE
		ThreadsPerSM:         ask(39),       // MAX_THREADS_PER_MULTIPROCESSOR
		ClockKHz:             ask(13),       // CLOCK_RATE
		CanMapHost:           ask(19) != 0,  // CAN_MAP_HOST_MEMORY
		UnifiedAddressing:    ask(41) != 0,  // UNIFIED_ADDRESSING
		HostRegister:         ask(99) != 0,  // HOST_REGISTER_SUPPORTED
		ReadOnlyHostRegister: ask(113) != 0, // READ_ONLY_HOST_REGISTER_SUPPORTED
		HostPointer:          ask(91) != 0,  // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
		PageableAccess:       ask(88) != 0,  // PAGEABLE_MEMORY_ACCESS
		VirtualMemory:        ask(102) != 0, // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
		FileHandles:          ask(103) != 0, // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
		MPS:                  ask(133) != 0, // MPS_ENABLED
	}
	return p, first
}

// attributeSMs is CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
const attributeSMs = 16
