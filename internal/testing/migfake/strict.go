//go:build cgo

package migfake

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ids maps the numbers of an A100's profiles to their Ids, as nvidia-smi mig -lgip
// prints them (NVIDIA MIG User Guide).
var ids = map[int]uint32{
	lib.GPU_INSTANCE_PROFILE_1_SLICE:      19,
	lib.GPU_INSTANCE_PROFILE_1_SLICE_REV1: 20,
	lib.GPU_INSTANCE_PROFILE_1_SLICE_REV2: 15,
	lib.GPU_INSTANCE_PROFILE_2_SLICE:      14,
	lib.GPU_INSTANCE_PROFILE_3_SLICE:      9,
	lib.GPU_INSTANCE_PROFILE_4_SLICE:      5,
	lib.GPU_INSTANCE_PROFILE_7_SLICE:      0,
}

// computeSlices is the number of compute slices of a GPU (A100, H100, H200: 7).
const computeSlices = 7

// Server is a mock server that refuses calls. Any goroutine may use it.
type Server struct {
	lib.Interface

	mu      sync.Mutex
	devices []*device
	calls   int
	failAt  map[int]lib.Return
	powers  bool // may change instances, as root may
}

// Over makes a mock server refuse. Afterwards only the Server may change the mock.
func Over(mock lib.Interface) *Server {
	s := &Server{Interface: mock, failAt: map[int]lib.Return{}, powers: true}
	n, ret := mock.DeviceGetCount()
	if ret != lib.SUCCESS {
		panic("strict: the mock does not count its devices: " + ret.Error())
	}
	for i := range n {
		d, ret := mock.DeviceGetHandleByIndex(i)
		if ret != lib.SUCCESS {
			panic("strict: the mock does not give a device: " + ret.Error())
		}
		s.devices = append(s.devices, &device{Device: d, server: s})
	}
	return s
}

// FailAt makes the n-th call from now that would create or destroy something fail
// with ret; 1 is the next.
func (s *Server) FailAt(n int, ret lib.Return) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failAt[s.calls+n] = ret
}

// Changes returns how many calls have created or destroyed something, or have
// tried to.
func (s *Server) Changes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Demote removes root's rights: the server refuses all calls that list or change
// instances.
func (s *Server) Demote() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.powers = false
}

// Run starts or ends a process in the instance that starts at a slot of a device.
func (s *Server) Run(device, start int, runs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.devices[device].instances {
		if int(g.info.Placement.Start) == start {
			g.busy = runs
		}
	}
}

// grantedLocked counts a change. It returns the error that a test has set for this
// call, if any.
func (s *Server) grantedLocked() lib.Return {
	s.calls++
	if !s.powers {
		return lib.ERROR_NO_PERMISSION
	}
	return s.failAt[s.calls] // SUCCESS if there is none
}

// DeviceGetHandleByIndex returns the refusing device.
func (s *Server) DeviceGetHandleByIndex(i int) (lib.Device, lib.Return) {
	if i < 0 || i >= len(s.devices) {
		return nil, lib.ERROR_INVALID_ARGUMENT
	}
	return s.devices[i], lib.SUCCESS
}

// DeviceGetHandleByUUID returns the refusing device.
func (s *Server) DeviceGetHandleByUUID(uuid string) (lib.Device, lib.Return) {
	for _, d := range s.devices {
		if own, ret := d.GetUUID(); ret == lib.SUCCESS && own == uuid {
			return d, lib.SUCCESS
		}
	}
	return nil, lib.ERROR_NOT_FOUND
}

// device wraps a mock's device and refuses.
type device struct {
	lib.Device
	server    *Server
	instances []*gpuInstance // that exist; guarded by Server.mu
}

// number returns the number of the profile with that id.
func number(id uint32) (int, bool) {
	for n, i := range ids {
		if i == id {
			return n, true
		}
	}
	return 0, false
}

// plain replaces a description's id with the mock's, which is the number.
func plain(info *lib.GpuInstanceProfileInfo) (*lib.GpuInstanceProfileInfo, lib.Return) {
	n, ok := number(info.Id)
	if !ok {
		return nil, lib.ERROR_INVALID_ARGUMENT
	}
	copied := *info
	copied.Id = uint32(n)
	return &copied, lib.SUCCESS
}

// GetGpuInstanceProfileInfo returns descriptions with the driver's ids.
func (d *device) GetGpuInstanceProfileInfo(n int) (lib.GpuInstanceProfileInfo, lib.Return) {
	info, ret := d.Device.GetGpuInstanceProfileInfo(n)
	if ret != lib.SUCCESS {
		return info, ret
	}
	id, ok := ids[n]
	if !ok {
		return lib.GpuInstanceProfileInfo{}, lib.ERROR_NOT_SUPPORTED
	}
	info.Id = id
	return info, lib.SUCCESS
}

