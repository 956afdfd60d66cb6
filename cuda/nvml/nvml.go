// Package nvml asks NVIDIA's management library how the GPUs are: their memory,
// their load, and whose processes are on them. It makes no CUDA context and
// changes nothing.
//
// The library (libnvidia-ml.so.1, which comes with the driver) is loaded at Open,
// by github.com/NVIDIA/go-nvml; nothing of it is needed to build. The environment
// variable PENSTOCK_LIBNVML names another file.
//
// fake, next door, is a Session without a GPU.
package nvml

import (
	"errors"
	"fmt"
)

// ErrUnavailable is returned by Open where there is no NVML: no library, no
// driver, or a build without cgo.
var ErrUnavailable = errors.New("no NVML")

// ErrNotSupported is returned for a question that this device or this driver does
// not answer.
var ErrNotSupported = errors.New("not supported")

// ErrNoDevice is returned for a UUID that no device has.
var ErrNoDevice = errors.New("no such device")

// Error is what the library refused: "nvmlDeviceGetMemoryInfo of GPU-…: ERROR_…".
type Error struct {
	Op   string // the library's function
	UUID string // of the device, where one was asked about
	Err  error
}

func (e *Error) Error() string {
	if e.UUID == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s of %s: %v", e.Op, e.UUID, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Session answers questions about the GPUs of this machine. Any goroutine may ask;
// an answer takes some tenths of a millisecond, and more while a device starts or
// recovers.
type Session interface {
	// Driver is the version of the kernel's driver, and the CUDA version that it
	// speaks at most (13000 is 13.0).
	Driver() (version string, cuda int, err error)
	// Devices lists the GPUs, in the order of their PCI addresses.
	Devices() ([]Device, error)
	// Usage is how the device is at this moment.
	Usage(uuid string) (Usage, error)
	// Processes lists the processes that hold a context on the device, the clients
	// of MPS and its server among them, each once, in the order of their ids.
	Processes(uuid string) ([]Process, error)
}

// Device is a GPU, whatever it does.
type Device struct {
	UUID string // "GPU-…"
	Name string
	// MemoryBytes is all of its memory.
	MemoryBytes int64
	ComputeMode ComputeMode
	// MIG: it is divided by hardware, and its UUID names no device that CUDA opens.
	MIG bool
}

// ComputeMode is who may make contexts on a device (nvmlComputeMode_t of nvml.h).
// It is root's to set; nothing here does.
type ComputeMode int

// The modes that there are.
const (
	Default          ComputeMode = 0
	exclusiveThread  ComputeMode = 1 // no longer offered by drivers
	Prohibited       ComputeMode = 2 // nobody
	ExclusiveProcess ComputeMode = 3 // one process; an MPS server is one
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
	// BusyPercent of the last sample period (a sixth of a second to a second) had a
	// kernel running; MemoryPercent had memory read or written.
	BusyPercent, MemoryPercent int
	// SMClockMHz is the clock of the multiprocessors; 0 where it is not told.
	SMClockMHz int
}

// Process is one that has a context on a device.
type Process struct {
	PID int
	// UsedBytes is the device memory that it holds; -1 where the driver does not
	// tell.
	UsedBytes int64
	// MPS: it is a client of an MPS server.
	MPS bool
}
