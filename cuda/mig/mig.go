// Package mig divides GPUs into MIG instances. Session.GPUs lists the GPUs: their
// placement tables and their observed instances (GPU, Instance). GPU.Steps returns the
// changes to other instances, and Session.Take takes one.
//
// An instance in which a process runs is never destroyed: the driver refuses. The
// package does not switch MIG mode, since that resets the GPU and ends everything
// that runs on it. It asks the operator to do so (Step of Op EnableMode).
//
// Positions are memory slices, as NVML counts them. An A100 has eight. A 3g.40gb takes
// four of them, starting at 0 or 4. NVIDIA's MIG User Guide calls positions
// "placements".
//
// All functions need root, or CAP_SYS_ADMIN, as nvml.h requires for every function that
// lists or changes instances. Any goroutine may use a Session. The caller must prevent
// two concurrent changes of one GPU.
//
// Package strict makes go-nvml's mock servers refuse what a GPU refuses.
package mig

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrMode is returned for a GPU on which MIG mode is off.
var ErrMode = errors.New("MIG mode is off")

// ErrNoProfile is the error for a profile that the GPU does not have.
var ErrNoProfile = errors.New("no such profile")

// ErrPlacement is returned for a profile at a place where it cannot start.
var ErrPlacement = errors.New("a profile cannot start there")

// ErrInUse is returned for an instance that cannot be destroyed because a process runs in it.
var ErrInUse = errors.New("a process runs in it, or a compute instance is left")

// A GPU is a GPU with MIG, and how it is divided now.
type GPU struct {
	// Index is the GPU's number in nvidia-smi. A reset may change the number, but not
	// the UUID.
	Index      int
	UUID, Name string
	// MIG says that the GPU is in MIG mode. Only then can it have instances.
	MIG bool
	// Profiles are the kinds of instances that the GPU supports, in NVML's order.
	Profiles []Profile
	// Instances are the existing instances, ascending by Start.
	Instances []Instance
}

// String is the GPU's name in errors and steps: "GPU 0 (GPU-…)".
func (g GPU) String() string { return named(g.Index, g.UUID) }

func named(index int, uuid string) string { return fmt.Sprintf("GPU %d (%s)", index, uuid) }

// Profile is a kind of GPU instance.
type Profile struct {
	// Name is the name in nvidia-smi: "3g.40gb".
	Name string
	// Number is the number in NVML (NVML_GPU_INSTANCE_PROFILE_3_SLICE is 2).
	Number int
	// Slices is the number of its compute slices, Size that of its memory slices.
	Slices, Size int
	// Starts are the memory slices at which it may start, ascending.
	Starts []int
}

// Instance is an existing GPU instance.
type Instance struct {
	// ID is the driver's. It is unique on the GPU while the instance exists.
	ID int
	// Profile is the name of its profile.
	Profile string
	// Slices, Start and Size are as in Profile.
	Slices, Start, Size int
	// Compute are the compute instances in it, ascending by ID.
	Compute []Compute
	// UUID is that of the device that processes see ("MIG-…"); empty unless there is one
	// compute instance.
	UUID string
	// PIDs are the processes that run in it.
	PIDs []int
}

// IsComplete reports whether processes see the instance as one device of its full size.
func (i Instance) IsComplete() bool { return len(i.Compute) == 1 && i.Compute[0].Slices == i.Slices }

// Compute is a compute instance: the part of a GPU instance that a process sees.
type Compute struct{ ID, Slices int }

// Op is what a step does.
type Op int

// The kinds of steps. EnableMode is for the operator: Take refuses it.
const (
	EnableMode Op = iota
	DestroyCompute
	DestroyInstance
	CreateInstance
	CreateCompute
)

// Step is one change of one GPU. It is pure data.
type Step struct {
	Op Op
	// GPU is the GPU's UUID, and Index its number when the step was computed.
	GPU   string
	Index int
	// Profile, Number, Start and Size identify the GPU instance, as in Profile and
	// Instance.
	Profile             string
	Number, Start, Size int
	// Compute is the compute instance of DestroyCompute and CreateCompute. For
	// CreateCompute the driver chooses the ID.
	Compute Compute
}

