package sharing

import (
	"fmt"
	"slices"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/partition"
)

// Values of ObservedDevice.Mechanism on a GPU.
const (
	MechanismMPS         = "mps"
	MechanismTimeSlicing = "time-slicing"
)

// Device is what the manager knows of the device that models run on. The manager never touches
// the device: the orchestrator reports it.
type Device struct {
	Name  string // of control.Desired.Devices
	Known bool
	GPU   *control.GPU // nil on a CPU
	MPS   bool
	cpus  int // of the machine; 0: not known
	// noGroups: when the device was reported, it had fewer groups of multiprocessors than
	// instances wanted some. No instance gets groups then.
	noGroups bool
}

// MemoryBytes is the memory of the GPU; 0 on a CPU.
func (v *Device) MemoryBytes() int64 {
	if v.GPU == nil {
		return 0
	}
	return v.GPU.MemoryBytes
}

// onGPU reports whether models run on a GPU; false while that is unknown.
func (d *Decider) onGPU() bool { return d.Device.GPU != nil }

// readDevice applies the orchestrator's report on the device.
func (d *Decider) readDevice(o *control.Observed) {
	v := &d.Device
	v.cpus = o.CPUs
	seen := o.Device(v.Name)
	mps := seen.Mechanism == MechanismMPS
	switch {
	case v.Name == configs.DeviceCPU:
		return
	case seen.GPU == nil && (v.Name != configs.DeviceAuto || seen.Mechanism == "" || mps || seen.Mechanism == MechanismTimeSlicing):
		return // the orchestrator is still looking for the device
	}

	before := v.GPU
	v.GPU = seen.GPU
	if v.Known && mps == v.MPS && sameDevice(before, v.GPU) {
		return
	}
	if v.Known && !sameDevice(before, v.GPU) {
		d.log(gslice.ID{}, zerolog.WarnLevel, "device changed", nil)
		d.groups.forgetDevice(d)
		d.do(ForgetDevice{})
	}
	if v.GPU != nil {
		d.do(Open{v.GPU})
		d.opening = true
	}
	first := !v.Known
	v.Known, v.MPS = true, mps
	d.logDevice(seen.Mechanism)
	if first && d.takesTurns() && v.GPU.PrioritiesFail() {
		d.log(gslice.ID{}, zerolog.WarnLevel, "stream priorities do not hold between processes on this GPU and driver; batches of all functions run one after the other", nil)
	}
	v.noGroups = v.GPU != nil && d.partitioned() > len(v.GPU.GroupSMs)
	for i := range d.s.Functions {
		f := &d.s.Functions[i]
		if change := d.Change(d.s.Config, f.Config); d.s.Config.ChangeOf(f.Config) == configs.ChangePartition && change != configs.ChangePartition {
			d.log(gslice.ID{IF: f.Config.Name, Instance: AllInstances}, zerolog.ErrorLevel, "groups of multiprocessors are not available; shares change another way", map[string]any{"change": string(change), "why": v.lacksGroups()})
		}
	}
	if slices.ContainsFunc(d.s.Functions, func(f Function) bool { return d.byPercentage(d.Change(d.s.Config, f.Config)) }) {
		d.shares.reshape("the GPU is known")
	}
	d.groups.allocator.Invalidate()
}

// logDevice logs the device, and whether shares are enforced on it.
func (d *Decider) logDevice(mechanism string) {
	gpu := d.Device.GPU
	log := func(level zerolog.Level, message string, fields map[string]any) {
		d.log(gslice.ID{}, level, message, fields)
	}
	if gpu == nil {
		log(zerolog.InfoLevel, "no GPU found; models run on the CPU", nil)
		return
	}
	log(zerolog.InfoLevel, "models run on a GPU", map[string]any{
		"device": gpu.Name, "uuid": gpu.UUID, "multiprocessors": gpu.SMs, "group_sms": gpu.GroupSMs, "mechanism": mechanism,
	})
	switch {
	case gpu.Why != "" && !d.Device.MPS:
		log(zerolog.WarnLevel, "inference functions take turns on the GPU: shares are not enforced without MPS", map[string]any{"why": gpu.Why})
	case !d.Device.MPS:
		log(zerolog.InfoLevel, "inference functions take turns on the GPU, without shares, as "+configs.LabVariable+" says", nil)
	}
}

// sameDevice reports whether two devices have the same groups.
func sameDevice(a, b *control.GPU) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UUID == b.UUID && slices.Equal(a.GroupSMs, b.GroupSMs)
}

// groups returns the sizes of the groups that can be allocated; nil if the device is not
// divided.
func (v *Device) groups() []int {
	if v.GPU == nil || v.noGroups {
		return nil
	}
	return v.GPU.GroupSMs
}

// sms counts the multiprocessors of groups. A process reported the groups, so they may have
// any value.
func (v *Device) sms(groups []int) (n int) {
	for _, g := range groups {
		if g >= 0 && g < len(v.groups()) {
			n += v.groups()[g]
		}
	}
	return n
}

// Change is how a function's share changes on this device.
func (d *Decider) Change(cfg *configs.Config, f configs.Function) configs.Change {
	return d.Device.changeOn(cfg.ChangeOf(f))
}

// changeOn returns the way to change a share on this device, given the configured one. A
// way that the device lacks was rejected with the configuration, or follows from
// DeviceAuto.
func (v *Device) changeOn(c configs.Change) configs.Change {
	switch {
	case c == configs.ChangeNone:
		return c
	case v.GPU == nil && (c == configs.ChangeAuto || c == configs.ChangePartition):
		return configs.ChangeShadow
	case v.GPU == nil:
		return c
	case c == configs.ChangeShadow, c == configs.ChangeRestart:
		return c
	case c == configs.ChangePartition && len(v.groups()) > 0:
		return c
	case v.MPS:
		return configs.ChangeShadow
	}
	// Shares are not enforced without MPS, so a change needs no swap.
	return configs.ChangeInPlace
}

// lacksGroups says why no groups can be allocated.
func (v *Device) lacksGroups() string {
	switch {
	case v.GPU == nil:
		return "models run on the CPU"
	case len(v.GPU.GroupSMs) > 0:
		return fmt.Sprintf("%v: the GPU has %d", partition.ErrTooMany, len(v.GPU.GroupSMs))
	}
	return v.GPU.Why
}

// configurations are those of the functions that are not being removed, with their instances on the device.
func configurations(functions []Function) (list []configs.Function) {
	for i := range functions {
		if f := &functions[i]; !f.Removing {
			list = append(list, f.Config)
			list[len(list)-1].Instances = len(f.Instances)
		}
	}
	return list
}

// unprotected tells why this GPU does not protect functions from each other; empty if it does.
func (d *Decider) unprotected() control.Unprotected {
	if d.onGPU() && d.Device.GPU.PrioritiesFail() {
		return control.UnprotectedByPriorities
	}
	return ""
}
