//go:build cgo

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Open starts the session of this process, once. Later calls return the same session,
// or the same error. The session stays open for ever, since starting one takes tens of
// milliseconds. Any goroutine may call it.
func Open() (Session, error) { return once() }

var once = sync.OnceValues(func() (Session, error) {
	l, err := Library()
	if err != nil {
		return nil, err
	}
	return newSession(l, libraryPath())
})

// Library returns the library that Open uses, loaded and initialised once. It is for
// callers that need more than a Session offers (cuda/mig). It calls the C library
// directly: calling a function that the driver lacks ends the process, so look it up
// first (Extensions).
func Library() (lib.Interface, error) { return loaded() }

var loaded = sync.OnceValues(func() (lib.Interface, error) { return load(libraryPath()) })

// defaultLibrary is the library's file name in a driver installation.
const defaultLibrary = "libnvidia-ml.so.1"

func libraryPath() string { return cmp.Or(os.Getenv("PENSTOCK_LIBNVML"), defaultLibrary) }

func open(path string) (Session, error) {
	l, err := load(path)
	if err != nil {
		return nil, err
	}
	return newSession(l, path)
}

func load(path string) (lib.Interface, error) {
	l := lib.New(lib.WithLibraryPath(path))
	switch ret := l.Init(); ret {
	case lib.SUCCESS:
	case lib.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: %s cannot be loaded; it comes with NVIDIA's driver", ErrUnavailable, path)
	default:
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, &Error{Op: "nvmlInit", Err: ret})
	}
	return l, nil
}

// newSession returns the session of a library that was loaded from path.
func newSession(l lib.Interface, path string) (Session, error) {
	s := &session{l: l}
	// go-nvml binds a function at its first call, and calling a function that the
	// driver lacks ends the process. So look up each function that is newer than the
	// oldest driver with the present MPS (Volta, 2017).
	hasSymbol := func(symbol string) bool { return l.Extensions().LookupSymbol(symbol) == nil }
	s.memory2 = hasSymbol("nvmlDeviceGetMemoryInfo_v2")
	s.mps = hasSymbol("nvmlDeviceGetMPSComputeRunningProcesses")
	s.mig = hasSymbol("nvmlDeviceGetMigMode")
	s.cuda2 = hasSymbol("nvmlSystemGetCudaDriverVersion_v2")
	s.instances = s.mig && hasSymbol("nvmlDeviceGetMigDeviceHandleByIndex") && hasSymbol("nvmlDeviceGetAttributes_v2")
	for _, symbol := range []string{"nvmlDeviceGetCount_v2", "nvmlDeviceGetComputeRunningProcesses"} {
		if !hasSymbol(symbol) {
			return nil, fmt.Errorf("%w: %s has no %s", ErrUnavailable, path, symbol)
		}
	}
	return s, nil
}

type session struct {
	l lib.Interface
	// The driver has these newer functions.
	memory2, mps, mig, cuda2, instances bool
}

// refused turns the library's return value into an error.
func refused(op, uuid string, ret lib.Return) error {
	switch ret {
	case lib.SUCCESS:
		return nil
	case lib.ERROR_NOT_SUPPORTED, lib.ERROR_FUNCTION_NOT_FOUND:
		return &Error{op, uuid, fmt.Errorf("%w (%w)", ErrNotSupported, ret)}
	case lib.ERROR_NOT_FOUND:
		return &Error{op, uuid, fmt.Errorf("%w (%w)", ErrNoDevice, ret)}
	case lib.ERROR_GPU_IS_LOST, lib.ERROR_RESET_REQUIRED:
		return &Error{op, uuid, fmt.Errorf("%w (%w)", ErrLost, ret)}
	}
	return &Error{op, uuid, ret}
}

func (s *session) Driver() (string, int, error) {
	version, ret := s.l.SystemGetDriverVersion()
	if err := refused("nvmlSystemGetDriverVersion", "", ret); err != nil {
		return "", 0, err
	}
	if !s.cuda2 {
		return version, 0, nil
	}
	cuda, ret := s.l.SystemGetCudaDriverVersion_v2()
	return version, cuda, refused("nvmlSystemGetCudaDriverVersion", "", ret)
}

func (s *session) Devices() (devices []Device, err error) {
	err = s.each(func(h lib.Device) error {
		d, err := s.device(h)
		if err == nil {
			devices = append(devices, d)
		}
		return err
	})
	return devices, err
}

