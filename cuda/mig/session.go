//go:build cgo

package mig

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/penstock/penstock/cuda/nvml"
)

// Open returns the session of this machine's driver. If there is no driver, or none
// that supports MIG, the error wraps nvml.ErrUnavailable.
func Open() (Session, error) {
	l, err := nvml.Library()
	if err != nil {
		return nil, err
	}
	return Over(l)
}

// functions are the NVML functions that a session calls. The newest came with driver
// 470 (R470's nvml.h has it, R460's does not).
var functions = []string{
	"nvmlDeviceGetCount_v2",
	"nvmlDeviceGetMigMode",
	"nvmlDeviceGetGpuInstanceProfileInfo",
	"nvmlDeviceGetGpuInstancePossiblePlacements_v2",
	"nvmlDeviceGetGpuInstances",
	"nvmlDeviceCreateGpuInstanceWithPlacement",
	"nvmlGpuInstanceGetInfo",
	"nvmlGpuInstanceDestroy",
	"nvmlGpuInstanceGetComputeInstanceProfileInfo",
	"nvmlGpuInstanceGetComputeInstances",
	"nvmlGpuInstanceCreateComputeInstance",
	"nvmlComputeInstanceGetInfo_v2",
	"nvmlComputeInstanceDestroy",
	"nvmlDeviceGetMaxMigDeviceCount",
	"nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId",
	"nvmlDeviceGetComputeRunningProcesses",
}

// Over returns a session over an initialised library, or over one of go-nvml's mock
// servers. The caller still owns the library.
func Over(l lib.Interface) (Session, error) {
	for _, f := range functions {
		if err := l.Extensions().LookupSymbol(f); err != nil {
			return nil, fmt.Errorf("%w with MIG: the driver's library has no %s; install driver 470 or newer", nvml.ErrUnavailable, f)
		}
	}
	return &session{l: l}, nil
}

type session struct{ l lib.Interface }

// refused converts the library's return value to an error, nil for success.
func refused(op, uuid string, ret lib.Return) error {
	switch ret {
	case lib.SUCCESS:
		return nil
	case lib.ERROR_NO_PERMISSION:
		return &nvml.Error{Op: op, UUID: uuid, Err: fmt.Errorf("%w: only root can change MIG instances; run as root, or with CAP_SYS_ADMIN", ret)}
	case lib.ERROR_NOT_SUPPORTED, lib.ERROR_FUNCTION_NOT_FOUND:
		return &nvml.Error{Op: op, UUID: uuid, Err: fmt.Errorf("%w (%w)", nvml.ErrNotSupported, ret)}
	}
	return &nvml.Error{Op: op, UUID: uuid, Err: ret}
}

func (s *session) GPUs() ([]GPU, error) {
	n, ret := s.l.DeviceGetCount()
	if err := refused("nvmlDeviceGetCount", "", ret); err != nil {
		return nil, err
	}
	var gpus []GPU
	for i := range n {
		d, ret := s.l.DeviceGetHandleByIndex(i)
		if ret == lib.ERROR_NO_PERMISSION {
			continue // this container sees the GPU but may not use it
		}
		if err := refused("nvmlDeviceGetHandleByIndex", "", ret); err != nil {
			return nil, err
		}
		g, err := readGPU(d, i)
		if errors.Is(err, nvml.ErrNotSupported) {
			continue // it has no MIG
		}
		if err != nil {
			return nil, err
		}
		gpus = append(gpus, g)
	}
	return gpus, nil
}

