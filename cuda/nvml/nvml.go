// Package nvml asks NVIDIA's management library about the GPUs: their memory, their
// load, and the processes on them. It makes no CUDA context and changes nothing.
//
// Open loads the library (libnvidia-ml.so.1, which comes with the driver) through
// github.com/NVIDIA/go-nvml. The build needs no part of it. The environment variable
// PENSTOCK_LIBNVML names another file.
//
// Package fake is a Session without a GPU.
package nvml

import (
	"errors"
	"fmt"
	"strings"
)

// ErrUnavailable is returned by Open if there is no NVML: no library, no driver, or a
// build without cgo.
var ErrUnavailable = errors.New("no NVML")

// ErrNotSupported is returned for a query that this device or this driver does not
// support.
var ErrNotSupported = errors.New("not supported")

// ErrNoDevice is returned for a UUID that no device has.
var ErrNoDevice = errors.New("no such device")

// ErrLost is returned for a device that has fallen off the bus, or must be reset.
var ErrLost = errors.New("the device is lost")

// Error is a refused call: "nvmlDeviceGetMemoryInfo of GPU-…: ERROR_…".
type Error struct {
	Op   string // the library's function
	UUID string // the device that the call was about, if any
	Err  error
}

func (e *Error) Error() string {
	if e.UUID == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s of %s: %v", e.Op, e.UUID, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Session answers queries about the GPUs of this machine. Any goroutine may call its
// methods. An answer takes some tenths of a millisecond, and longer while a device
// starts or recovers.
type Session interface {
	// Driver returns the version of the kernel's driver, and the newest CUDA version
	// that it supports (13000 is 13.0).
	Driver() (version string, cuda int, err error)
	// Devices lists the GPUs that work, in the order of their PCI addresses.
	Devices() ([]Device, error)
	// Instances lists the MIG instances, in the order of their GPUs. A driver without MIG has none.
	Instances() ([]Instance, error)
	// Usage returns the present memory and load of a GPU or of an instance, whose load the driver does not report.
	Usage(uuid string) (Usage, error)
	// Processes lists the processes that hold a context on the device, in the order of
	// their ids, each once. It includes the clients of MPS and the MPS server. For an instance, a driver may list none,
	// and not know their memory.
	Processes(uuid string) ([]Process, error)
}

// Device has the static properties of a GPU.
type Device struct {
	UUID string // "GPU-…"
	Name string
	// MemoryBytes is its total memory.
	MemoryBytes int64
	ComputeMode ComputeMode
	// MIG: the GPU is divided by hardware, and CUDA cannot open a device by its UUID.
	MIG bool
}

// Instance is a part of a GPU in MIG mode. A process uses it as a separate device.
type Instance struct {
	UUID string // "MIG-…"
	GPU  string // the UUID of its GPU
	// Name is the GPU's with the profile of the instance: "NVIDIA H200 MIG 3g.71gb".
	Name        string
	SMs         int
	MemoryBytes int64
}

// MIGName separates the name of a GPU from that of the profile in the name of an instance. CUDA uses the same names.
const MIGName = " MIG "

// IsInstance reports whether a UUID is that of a MIG instance.
func IsInstance(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// FindInstance returns the instance with a UUID, or with a unique prefix of one.
func FindInstance(s Session, name string) (Instance, error) {
	all, err := s.Instances()
	if err != nil {
		return Instance{}, err
	}
	var found []Instance
	var there []string
	for _, in := range all {
		there = append(there, fmt.Sprintf("%s (%s)", in.UUID, in.Name))
		if len(name) <= len(in.UUID) && strings.EqualFold(in.UUID[:len(name)], name) {
			found = append(found, in)
		}
	}
	switch {
	case len(all) == 0:
		return Instance{}, fmt.Errorf("%w %q: this machine has no MIG instance", ErrNoDevice, name)
	case len(found) != 1:
		return Instance{}, fmt.Errorf("%w %q: %d MIG instances begin so; there is %s", ErrNoDevice, name, len(found), strings.Join(there, ", "))
	}
	return found[0], nil
}

// ComputeMode says which processes may make contexts on a device (nvmlComputeMode_t of
// nvml.h). Only root can set it, and Penstock never does.
type ComputeMode int

const (
	Default          ComputeMode = 0
	exclusiveThread  ComputeMode = 1 // no longer offered by drivers
	Prohibited       ComputeMode = 2 // no process
	ExclusiveProcess ComputeMode = 3 // one process, such as an MPS server
)

func (m ComputeMode) String() string {
	switch m {
	case Default:
		return "default"
	case exclusiveThread:
		return "exclusive thread"
	case Prohibited:
		return "prohibited"
	case ExclusiveProcess:
		return "exclusive process"
	}
	return fmt.Sprintf("compute mode %d", int(m))
}

// Usage is a device's memory and load.
type Usage struct {
	UsedBytes, FreeBytes, TotalBytes int64
	// BusyPercent is the part of the last sample period (a sixth of a second to a
	// second) in which a kernel ran.
	BusyPercent int
}

// Process is a process that has a context on a device.
type Process struct {
	PID int
	// UsedBytes is the device memory that it holds; -1 if the driver does not report
	// it.
	UsedBytes int64
	// MPS: it is a client of an MPS server.
	MPS bool
}
