// Package placement decides on which devices of a node its functions run, while their rates change:
//
//	a device is overloaded for Patience, another is not ──> Move an instance there, or Add one
//	a function needs less than its instances for Calm   ──> Remove the last one
//
// It is pure: its inputs are needs, its output is at most one action, so that the next decision sees what the action
// brought. At constant rates it comes to rest. A need says how much device time the requests cost that arrive. It is too
// low while clients wait for credit, and if a process cannot use the device all the time. So an instance whose requests
// wait too long needs all that the others leave. An action must make the highest need clearly smaller, and the cost of a
// function on a device is known once it has run there. An instance is removed only if the others stay far from overload.
package placement

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/manager/policy/guarantee"
)

const (
	// Patience is how long a device must be overloaded.
	Patience = 10 * time.Second
	// Calm is how long an instance must be unnecessary.
	Calm = time.Minute

	// overloaded is in percent of a device's time. With higher needs, some function has less than its need as a guarantee.
	overloaded  = 100 * guarantee.Guaranteed
	wholeDevice = 100
	// spare is the need below which a device takes instances from others.
	spare = 80
	// gain is by how many percent of a device's time the highest need must fall.
	gain = 10
	// calm is the highest need of the devices of a function without its last instance.
	calm = 60
)

// Device is a device, with the sum of the needs of all instances there in percent of its time.
type Device struct {
	Name         string
	NeedsPercent float64
}

// Instance is an instance of a function, with its present need in percent of the time of its device.
type Instance struct {
	Device      string
	NeedPercent float64
	Behind      bool // requests wait too long
}

// Function is a function of the node.
type Function struct {
	Name      string
	Instances []Instance
	// Allowed are the devices that it may use.
	Allowed []string
	// Cost is the device time per request, by device. It lacks devices on which the function never ran. It is infinite
	// for those on which the function cannot run.
	Cost map[string]float64
	// Fixed: the number of instances was configured.
	Fixed bool
	// Changing: an action or another change is not finished, so the needs may be those of before.
	Changing bool
}

// Kind is what to do.
type Kind uint8

// Add starts another instance of a function on a device, Move moves the instance there, and Remove removes the last one.
const (
	Add Kind = iota + 1
	Move
	Remove
)

// Action is one step.
type Action struct {
	Kind     Kind
	Function string
	Instance int    // to move or to remove
	Device   string // to run on; of Remove, the one that is left
}

// Policy remembers since when devices are overloaded and functions have too many instances. The zero value has seen
// nothing.
type Policy struct {
	hot, idle map[string]time.Duration
	// underrated is by which factor the need of an instance was too low when its device was relieved.
	underrated map[place]float64
}

// place is an instance of a function: no device has two.
type place struct{ function, device string }

// Decide returns the next action; ok is false if there is none. now is the time since any fixed moment.
func (p *Policy) Decide(now time.Duration, devices []Device, functions []Function) (a Action, ok bool) {
	if slices.ContainsFunc(functions, func(f Function) bool { return f.Changing }) {
		p.hot, p.idle = nil, nil
		return a, false
	}
	if p.hot == nil {
		p.hot, p.idle = map[string]time.Duration{}, map[string]time.Duration{}
	}
	devices, functions, factors := p.correct(devices, functions)
	devices = slices.SortedStableFunc(slices.Values(devices), func(a, b Device) int { return cmp.Compare(a.NeedsPercent, b.NeedsPercent) })
	for _, d := range devices {
		if lasts(p.hot, d.Name, d.NeedsPercent > overloaded, now) < Patience {
			continue
		}
		if a, ok = relieve(d, devices, functions); ok {
			maps.DeleteFunc(factors, func(at place, _ float64) bool { return at.device != d.Name && p.underrated[at] == 0 })
			*p = Policy{underrated: factors}
			return a, true
		}
	}
	for _, f := range functions {
		if lasts(p.idle, f.Name, f.unnecessary(devices), now) >= Calm {
			last := len(f.Instances) - 1
			p.hot, p.idle = nil, nil
			return Action{Remove, f.Name, last, f.Instances[last].Device}, true
		}
	}
	return a, false
}

