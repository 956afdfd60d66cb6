// Package deploy carries out plans on one machine: it cuts GPUs into MIG instances, and orders the
// node to run functions on them.
//
//  1. A Machine is what there is: the node's devices and functions, and the instances of GPUs.
//  2. Record.Begin finds the plan's GPUs in it and computes the steps, or says why that is
//     impossible. It is pure.
//  3. Record.Finish takes the steps. The caller saves the Record after each, so that another
//     process can continue. If a step fails, Finish undoes those before it.
//
// A segment of a plan becomes instances of its service's function:
//
//   - in a MIG instance they have no share: together they have the instance
//   - on a whole GPU without MIG, or a whole CPU, they have no share either
//   - on a part of one, each has its part of the segment's percentage: a limit with
//     `policy: gslice`, otherwise a guarantee
package deploy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/plan"
)

// Machine is a node and the GPUs of its machine. It is pure data.
type Machine struct {
	Devices []Device
	// Functions are those that the node runs. Their segments are normal, and on places.
	Functions map[string]control.FunctionPlacement
	// GPUs are those that have MIG. It is empty if the driver was not asked.
	GPUs []mig.GPU
	// Manage says that instances may be created and destroyed.
	Manage bool
}

// Device is a device of the node.
type Device struct {
	Name, UUID string
	// Table is the name of its placement table; empty for MIG instances and unknown GPUs.
	Table string
}

// Observe returns the machine of a node. gpus may be nil if no plan for it needs MIG.
func Observe(status control.Status, gpus []mig.GPU, manage bool) Machine {
	m := Machine{GPUs: gpus, Manage: manage, Functions: map[string]control.FunctionPlacement{}}
	for _, d := range status.Devices {
		own := Device{Name: d.Name}
		switch {
		case d.Lost != "":
			continue
		case d.GPU == nil:
			own.Table = control.DeviceCPU
		default:
			own.UUID = d.GPU.UUID
			if table, err := plan.ForUncut(d.GPU.Name); err == nil {
				own.Table = table.Name
			}
		}
		m.Devices = append(m.Devices, own)
	}
	for _, f := range status.Functions {
		now := control.FunctionPlacement{Name: f.Name, Model: f.Model, SLO: milliseconds(f.SLOMillis)}
		for _, in := range f.Instances {
			s := control.PlacedSegment{Device: m.place(in.Device), Processes: 1}
			if status.Policy == "gslice" && !in.WholeDevice {
				s.SharePercent = in.SharePercent
			}
			now.Segments = append(now.Segments, s)
		}
		now.Segments = normal(now.Segments)
		m.Functions[f.Name] = now
	}
	return m
}

// place names the place of one of the node's devices in steps. For a MIG instance this is its
// GPU and its slot, because its UUID changes when it is created again.
func (m *Machine) place(device string) string {
	at := slices.IndexFunc(m.Devices, func(d Device) bool { return d.Name == device })
	for _, g := range m.GPUs {
		for _, in := range g.Instances {
			if at >= 0 && in.UUID != "" && in.UUID == m.Devices[at].UUID {
				return instancePlace(g.UUID, in.Start)
			}
		}
	}
	return device
}

func milliseconds(ms float64) time.Duration {
	return time.Duration(math.Round(ms * float64(time.Millisecond)))
}

func instancePlace(gpu string, slot int) string { return fmt.Sprintf("%s/%d", gpu, slot) }

// normal joins the segments on each device and sorts them. Their instances share evenly: a node gives
// all instances of a function on a device the same.
func normal(segments []control.PlacedSegment) (joined []control.PlacedSegment) {
	for _, s := range segments {
		at := slices.IndexFunc(joined, func(o control.PlacedSegment) bool { return o.Device == s.Device })
		if at < 0 {
			joined = append(joined, s)
			continue
		}
		o := &joined[at]
		all := o.SharePercent*float64(o.Processes) + s.SharePercent*float64(s.Processes)
		o.Processes += s.Processes
		o.SharePercent = all / float64(o.Processes)
	}
	for i := range joined {
		joined[i].SharePercent = math.Floor(joined[i].SharePercent*1e6) / 1e6 // all are at most 100 % together
	}
	slices.SortFunc(joined, func(a, b control.PlacedSegment) int { return cmp.Compare(a.Device, b.Device) })
	return joined
}

// Fleet returns the machine's devices as GPUs to plan on. Only a GPU in MIG mode is cut.
func (m *Machine) Fleet() (fleet []plan.Stock) {
	add := func(name string) {
		at := slices.IndexFunc(fleet, func(s plan.Stock) bool { return s.GPU.Name == name })
		if table, err := plan.Lookup(name); at < 0 && err == nil {
			fleet = append(fleet, plan.Stock{GPU: table, Count: 1})
		} else if at >= 0 {
			fleet[at].Count++
		}
	}
	for _, g := range m.GPUs {
		if table, err := plan.ForDevice(g.Name); err == nil && g.MIG {
			add(table.Name)
		}
	}
	for _, d := range m.Devices {
		add(d.Table)
	}
	return fleet
}

// of returns the machine's GPUs with a placement table: UUIDs of GPUs with MIG, else names of the
// node's devices.
func (m *Machine) of(table plan.GPU) (have []string) {
	for _, d := range m.Devices {
		if table.Percent && d.Table == table.Name {
			have = append(have, d.Name)
		}
	}
	for _, g := range m.GPUs {
		if own, err := plan.ForDevice(g.Name); err == nil && !table.Percent && own.Name == table.Name {
			have = append(have, g.UUID)
		}
	}
	return have
}

// ErrMissing is returned for a plan that needs GPUs that the machine does not have.
var ErrMissing = errors.New("is missing")

// match assigns one of the machine's GPUs to each number of a plan. Numbers in kept keep theirs.
func (m *Machine) match(segments []plan.Segment, kept map[int]string) (map[int]string, error) {
	models := map[int]plan.GPU{}
	for _, s := range segments {
		table, err := plan.Lookup(s.GPUModel)
		if err != nil {
			return nil, err
		}
		models[s.GPU] = table
	}
	numbers := slices.Sorted(maps.Keys(models))
	gpus := map[int]string{}
	for _, n := range numbers {
		if have := m.of(models[n]); slices.Contains(have, kept[n]) {
			gpus[n] = kept[n]
		}
	}
	for _, n := range numbers {
		if _, done := gpus[n]; done {
			continue
		}
		have := m.of(models[n])
		free := slices.DeleteFunc(slices.Clone(have), func(name string) bool {
			return slices.Contains(slices.Collect(maps.Values(gpus)), name)
		})
		if len(free) > 0 {
			gpus[n] = free[0]
			continue
		}
		kind := models[n].Name
		if !models[n].Percent {
			kind += " with MIG"
		}
		list := "none"
		if len(have) > 0 {
			list = strings.Join(have, ", ")
		}
		return nil, fmt.Errorf("GPU %d of the plan %w: want another %s, and there is %s; plan without --gpu and --fleet for the GPUs of this machine", n, ErrMissing, kind, list)
	}
	return gpus, nil
}
