package manager

import (
	"fmt"
	"slices"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/partition"
)

// Values of Observed.Mechanism on a GPU.
const (
	mechanismMPS         = "mps"
	mechanismTimeSlicing = "time-slicing"
)

// device is what the manager knows of the device that models run on. The manager never touches
// the device: the orchestrator reports it. The control loop owns it.
type device struct {
	known bool
	gpu   *control.ObservedDevice // nil on a CPU
	mps   bool
	// noGroups: when the device was reported, it had fewer groups of multiprocessors than
	// instances wanted some. No instance gets groups of its own then.
	noGroups  bool
	allocator partition.Allocator // of the groups (groups.go)
}

// onGPU reports whether models run on a GPU; false while that is unknown.
func (m *Manager) onGPU() bool { return m.device.gpu != nil }

// learnDevice applies the orchestrator's report on the device.
func (m *Manager) learnDevice(o *control.Observed) {
	d := &m.device
	mps := o.Mechanism == mechanismMPS
	switch {
	case m.cfg.Device == configs.DeviceCPU:
		return
	case o.Device == nil && (m.cfg.Device != configs.DeviceAuto || o.Mechanism == "" || mps || o.Mechanism == mechanismTimeSlicing):
		return // the orchestrator is still looking for a device
	}

	before := *d
	d.gpu = o.Device
	if d.known && mps == d.mps && sameDevice(before.gpu, o.Device) {
		return
	}
	if d.known && !sameDevice(before.gpu, o.Device) {
		// Processes on the old device ended with their orchestrator.
		d.allocator = partition.Allocator{}
		m.eachInstance((*instance).forgetGroups)
	}
	if o.Device != nil {
		m.percentages.open(o.Device)
	}
	if (before.gpu == nil) != (o.Device == nil) && d.known {
		m.log.Warn().Msg("device changed")
		m.eachInstance((*instance).forgetTensors)
	}
	divides := !d.known && m.mustDivide(o)
	d.known, d.mps = true, mps
	m.logDevice(o)
	if divides {
		m.divide()
	}

	d.noGroups = o.Device != nil && m.partitioned() > len(o.Device.GroupSMs)
	for _, f := range m.functions {
		f.setChange()
	}
	switch {
	case divides:
		m.reshare(prioritiesLack)
	case slices.ContainsFunc(m.functions, func(f *function) bool { return m.byPercentage(f.change) }):
		m.reshare("the GPU is known")
	}
	d.allocator.Invalidate()
}

// logDevice logs a device, and whether shares are enforced on it.
func (m *Manager) logDevice(o *control.Observed) {
	if o.Device == nil {
		m.log.Info().Msg("no GPU found; models run on the CPU")
		return
	}
	m.log.Info().Str("device", o.Device.Name).Str("uuid", o.Device.UUID).Int("multiprocessors", o.Device.SMs).
		Ints("group_sms", o.Device.GroupSMs).Str("mechanism", o.Mechanism).Msg("models run on a GPU")
	switch {
	case o.Device.Why != "" && !m.device.mps:
		m.log.Warn().Str("why", o.Device.Why).Msg("inference functions take turns on the GPU: shares are not enforced without MPS")
	case !m.device.mps:
		m.log.Info().Msg("inference functions take turns on the GPU, without shares, as " + configs.LabVariable + " says")
	}
}

// sameDevice reports whether two devices have the same groups.
func sameDevice(a, b *control.ObservedDevice) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UUID == b.UUID && slices.Equal(a.GroupSMs, b.GroupSMs)
}

// groups returns the sizes of the groups that can be allocated; nil if the device is not
// divided.
func (d *device) groups() []int {
	if d.gpu == nil || d.noGroups {
		return nil
	}
	return d.gpu.GroupSMs
}

// sms counts the multiprocessors of groups. A process reported the groups, so they may have
// any value.
func (d *device) sms(groups []int) (n int) {
	for _, g := range groups {
		if g >= 0 && g < len(d.groups()) {
			n += d.groups()[g]
		}
	}
	return n
}

// changeOn returns the way to change a share on this device, given the configured one. A
// way that the device lacks was rejected with the configuration, or follows from
// DeviceAuto.
func (d *device) changeOn(c configs.Change) configs.Change {
	switch {
	case c == configs.ChangeNone:
		return c
	case d.gpu == nil && (c == configs.ChangeAuto || c == configs.ChangePartition):
		return configs.ChangeShadow
	case d.gpu == nil:
		return c
	case c == configs.ChangeShadow, c == configs.ChangeRestart:
		return c
	case c == configs.ChangePartition && len(d.groups()) > 0:
		return c
	case d.mps:
		return configs.ChangeShadow
	}
	// Shares are not enforced without MPS, so a change needs no swap.
	return configs.ChangeInPlace
}

// setChange adapts the way that shares change to the device.
func (f *function) setChange() {
	was := f.change
	f.change = f.m.device.changeOn(f.configured)
	if f.configured == configs.ChangePartition && f.change != configs.ChangePartition && f.m.device.known {
		f.log.Error().Str("change", string(f.change)).Str("why", f.m.device.lacksGroups()).Msg("groups of multiprocessors are not available; shares change another way")
	}
	for _, in := range f.instances {
		in.setChange()
		if f.change != configs.ChangePartition && was == configs.ChangePartition {
			in.order(nil)
		}
	}
}

// lacksGroups says why no groups can be allocated.
func (d *device) lacksGroups() string {
	switch {
	case d.gpu == nil:
		return "models run on the CPU"
	case len(d.gpu.GroupSMs) > 0:
		return fmt.Sprintf("%v: the GPU has %d", partition.ErrTooMany, len(d.gpu.GroupSMs))
	}
	return d.gpu.Why
}

// forgetTensors drops buffers that were allocated for another device.
func (in *instance) forgetTensors() {
	for card, t := range in.tensors {
		t.Close()
		delete(in.tensors, card)
	}
}

// outputSlots is how many batches' outputs a GPU writes at once: two batches may be in
// flight (libml/device.Slots).
const outputSlots = 2

// tensorBytes is the size of the memory that the processes of a card share. On a CPU that
// is the batch tensor and its outputs. A GPU has its own batch tensor and copies back only
// the outputs.
func (in *instance) tensorBytes(tensors, outputs int) int {
	if in.m.onGPU() {
		return outputSlots * outputs
	}
	return tensors
}