// correct returns devices and functions with corrected needs, and by which factors they were too low. Instances that are
// behind share what the others leave of their device. A factor that was found before holds until the needs on a device
// exceed it, although no instance there is behind.
func (p *Policy) correct(devices []Device, functions []Function) ([]Device, []Function, map[place]float64) {
	functions, factors := slices.Clone(functions), map[place]float64{}
	for i := range functions {
		functions[i].Instances = slices.Clone(functions[i].Instances)
	}
	on := func(device string, do func(key place, in *Instance)) {
		for _, f := range functions {
			if n := f.on(device); n >= 0 {
				do(place{f.Name, device}, &f.Instances[n])
			}
		}
	}
	devices = slices.Clone(devices)
	for i := range devices {
		d := &devices[i]
		behind, others := 0.0, d.NeedsPercent
		on(d.Name, func(key place, in *Instance) {
			others -= in.NeedPercent
			in.NeedPercent *= max(1, p.underrated[key])
			if in.Behind {
				behind += in.NeedPercent
			} else {
				others += in.NeedPercent
			}
		})
		scale := 1.0
		if behind > 0 {
			scale = max(1, (wholeDevice-others)/behind)
		}
		on(d.Name, func(key place, in *Instance) {
			factors[key] = max(1, p.underrated[key])
			switch {
			case in.Behind:
				factors[key] *= scale
				in.NeedPercent *= scale
			case behind == 0 && others > wholeDevice:
				in.NeedPercent /= factors[key]
				delete(factors, key)
				delete(p.underrated, key)
			}
		})
		d.NeedsPercent = others + behind*scale
	}
	return devices, functions, factors
}

// lasts returns for how long a fact has been true.
func lasts(since map[string]time.Duration, of string, is bool, now time.Duration) time.Duration {
	if !is {
		delete(since, of)
		return 0
	}
	began, known := since[of]
	if !known {
		since[of], began = now, now
	}
	return now - began
}

// relieve finds the action that leaves the highest need on an overloaded device and on another one smallest, and of equal
// ones the device with the smallest need. It prefers a move that ends the overload, which needs no further process.
func relieve(hot Device, devices []Device, functions []Function) (best Action, ok bool) {
	lowest := hot.NeedsPercent - gain
	try := func(a Action, peak float64) {
		if peak < lowest {
			best, lowest, ok = a, peak, true
		}
	}
	for _, kind := range []Kind{Move, Add} {
		if ok && lowest < overloaded {
			break
		}
		for i := range functions {
			f := &functions[i]
			number := f.on(hot.Name)
			if number < 0 || kind == Add && f.Fixed {
				continue
			}
			need := f.Instances[number].NeedPercent
			for _, to := range devices {
				if to.NeedsPercent >= spare || f.on(to.Name) >= 0 || !slices.Contains(f.Allowed, to.Name) {
					continue
				}
				if kind == Move {
					try(Action{Move, f.Name, number, to.Name}, max(hot.NeedsPercent-need, to.NeedsPercent+need*f.ratio(hot.Name, to.Name)))
				} else {
					each := f.spread(append(slices.Clone(f.Instances), Instance{Device: to.Name}))
					try(Action{Add, f.Name, len(f.Instances), to.Name}, max(hot.NeedsPercent-need+each, to.NeedsPercent+each))
				}
			}
		}
	}
	return best, ok
}

// on returns the number of the function's instance on a device; -1 if there is none.
func (f *Function) on(device string) int {
	return slices.IndexFunc(f.Instances, func(in Instance) bool { return in.Device == device })
}

// ratio is how much more of a device's time the function needs than of another's. As long as it is not known, it is 1.
func (f *Function) ratio(from, to string) float64 {
	a, b := f.Cost[from], f.Cost[to]
	switch {
	case math.IsInf(b, 1):
		return b
	case a <= 0 || b <= 0 || math.IsInf(a, 1):
		return 1
	}
	return b / a
}

// spread returns the need of each instance if these had the function's present requests: each gets requests in proportion
// to its speed.
func (f *Function) spread(instances []Instance) float64 {
	work, speed, reference := 0.0, 0.0, f.Instances[0].Device
	for _, in := range f.Instances {
		work += in.NeedPercent * f.ratio(in.Device, reference)
	}
	for _, in := range instances {
		ratio := f.ratio(reference, in.Device)
		if math.IsInf(ratio, 1) {
			return ratio
		}
		speed += 1 / ratio
	}
	return work / speed
}

// unnecessary reports whether the last instance can go, and the devices of the others stay far from overload.
func (f *Function) unnecessary(devices []Device) bool {
	last := len(f.Instances) - 1
	if f.Fixed || last == 0 {
		return false
	}
	each := f.spread(f.Instances[:last])
	for _, in := range f.Instances[:last] {
		at := slices.IndexFunc(devices, func(d Device) bool { return d.Name == in.Device })
		if at < 0 || devices[at].NeedsPercent-in.NeedPercent+each > calm {
			return false
		}
	}
	return true
}