// readGPU reads a GPU's placement table and its instances.
func readGPU(d lib.Device, index int) (GPU, error) {
	g := GPU{Index: index}
	var ret lib.Return
	if g.UUID, ret = d.GetUUID(); ret != lib.SUCCESS {
		return g, refused("nvmlDeviceGetUUID", "", ret)
	}
	if g.Name, ret = d.GetName(); ret != lib.SUCCESS {
		return g, refused("nvmlDeviceGetName", g.UUID, ret)
	}
	mode, _, ret := d.GetMigMode()
	if err := refused("nvmlDeviceGetMigMode", g.UUID, ret); err != nil {
		return g, err
	}
	g.MIG = mode == lib.DEVICE_MIG_ENABLE
	memory, ret := d.GetMemoryInfo()
	if err := refused("nvmlDeviceGetMemoryInfo", g.UUID, ret); err != nil {
		return g, err
	}
	for number := range lib.GPU_INSTANCE_PROFILE_COUNT {
		if err := g.readProfile(d, number, memory.Total); err != nil {
			return g, err
		}
	}
	slices.SortFunc(g.Instances, func(a, b Instance) int { return a.Start - b.Start })
	if g.MIG {
		return g, g.readDevices(d)
	}
	return g, nil
}

// readDevices adds the UUIDs of instances, and the processes in them.
func (g *GPU) readDevices(d lib.Device) error {
	instance := func(id int) *Instance {
		if at := slices.IndexFunc(g.Instances, func(i Instance) bool { return i.ID == id }); at >= 0 {
			return &g.Instances[at]
		}
		return &Instance{} // another program has just made it
	}
	most, ret := d.GetMaxMigDeviceCount()
	if err := refused("nvmlDeviceGetMaxMigDeviceCount", g.UUID, ret); err != nil {
		return err
	}
	for i := range most {
		h, ret := d.GetMigDeviceHandleByIndex(i)
		if ret == lib.ERROR_NOT_FOUND || ret == lib.ERROR_INVALID_ARGUMENT {
			continue // fewer than the max
		}
		if err := refused("nvmlDeviceGetMigDeviceHandleByIndex", g.UUID, ret); err != nil {
			return err
		}
		id, ret := h.GetGpuInstanceId()
		if err := refused("nvmlDeviceGetGpuInstanceId", g.UUID, ret); err != nil {
			return err
		}
		if in := instance(id); len(in.Compute) == 1 {
			if in.UUID, ret = h.GetUUID(); ret != lib.SUCCESS {
				return refused("nvmlDeviceGetUUID", g.UUID, ret)
			}
		}
	}
	processes, ret := d.GetComputeRunningProcesses()
	if err := refused("nvmlDeviceGetComputeRunningProcesses", g.UUID, ret); err != nil {
		return err
	}
	for _, p := range processes {
		in := instance(int(p.GpuInstanceId))
		in.PIDs = append(in.PIDs, int(p.Pid))
	}
	return nil
}

// readProfile adds a profile, if the GPU has it, and its instances.
func (g *GPU) readProfile(d lib.Device, number int, memory uint64) error {
	info, ret := d.GetGpuInstanceProfileInfo(number)
	if ret == lib.ERROR_NOT_SUPPORTED || ret == lib.ERROR_INVALID_ARGUMENT {
		return nil // not on this GPU, or newer than the driver
	}
	if err := refused("nvmlDeviceGetGpuInstanceProfileInfo", g.UUID, ret); err != nil {
		return err
	}
	p, err := profile(d, g.UUID, number, info, memory)
	if err != nil {
		return err
	}
	g.Profiles = append(g.Profiles, p)
	if !g.MIG {
		return nil
	}
	found, err := instances(d, g.UUID, p, info)
	if err != nil {
		return err
	}
	for _, i := range found {
		// Two numbers may name the same profile. Count each instance once.
		if !slices.ContainsFunc(g.Instances, func(j Instance) bool { return j.ID == i.ID }) {
			g.Instances = append(g.Instances, i)
		}
	}
	return nil
}

func profile(d lib.Device, uuid string, number int, info lib.GpuInstanceProfileInfo, memory uint64) (Profile, error) {
	p := Profile{Name: profileName(number, info, memory), Number: number, Slices: int(info.SliceCount)}
	places, ret := d.GetGpuInstancePossiblePlacements(&info)
	if err := refused("nvmlDeviceGetGpuInstancePossiblePlacements", uuid, ret); err != nil {
		return p, err
	}
	for _, at := range places {
		p.Size = int(at.Size) // one size per profile
		p.Starts = append(p.Starts, int(at.Start))
	}
	slices.Sort(p.Starts)
	return p, nil
}

