package sharing

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/partition"
)

// Values of Observed.Mechanism on a GPU.
const (
	MechanismMPS         = "mps"
	MechanismTimeSlicing = "time-slicing"
)

// Device is what the manager knows of the device that models run on. The manager never touches
// the device: the orchestrator reports it.
type Device struct {
	Known bool
	GPU   *control.ObservedDevice // nil on a CPU
	MPS   bool
	// noGroups: when the device was reported, it had fewer groups of multiprocessors than
	// instances wanted some. No instance gets groups then.
	noGroups  bool
	allocator partition.Allocator // of the groups (groups.go)
}

// learnDevice applies the orchestrator's report on the device. It reports whether it replaces another
// device, whose processes have ended with their orchestrator.
func (s *Sharing) learnDevice(o *control.Observed) (replaced bool) {
	d := &s.Device
	mps := o.Mechanism == MechanismMPS
	switch {
	case s.cfg.Device == configs.DeviceCPU:
		return false
	case o.Device == nil && (s.cfg.Device != configs.DeviceAuto || o.Mechanism == "" || mps || o.Mechanism == MechanismTimeSlicing):
		return false // the orchestrator is still looking for a device
	}

	before := *d
	d.GPU = o.Device
	if d.Known && mps == d.MPS && sameDevice(before.GPU, o.Device) {
		return false
	}
	if replaced = d.Known && !sameDevice(before.GPU, o.Device); replaced {
		s.log.Warn().Msg("device changed")
		d.allocator = partition.Allocator{}
		s.eachInstance((*Instance).forgetGroups)
	}
	if o.Device != nil {
		s.percentages.open(o.Device)
	}
	divides := !d.Known && s.mustDivide(o)
	d.Known, d.MPS = true, mps
	s.logDevice(o)
	if divides {
		s.divide()
	}

	d.noGroups = o.Device != nil && s.partitioned() > len(o.Device.GroupSMs)
	for _, f := range s.functions {
		f.setChange()
	}
	switch {
	case divides:
		s.reshare(prioritiesLack)
	case slices.ContainsFunc(s.functions, func(f *Function) bool { return s.byPercentage(f.Change) }):
		s.reshare("the GPU is known")
	}
	d.allocator.Invalidate()
	return replaced
}

// logDevice logs a device, and whether shares are enforced on it.
func (s *Sharing) logDevice(o *control.Observed) {
	if o.Device == nil {
		s.log.Info().Msg("no GPU found; models run on the CPU")
		return
	}
	s.log.Info().Str("device", o.Device.Name).Str("uuid", o.Device.UUID).Int("multiprocessors", o.Device.SMs).
		Ints("group_sms", o.Device.GroupSMs).Str("mechanism", o.Mechanism).Msg("models run on a GPU")
	switch {
	case o.Device.Why != "" && !s.Device.MPS:
		s.log.Warn().Str("why", o.Device.Why).Msg("inference functions take turns on the GPU: shares are not enforced without MPS")
	case !s.Device.MPS:
		s.log.Info().Msg("inference functions take turns on the GPU, without shares, as " + configs.LabVariable + " says")
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
func (d *Device) groups() []int {
	if d.GPU == nil || d.noGroups {
		return nil
	}
	return d.GPU.GroupSMs
}

// sms counts the multiprocessors of groups. A process reported the groups, so they may have
// any value.
func (d *Device) sms(groups []int) (n int) {
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
func (d *Device) changeOn(c configs.Change) configs.Change {
	switch {
	case c == configs.ChangeNone:
		return c
	case d.GPU == nil && (c == configs.ChangeAuto || c == configs.ChangePartition):
		return configs.ChangeShadow
	case d.GPU == nil:
		return c
	case c == configs.ChangeShadow, c == configs.ChangeRestart:
		return c
	case c == configs.ChangePartition && len(d.groups()) > 0:
		return c
	case d.MPS:
		return configs.ChangeShadow
	}
	// Shares are not enforced without MPS, so a change needs no swap.
	return configs.ChangeInPlace
}

// setChange adapts the way that shares change to the device.
func (f *Function) setChange() {
	was := f.Change
	f.Change = f.s.Device.changeOn(f.Configured)
	if f.Configured == configs.ChangePartition && f.Change != configs.ChangePartition && f.s.Device.Known {
		f.log.Error().Str("change", string(f.Change)).Str("why", f.s.Device.lacksGroups()).Msg("groups of multiprocessors are not available; shares change another way")
	}
	for _, in := range f.instances {
		in.setChange()
		if f.Change != configs.ChangePartition && was == configs.ChangePartition {
			in.order(nil)
		}
	}
}

// lacksGroups says why no groups can be allocated.
func (d *Device) lacksGroups() string {
	switch {
	case d.GPU == nil:
		return "models run on the CPU"
	case len(d.GPU.GroupSMs) > 0:
		return fmt.Sprintf("%v: the GPU has %d", partition.ErrTooMany, len(d.GPU.GroupSMs))
	}
	return d.GPU.Why
}

// Guarantees need stream priorities that hold between processes. If they do not on this GPU, the
// manager divides the GPU by shares, unless the operator has chosen guarantees.

// prioritiesLack is the reason in the log.
const prioritiesLack = "stream priorities do not hold between processes on this GPU and driver"

// mustDivide reports whether the functions have to get shares although the configuration names no
// policy. It logs what the device lacks.
func (s *Sharing) mustDivide(o *control.Observed) bool {
	if !s.cfg.Guarantees() || o.Device == nil || !o.Device.PrioritiesFail() {
		return false
	}
	if s.cfg.PolicySet {
		s.log.Warn().Str("why", prioritiesLack).Msg("functions are not protected from each other; set `shares: {policy: gslice}`")
		return false
	}
	if len(s.cfg.Workers) > 0 {
		s.log.Warn().Str("why", prioritiesLack).Msg("functions are not protected from each other: workers do not go with `policy: gslice`")
		return false
	}
	divided := *s.cfg
	divided.Shares.Policy = configs.PolicyGSLICE
	all := s.configurations()
	for i := range all {
		if err := divided.FitShare(&all[i], all[:i]); err != nil {
			s.log.Error().Err(err).Str("if", all[i].Name).Str("why", prioritiesLack).
				Msg("functions are not protected from each other, and cannot have shares")
			return false
		}
	}
	s.log.Warn().Str("why", prioritiesLack).Msg("using `policy: gslice`")
	return true
}

// divide changes the policy to gslice. The functions have no processes yet; the caller allocates
// their shares.
func (s *Sharing) divide() {
	s.cfg.Shares.Policy, s.FellBack = configs.PolicyGSLICE, true
	for _, f := range s.functions {
		f.Configured = s.cfg.ChangeOf(f.Configuration())
		if f.leaving {
			continue
		}
		for _, in := range f.instances {
			s.check(s.policy.Add(in.id, cmp.Or(f.ByHand, in.firstShare())))
		}
		if s.cfg.Shares.Tune {
			f.ByHand = 0
		}
	}
}

// unprotected tells why this GPU does not protect functions from each other; empty if it does.
func (s *Sharing) unprotected() control.Unprotected {
	if s.onGPU() && s.Device.GPU.PrioritiesFail() {
		return control.UnprotectedByPriorities
	}
	return ""
}