// GetGpuInstancePossiblePlacements takes the driver's ids.
func (d *device) GetGpuInstancePossiblePlacements(info *lib.GpuInstanceProfileInfo) ([]lib.GpuInstancePlacement, lib.Return) {
	p, ret := plain(info)
	if ret != lib.SUCCESS {
		return nil, ret
	}
	return d.Device.GetGpuInstancePossiblePlacements(p)
}

// modeOn reports whether MIG mode is on, so that instances can exist.
func (d *device) modeOn() bool {
	mode, _, ret := d.GetMigMode()
	return ret == lib.SUCCESS && mode == lib.DEVICE_MIG_ENABLE
}

// SetMigMode refuses while instances or processes exist.
func (d *device) SetMigMode(mode int) (lib.Return, lib.Return) {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	if !d.server.powers {
		return lib.ERROR_NO_PERMISSION, lib.ERROR_NO_PERMISSION
	}
	if len(d.instances) > 0 {
		return lib.ERROR_IN_USE, lib.SUCCESS
	}
	return d.Device.SetMigMode(mode)
}

// GetGpuInstances lists the existing instances of that profile.
func (d *device) GetGpuInstances(info *lib.GpuInstanceProfileInfo) ([]lib.GpuInstance, lib.Return) {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	if !d.server.powers {
		return nil, lib.ERROR_NO_PERMISSION
	}
	if !d.modeOn() {
		return nil, lib.ERROR_NOT_SUPPORTED
	}
	var list []lib.GpuInstance
	for _, g := range d.instances {
		if g.info.ProfileId == info.Id {
			list = append(list, g)
		}
	}
	return list, lib.SUCCESS
}

// migDevice is the device that processes see in a GPU instance.
type migDevice struct {
	lib.Device
	id   int
	uuid string
}

func (m migDevice) GetGpuInstanceId() (int, lib.Return) { return m.id, lib.SUCCESS }
func (m migDevice) GetUUID() (string, lib.Return)       { return m.uuid, lib.SUCCESS }

// GetMaxMigDeviceCount is the number of compute slices.
func (d *device) GetMaxMigDeviceCount() (int, lib.Return) { return computeSlices, lib.SUCCESS }

// GetMigDeviceHandleByIndex returns one of the devices that processes see.
func (d *device) GetMigDeviceHandleByIndex(at int) (lib.Device, lib.Return) {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	uuid, _ := d.GetUUID()
	for _, g := range d.instances {
		for _, c := range g.computes {
			if at--; at < 0 {
				return migDevice{id: int(g.info.Id), uuid: fmt.Sprintf("MIG-%s-%d-%d", uuid, g.info.Id, c.info.Id)}, lib.SUCCESS
			}
		}
	}
	return nil, lib.ERROR_NOT_FOUND
}

// GetComputeRunningProcesses lists a process for each instance in which Run has started one.
func (d *device) GetComputeRunningProcesses() (list []lib.ProcessInfo, ret lib.Return) {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	for _, g := range d.instances {
		if g.busy {
			list = append(list, lib.ProcessInfo{Pid: uint32(4000 + g.info.Id), GpuInstanceId: g.info.Id})
		}
	}
	return list, lib.SUCCESS
}

// CreateGpuInstance is always refused: it lets the driver choose the place, and
// Penstock never does.
func (d *device) CreateGpuInstance(*lib.GpuInstanceProfileInfo) (lib.GpuInstance, lib.Return) {
	return nil, lib.ERROR_NOT_SUPPORTED
}

// CreateGpuInstanceWithPlacement grants what a GPU grants.
func (d *device) CreateGpuInstanceWithPlacement(info *lib.GpuInstanceProfileInfo, at *lib.GpuInstancePlacement) (lib.GpuInstance, lib.Return) {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	if ret := d.server.grantedLocked(); ret != lib.SUCCESS {
		return nil, ret
	}
	if !d.modeOn() {
		return nil, lib.ERROR_NOT_SUPPORTED
	}
	p, ret := plain(info)
	if ret != lib.SUCCESS {
		return nil, ret
	}
	places, ret := d.Device.GetGpuInstancePossiblePlacements(p)
	if ret != lib.SUCCESS {
		return nil, ret
	}
	if !slices.Contains(places, *at) {
		return nil, lib.ERROR_INVALID_ARGUMENT
	}
	left := computeSlices - int(info.SliceCount)
	for _, g := range d.instances {
		left -= g.slices
		have := g.info.Placement
		if have.Start < at.Start+at.Size && at.Start < have.Start+have.Size {
			return nil, lib.ERROR_INSUFFICIENT_RESOURCES
		}
	}
	if left < 0 {
		return nil, lib.ERROR_INSUFFICIENT_RESOURCES
	}
	made, ret := d.Device.CreateGpuInstanceWithPlacement(p, at)
	if ret != lib.SUCCESS {
		return nil, ret
	}
	described, ret := made.GetInfo()
	if ret != lib.SUCCESS {
		return nil, ret
	}
	described.ProfileId, described.Device = info.Id, d
	g := &gpuInstance{GpuInstance: made, device: d, info: described, slices: int(info.SliceCount)}
	d.instances = append(d.instances, g)
	return g, lib.SUCCESS
}