// suffixes are for profiles that have a plain twin with as many slices. They have media
// engines, support graphics, have no media engines, or have all of them (NVIDIA MIG
// User Guide, profile names; the numbers are from nvml.h). REV2 has more memory
// instead, which its name shows.
var suffixes = map[int]string{
	lib.GPU_INSTANCE_PROFILE_1_SLICE_REV1:   "+me",
	lib.GPU_INSTANCE_PROFILE_2_SLICE_REV1:   "+me",
	lib.GPU_INSTANCE_PROFILE_1_SLICE_GFX:    "+gfx",
	lib.GPU_INSTANCE_PROFILE_2_SLICE_GFX:    "+gfx",
	lib.GPU_INSTANCE_PROFILE_4_SLICE_GFX:    "+gfx",
	lib.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME:  "-me",
	lib.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME:  "-me",
	lib.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
	lib.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}

// profileName returns nvidia-smi's name of a profile. The gigabytes in it are not the
// instance's memory (1g.18gb of an H200 has 16 GiB). They are the number of eighths of
// the GPU's memory that cover it, rounded: 18 of 141.
func profileName(number int, info lib.GpuInstanceProfileInfo, memory uint64) string {
	const eighths, mib, gib = 8, 1 << 20, 1 << 30
	share := math.Ceil(float64(info.MemorySizeMB)*mib/float64(memory)*eighths) / eighths
	whole := math.Ceil(float64(memory) / gib)
	return fmt.Sprintf("%dg.%.0fgb%s", info.SliceCount, math.Floor(share*whole+0.5), suffixes[number])
}

// instances lists the GPU instances of one profile, ascending by id.
func instances(d lib.Device, uuid string, p Profile, info lib.GpuInstanceProfileInfo) ([]Instance, error) {
	handles, ret := d.GetGpuInstances(&info)
	if err := refused("nvmlDeviceGetGpuInstances", uuid, ret); err != nil {
		return nil, err
	}
	var list []Instance
	for _, h := range handles {
		it, ret := h.GetInfo()
		if err := refused("nvmlGpuInstanceGetInfo", uuid, ret); err != nil {
			return nil, err
		}
		i := Instance{ID: int(it.Id), Profile: p.Name, Slices: p.Slices, Start: int(it.Placement.Start), Size: int(it.Placement.Size)}
		computes, err := computes(h, uuid)
		if err != nil {
			return nil, err
		}
		for _, c := range computes {
			i.Compute = append(i.Compute, c.Compute)
		}
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b Instance) int { return a.ID - b.ID })
	return list, nil
}

// compute is a compute instance and the library's handle for it.
type compute struct {
	Compute
	handle lib.ComputeInstance
}