// each calls f for each GPU that works and that this process may use.
func (s *session) each(f func(lib.Device) error) error {
	n, ret := s.l.DeviceGetCount()
	if err := refused("nvmlDeviceGetCount", "", ret); err != nil {
		return err
	}
	for i := range n {
		h, ret := s.l.DeviceGetHandleByIndex(i)
		if ret == lib.ERROR_NO_PERMISSION || ret == lib.ERROR_GPU_IS_LOST {
			continue // in a container, a GPU may be visible and not permitted
		}
		if err := refused("nvmlDeviceGetHandleByIndex", "", ret); err != nil {
			return err
		}
		if err := f(h); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) Instances() (list []Instance, err error) {
	if !s.instances {
		return nil, nil
	}
	err = s.each(func(h lib.Device) error {
		d, err := s.device(h)
		if err != nil || !d.MIG {
			return err
		}
		n, ret := h.GetMaxMigDeviceCount()
		if err := refused("nvmlDeviceGetMaxMigDeviceCount", d.UUID, ret); err != nil {
			return err
		}
		for i := range n {
			h, ret := h.GetMigDeviceHandleByIndex(i)
			if ret == lib.ERROR_NOT_FOUND {
				continue // the GPU is divided into fewer
			}
			if err := refused("nvmlDeviceGetMigDeviceHandleByIndex", d.UUID, ret); err != nil {
				return err
			}
			in, err := s.instance(h, d)
			if err != nil {
				return err
			}
			list = append(list, in)
		}
		return nil
	})
	return list, err
}

// instance describes an instance of a GPU.
func (s *session) instance(h lib.Device, gpu Device) (Instance, error) {
	in := Instance{GPU: gpu.UUID}
	var ret lib.Return
	if in.UUID, ret = h.GetUUID(); ret != lib.SUCCESS {
		return in, refused("nvmlDeviceGetUUID", gpu.UUID, ret)
	}
	a, ret := h.GetAttributes()
	if err := refused("nvmlDeviceGetAttributes", in.UUID, ret); err != nil {
		return in, err
	}
	in.SMs, in.MemoryBytes = int(a.MultiprocessorCount), int64(a.MemorySizeMB)<<20
	// A driver may name the GPU only.
	if in.Name, ret = h.GetName(); ret != lib.SUCCESS || !strings.Contains(in.Name, MIGName) {
		in.Name = fmt.Sprintf("%s%s%dg.%dgb", gpu.Name, MIGName, a.GpuInstanceSliceCount, a.MemorySizeMB>>10)
	}
	return in, nil
}

func (s *session) device(h lib.Device) (Device, error) {
	var d Device
	var ret lib.Return
	if d.UUID, ret = h.GetUUID(); ret != lib.SUCCESS {
		return d, refused("nvmlDeviceGetUUID", "", ret)
	}
	if d.Name, ret = h.GetName(); ret != lib.SUCCESS {
		return d, refused("nvmlDeviceGetName", d.UUID, ret)
	}
	mode, ret := h.GetComputeMode()
	if ret != lib.SUCCESS && ret != lib.ERROR_NOT_SUPPORTED {
		return d, refused("nvmlDeviceGetComputeMode", d.UUID, ret)
	}
	d.ComputeMode = ComputeMode(mode)
	if s.mig {
		on, _, ret := h.GetMigMode()
		if ret != lib.SUCCESS && ret != lib.ERROR_NOT_SUPPORTED {
			return d, refused("nvmlDeviceGetMigMode", d.UUID, ret)
		}
		d.MIG = ret == lib.SUCCESS && on == lib.DEVICE_MIG_ENABLE
	}
	u, err := s.memory(h, d.UUID)
	d.MemoryBytes = u.TotalBytes
	return d, err
}

func (s *session) find(uuid string) (lib.Device, error) {
	h, ret := s.l.DeviceGetHandleByUUID(uuid)
	if ret == lib.ERROR_INVALID_ARGUMENT { // the library's code for an unknown UUID
		ret = lib.ERROR_NOT_FOUND
	}
	return h, refused("nvmlDeviceGetHandleByUUID", uuid, ret)
}

func (s *session) memory(h lib.Device, uuid string) (Usage, error) {
	if s.memory2 {
		// Like nvidia-smi, the newer function does not count the driver's own memory as
		// used.
		m, ret := h.GetMemoryInfo_v2()
		if ret == lib.SUCCESS {
			return Usage{UsedBytes: int64(m.Used), FreeBytes: int64(m.Free), TotalBytes: int64(m.Total)}, nil
		}
		if ret != lib.ERROR_ARGUMENT_VERSION_MISMATCH && ret != lib.ERROR_NOT_SUPPORTED {
			return Usage{}, refused("nvmlDeviceGetMemoryInfo_v2", uuid, ret)
		}
	}
	m, ret := h.GetMemoryInfo()
	return Usage{UsedBytes: int64(m.Used), FreeBytes: int64(m.Free), TotalBytes: int64(m.Total)},
		refused("nvmlDeviceGetMemoryInfo", uuid, ret)
}

func (s *session) Usage(uuid string) (Usage, error) {
	h, err := s.find(uuid)
	if err != nil {
		return Usage{}, err
	}
	u, err := s.memory(h, uuid)
	if err != nil {
		return Usage{}, err
	}
	load, ret := h.GetUtilizationRates()
	if ret != lib.ERROR_NOT_SUPPORTED { // happens under MIG
		if err := refused("nvmlDeviceGetUtilizationRates", uuid, ret); err != nil {
			return u, err
		}
		u.BusyPercent = int(load.Gpu)
	}
	return u, nil
}

// unknownMemory is the library's value for unknown memory of a process
// (NVML_VALUE_NOT_AVAILABLE of nvml.h).
const unknownMemory = ^uint64(0)

func (s *session) Processes(uuid string) ([]Process, error) {
	h, err := s.find(uuid)
	if err != nil {
		return nil, err
	}
	found := map[int]Process{}
	add := func(list []lib.ProcessInfo, mps bool) {
		for _, p := range list {
			q := Process{PID: int(p.Pid), UsedBytes: -1, MPS: mps}
			if p.UsedGpuMemory != unknownMemory {
				q.UsedBytes = int64(p.UsedGpuMemory)
			}
			found[q.PID] = q // a process in both lists is a client: the second list wins
		}
	}
	list, ret := h.GetComputeRunningProcesses()
	if ret == lib.ERROR_NOT_SUPPORTED && IsInstance(uuid) {
		return nil, nil
	}
	if err := refused("nvmlDeviceGetComputeRunningProcesses", uuid, ret); err != nil {
		return nil, err
	}
	add(list, false)
	if s.mps {
		list, ret := h.GetMPSComputeRunningProcesses()
		err := refused("nvmlDeviceGetMPSComputeRunningProcesses", uuid, ret)
		if err != nil && !errors.Is(err, ErrNotSupported) {
			return nil, err
		}
		add(list, true)
	}
	processes := make([]Process, 0, len(found))
	for _, p := range found {
		processes = append(processes, p)
	}
	slices.SortFunc(processes, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	return processes, nil
}