// gpuInstance wraps a mock's GPU instance and refuses.
type gpuInstance struct {
	lib.GpuInstance
	device   *device
	info     lib.GpuInstanceInfo
	slices   int
	busy     bool
	computes []*computeInstance
}

func (g *gpuInstance) liveLocked() bool { return slices.Contains(g.device.instances, g) }

// GetInfo describes the instance while it exists.
func (g *gpuInstance) GetInfo() (lib.GpuInstanceInfo, lib.Return) {
	g.device.server.mu.Lock()
	defer g.device.server.mu.Unlock()
	if !g.liveLocked() {
		return lib.GpuInstanceInfo{}, lib.ERROR_INVALID_ARGUMENT
	}
	return g.info, lib.SUCCESS
}

// GetComputeInstances lists the existing instances of that profile.
func (g *gpuInstance) GetComputeInstances(info *lib.ComputeInstanceProfileInfo) ([]lib.ComputeInstance, lib.Return) {
	g.device.server.mu.Lock()
	defer g.device.server.mu.Unlock()
	if !g.liveLocked() {
		return nil, lib.ERROR_INVALID_ARGUMENT
	}
	var list []lib.ComputeInstance
	for _, c := range g.computes {
		if c.info.ProfileId == info.Id {
			list = append(list, c)
		}
	}
	return list, lib.SUCCESS
}

// CreateComputeInstance grants at most the GPU instance's free slices.
func (g *gpuInstance) CreateComputeInstance(info *lib.ComputeInstanceProfileInfo) (lib.ComputeInstance, lib.Return) {
	s := g.device.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if ret := s.grantedLocked(); ret != lib.SUCCESS {
		return nil, ret
	}
	if !g.liveLocked() {
		return nil, lib.ERROR_INVALID_ARGUMENT
	}
	left := g.slices - int(info.SliceCount)
	for _, c := range g.computes {
		left -= c.slices
	}
	if left < 0 {
		return nil, lib.ERROR_INSUFFICIENT_RESOURCES
	}
	made, ret := g.GpuInstance.CreateComputeInstance(info)
	if ret != lib.SUCCESS {
		return nil, ret
	}
	described, ret := made.GetInfo()
	if ret != lib.SUCCESS {
		return nil, ret
	}
	described.GpuInstance, described.Device = g, g.device
	c := &computeInstance{ComputeInstance: made, owner: g, info: described, slices: int(info.SliceCount)}
	g.computes = append(g.computes, c)
	slices.SortFunc(g.computes, func(a, b *computeInstance) int { return cmp.Compare(a.info.Id, b.info.Id) })
	return c, lib.SUCCESS
}

// Destroy refuses while the instance has compute instances or processes.
func (g *gpuInstance) Destroy() lib.Return {
	s := g.device.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if ret := s.grantedLocked(); ret != lib.SUCCESS {
		return ret
	}
	if !g.liveLocked() {
		return lib.ERROR_INVALID_ARGUMENT
	}
	if g.busy || len(g.computes) > 0 {
		return lib.ERROR_IN_USE
	}
	if ret := g.GpuInstance.Destroy(); ret != lib.SUCCESS {
		return ret
	}
	g.device.instances = slices.DeleteFunc(g.device.instances, func(other *gpuInstance) bool { return other == g })
	return lib.SUCCESS
}

// computeInstance wraps a mock's compute instance and refuses.
type computeInstance struct {
	lib.ComputeInstance
	owner  *gpuInstance
	info   lib.ComputeInstanceInfo
	slices int
}

// GetInfo describes the instance while it exists.
func (c *computeInstance) GetInfo() (lib.ComputeInstanceInfo, lib.Return) {
	s := c.owner.device.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(c.owner.computes, c) {
		return lib.ComputeInstanceInfo{}, lib.ERROR_INVALID_ARGUMENT
	}
	return c.info, lib.SUCCESS
}

// Destroy refuses while a process runs in it.
func (c *computeInstance) Destroy() lib.Return {
	s := c.owner.device.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if ret := s.grantedLocked(); ret != lib.SUCCESS {
		return ret
	}
	if !slices.Contains(c.owner.computes, c) {
		return lib.ERROR_INVALID_ARGUMENT
	}
	if c.owner.busy {
		return lib.ERROR_IN_USE
	}
	if ret := c.ComputeInstance.Destroy(); ret != lib.SUCCESS {
		return ret
	}
	c.owner.computes = slices.DeleteFunc(c.owner.computes, func(other *computeInstance) bool { return other == c })
	return lib.SUCCESS
}