// computes lists the compute instances of a GPU instance, ascending by id.
func computes(h lib.GpuInstance, uuid string) ([]compute, error) {
	var list []compute
	for number := range lib.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := h.GetComputeInstanceProfileInfo(number, lib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == lib.ERROR_NOT_SUPPORTED || ret == lib.ERROR_INVALID_ARGUMENT {
			continue
		}
		if err := refused("nvmlGpuInstanceGetComputeInstanceProfileInfo", uuid, ret); err != nil {
			return nil, err
		}
		handles, ret := h.GetComputeInstances(&info)
		if err := refused("nvmlGpuInstanceGetComputeInstances", uuid, ret); err != nil {
			return nil, err
		}
		for _, c := range handles {
			it, ret := c.GetInfo()
			if err := refused("nvmlComputeInstanceGetInfo", uuid, ret); err != nil {
				return nil, err
			}
			id := int(it.Id)
			if !slices.ContainsFunc(list, func(other compute) bool { return other.ID == id }) {
				list = append(list, compute{Compute{ID: id, Slices: int(info.SliceCount)}, c})
			}
		}
	}
	slices.SortFunc(list, func(a, b compute) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

func (s *session) Take(step Step) error {
	if err := s.take(step); err != nil {
		return fmt.Errorf("%v: %w", step, err)
	}
	return nil
}

func (s *session) take(step Step) error {
	if step.Op == EnableMode {
		return ErrMode
	}
	d, ret := s.l.DeviceGetHandleByUUID(step.GPU)
	if err := refused("nvmlDeviceGetHandleByUUID", step.GPU, ret); err != nil {
		return err
	}
	info, ret := d.GetGpuInstanceProfileInfo(step.Number)
	if err := refused("nvmlDeviceGetGpuInstanceProfileInfo", step.GPU, ret); err != nil {
		return err
	}
	if step.Op == CreateInstance {
		return create(d, step, info)
	}
	h, err := find(d, step, info)
	if err != nil {
		return err
	}
	switch step.Op {
	case DestroyInstance:
		return inUse(refused("nvmlGpuInstanceDestroy", step.GPU, h.Destroy()))
	case CreateCompute:
		return createCompute(h, step)
	case DestroyCompute:
		return destroyCompute(h, step)
	}
	return fmt.Errorf("no such step")
}

// create makes a GPU instance. NVML reports only that resources are missing, whatever
// the cause, so create looks up which instance is in the way.
func create(d lib.Device, step Step, info lib.GpuInstanceProfileInfo) error {
	at := lib.GpuInstancePlacement{Start: uint32(step.Start), Size: uint32(step.Size)}
	_, ret := d.CreateGpuInstanceWithPlacement(&info, &at)
	err := refused("nvmlDeviceCreateGpuInstanceWithPlacement", step.GPU, ret)
	switch ret {
	case lib.SUCCESS:
		return nil
	case lib.ERROR_INVALID_ARGUMENT, lib.ERROR_INSUFFICIENT_RESOURCES:
	default:
		return err
	}
	g, lookErr := readGPU(d, step.Index)
	if lookErr != nil {
		return err
	}
	for _, p := range g.Profiles {
		if p.Number == step.Number && !slices.Contains(p.Starts, step.Start) {
			return fmt.Errorf("%w; %w: it can start at %s", err, ErrPlacement, list(p.Starts))
		}
	}
	for _, i := range g.Instances {
		if i.Start < step.Start+step.Size && step.Start < i.Start+i.Size {
			return fmt.Errorf("%w; %s lies in %s: another program has cut this GPU; list it again", err, i.Profile, slots(i.Start, i.Size))
		}
	}
	return err
}

// find returns the GPU instance of a step: the one of its profile that starts there.
func find(d lib.Device, step Step, info lib.GpuInstanceProfileInfo) (lib.GpuInstance, error) {
	handles, ret := d.GetGpuInstances(&info)
	if err := refused("nvmlDeviceGetGpuInstances", step.GPU, ret); err != nil {
		return nil, err
	}
	for _, h := range handles {
		it, ret := h.GetInfo()
		if err := refused("nvmlGpuInstanceGetInfo", step.GPU, ret); err != nil {
			return nil, err
		}
		if int(it.Placement.Start) == step.Start {
			return h, nil
		}
	}
	return nil, fmt.Errorf("there is none: another program has changed this GPU; list it again")
}

func createCompute(h lib.GpuInstance, step Step) error {
	for number := range lib.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := h.GetComputeInstanceProfileInfo(number, lib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret != lib.SUCCESS || int(info.SliceCount) != step.Compute.Slices {
			continue
		}
		_, ret = h.CreateComputeInstance(&info)
		return refused("nvmlGpuInstanceCreateComputeInstance", step.GPU, ret)
	}
	return fmt.Errorf("no compute profile of %s in it", computeSlices(step.Compute.Slices))
}

func destroyCompute(h lib.GpuInstance, step Step) error {
	list, err := computes(h, step.GPU)
	if err != nil {
		return err
	}
	for _, c := range list {
		if c.ID == step.Compute.ID {
			return inUse(refused("nvmlComputeInstanceDestroy", step.GPU, c.handle.Destroy()))
		}
	}
	return fmt.Errorf("there is none: another program has changed this GPU; list it again")
}

// inUse adds a hint to an error that a process causes.
func inUse(err error) error {
	if errors.Is(err, lib.ERROR_IN_USE) {
		return fmt.Errorf("%w: %w; end the process (nvidia-smi lists it) and apply again", err, ErrInUse)
	}
	return err
}