// String describes the step: "create 3g.40gb in slots 4–7 of GPU 0 (GPU-…)".
func (s Step) String() string {
	gpu := named(s.Index, s.GPU)
	instance := fmt.Sprintf("%s in %s of %s", s.Profile, slots(s.Start, s.Size), gpu)
	switch s.Op {
	case EnableMode:
		return fmt.Sprintf("turn on MIG mode of %s: nvidia-smi -i %s -mig 1 (it resets the GPU and ends what runs on it)", gpu, s.GPU)
	case DestroyCompute:
		return fmt.Sprintf("destroy compute instance %d (%s) of %s", s.Compute.ID, computeSlices(s.Compute.Slices), instance)
	case DestroyInstance:
		return "destroy " + instance
	case CreateInstance:
		return "create " + instance
	case CreateCompute:
		return fmt.Sprintf("create a compute instance (%s) in %s", computeSlices(s.Compute.Slices), instance)
	}
	return fmt.Sprintf("step %d on %s", int(s.Op), instance)
}

func computeSlices(n int) string {
	if n == 1 {
		return "1 slice"
	}
	return fmt.Sprintf("%d slices", n)
}

func slots(start, size int) string {
	if size == 1 {
		return fmt.Sprintf("slot %d", start)
	}
	return fmt.Sprintf("slots %d–%d", start, start+size-1)
}

// Session changes the GPUs of this machine.
type Session interface {
	// GPUs lists the GPUs that have MIG, on or off, in the order of their indices.
	GPUs() ([]GPU, error)
	// Take takes one step. Its error names the step. A step that the driver refuses
	// changes nothing.
	Take(Step) error
}

// Steps returns the changes after which the GPU has these instances, and no others. Other instances are
// destroyed first. An instance that exists with as many compute instances of the same sizes stays. The ids and UUIDs of
// wanted instances do not matter: the driver chooses them.
func (g GPU) Steps(wanted []Instance) (steps []Step) {
	for _, i := range g.Instances {
		if !slices.ContainsFunc(wanted, i.equal) {
			for _, c := range i.Compute {
				steps = append(steps, g.newStep(DestroyCompute, i, c))
			}
			steps = append(steps, g.newStep(DestroyInstance, i, Compute{}))
		}
	}
	for _, i := range wanted {
		if !slices.ContainsFunc(g.Instances, i.equal) {
			steps = append(steps, g.newStep(CreateInstance, i, Compute{}))
			for _, c := range i.Compute {
				steps = append(steps, g.newStep(CreateCompute, i, Compute{Slices: c.Slices}))
			}
		}
	}
	return steps
}

// equal reports whether the GPU cannot tell two instances apart, except by their ids.
func (i Instance) equal(j Instance) bool {
	return i.Profile == j.Profile && i.Start == j.Start && slices.EqualFunc(i.Compute, j.Compute, func(a, b Compute) bool { return a.Slices == b.Slices })
}

func (g GPU) newStep(op Op, i Instance, c Compute) Step {
	s := Step{Op: op, GPU: g.UUID, Index: g.Index, Profile: i.Profile, Start: i.Start, Size: i.Size, Compute: c}
	if at := slices.IndexFunc(g.Profiles, func(p Profile) bool { return p.Name == i.Profile }); at >= 0 {
		s.Number = g.Profiles[at].Number
	}
	return s
}

// Inverse returns the step that undoes a step.
func (s Step) Inverse() Step {
	switch s.Op {
	case DestroyCompute:
		s.Op = CreateCompute
	case CreateCompute:
		s.Op = DestroyCompute
	case DestroyInstance:
		s.Op = CreateInstance
	case CreateInstance:
		s.Op = DestroyInstance
	}
	return s
}

// list returns a text like "0, 2 or 4".
func list(numbers []int) string {
	var b strings.Builder
	for i, n := range numbers {
		switch {
		case i > 0 && i == len(numbers)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		fmt.Fprint(&b, n)
	}
	return b.String()
}
