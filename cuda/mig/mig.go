// Package mig divides GPUs into MIG instances. It computes all changes before it makes
// the first one.
//
// A change takes four steps:
//
//  1. Session.GPUs lists the GPUs: their placement tables and their observed instances
//     (GPU, Instance). Blank returns GPUs that do not exist, for a plan that is only
//     looked at.
//  2. The caller says which instances it wants (Placement, the desired state).
//  3. Steps compares the two and returns the changes in order. It is pure, and refuses
//     everything that a GPU would refuse.
//  4. Do takes the steps one after the other. If one fails, it undoes those before it, in
//     reverse. Failure says which steps were done, undone and left.
//
// On a GPU with a desired state, desired instances that exist are not touched, and all
// others are destroyed. GPUs without a desired state do not change. An instance in
// which a process runs is never destroyed: the driver refuses, and the change stops.
// The package does not switch MIG mode, since that resets the GPU and ends everything
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

// errNoGPU is returned for a Placement on a GPU that does not exist or has no MIG.
var errNoGPU = errors.New("no such GPU with MIG")

// ErrNoProfile is returned for a Placement whose profile the GPU does not have.
var ErrNoProfile = errors.New("no such profile")

// ErrPlacement is returned for a profile at a place where it cannot start.
var ErrPlacement = errors.New("a profile cannot start there")

// ErrInUse is returned for an instance that cannot be destroyed because a process runs in it.
var ErrInUse = errors.New("a process runs in it, or a compute instance is left")

// errOverlap is returned if two instances need the same memory slice.
var errOverlap = errors.New("two instances want the same slot")

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

// Placement is a desired instance: its profile and its place. It gets one compute
// instance of its full size.
type Placement struct {
	// GPU is the GPU's UUID.
	GPU string
	// Profile is the profile's name, such as "3g.40gb".
	Profile string
	// Start is the first memory slice.
	Start int
}

// Op is what a step does.
type Op int

// The kinds of steps. EnableMode is for the operator: Do refuses it.
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

// Blank returns n GPUs that do not exist, in MIG mode and not divided, with these
// profiles. Their UUIDs are "gpu-0", "gpu-1", ...
func Blank(n int, name string, profiles []Profile) []GPU {
	gpus := make([]GPU, n)
	for i := range gpus {
		gpus[i] = GPU{Index: i, UUID: fmt.Sprintf("gpu-%d", i), Name: name, MIG: true, Profiles: profiles}
	}
	return gpus
}

// Steps returns the changes after which every GPU with desired instances has those and
// no others. They go GPU by GPU in the order of gpus. On each GPU, instances that are
// not desired are destroyed first, from the left. Then the missing ones are created,
// larger ones first. Steps does not touch a desired instance that exists as a whole. If
// a desired GPU instance exists, but not with a single compute instance of its full
// size, the GPU instance stays.
//
// The error is one of the package's, with the GPU, the profile, the place, and what
// would be right.
func Steps(gpus []GPU, wanted []Placement) ([]Step, error) {
	for _, w := range wanted {
		if !slices.ContainsFunc(gpus, func(g GPU) bool { return g.UUID == w.GPU }) {
			var have []string
			for _, g := range gpus {
				have = append(have, g.UUID)
			}
			if len(have) == 0 {
				return nil, fmt.Errorf("%s at slot %d: %q: %w; there is none", w.Profile, w.Start, w.GPU, errNoGPU)
			}
			return nil, fmt.Errorf("%s at slot %d: %q: %w; there are: %s", w.Profile, w.Start, w.GPU, errNoGPU, strings.Join(have, ", "))
		}
	}
	var steps []Step
	for _, g := range gpus {
		var mine []Placement
		for _, w := range wanted {
			if w.GPU == g.UUID {
				mine = append(mine, w)
			}
		}
		if len(mine) == 0 {
			continue
		}
		s, err := g.steps(mine)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s...)
	}
	return steps, nil
}

// steps is Steps for one GPU.
func (g GPU) steps(wanted []Placement) ([]Step, error) {
	missing, err := g.lay(wanted)
	if err != nil {
		return nil, err
	}
	var steps []Step
	if !g.MIG {
		steps = append(steps, Step{Op: EnableMode, GPU: g.UUID, Index: g.Index})
	}
	for _, i := range g.Instances {
		at := slices.IndexFunc(missing, func(s Step) bool { return s.Start == i.Start && s.Profile == i.Profile })
		if at >= 0 && i.IsComplete() {
			missing = slices.Delete(missing, at, at+1)
			continue
		}
		about := g.newStep(i)
		for _, c := range i.Compute {
			about.Op, about.Compute = DestroyCompute, c
			steps = append(steps, about)
		}
		about.Compute = Compute{}
		if at >= 0 { // the GPU instance stays
			about.Op, about.Compute = CreateCompute, Compute{Slices: i.Slices}
			steps = append(steps, about)
			missing = slices.Delete(missing, at, at+1)
			continue
		}
		about.Op = DestroyInstance
		steps = append(steps, about)
	}
	for _, s := range missing {
		whole := s.Compute
		s.Op, s.Compute = CreateInstance, Compute{}
		steps = append(steps, s)
		s.Op, s.Compute = CreateCompute, whole
		steps = append(steps, s)
	}
	return steps, nil
}

// lay checks the desired instances against the GPU's table. It returns them as steps
// whose Compute is the whole instance, larger ones first.
func (g GPU) lay(wanted []Placement) ([]Step, error) {
	var laid []Step
	taken := map[int]string{}
	for _, w := range wanted {
		at := slices.IndexFunc(g.Profiles, func(p Profile) bool { return p.Name == w.Profile })
		if at < 0 {
			var have []string
			for _, p := range g.Profiles {
				have = append(have, p.Name)
			}
			return nil, fmt.Errorf("%s at slot %d of %v, %s: %w; there are: %s", w.Profile, w.Start, g, g.Name, ErrNoProfile, strings.Join(have, ", "))
		}
		p := g.Profiles[at]
		if !slices.Contains(p.Starts, w.Start) {
			return nil, fmt.Errorf("%s at slot %d of %v: %w; it can start at %s", w.Profile, w.Start, g, ErrPlacement, list(p.Starts))
		}
		what := fmt.Sprintf("%s at slot %d", w.Profile, w.Start)
		for slot := w.Start; slot < w.Start+p.Size; slot++ {
			if other, ok := taken[slot]; ok {
				return nil, fmt.Errorf("%s of %v: %w: slot %d is that of %s, too; %s takes %s", what, g, errOverlap, slot, other, w.Profile, slots(w.Start, p.Size))
			}
			taken[slot] = what
		}
		laid = append(laid, Step{GPU: g.UUID, Index: g.Index, Profile: p.Name, Number: p.Number,
			Start: w.Start, Size: p.Size, Compute: Compute{Slices: p.Slices}})
	}
	slices.SortFunc(laid, func(a, b Step) int {
		if a.Compute.Slices != b.Compute.Slices {
			return b.Compute.Slices - a.Compute.Slices
		}
		return a.Start - b.Start
	})
	return laid, nil
}

// newStep returns a step for an instance; the caller sets Op.
func (g GPU) newStep(i Instance) Step {
	s := Step{GPU: g.UUID, Index: g.Index, Profile: i.Profile, Start: i.Start, Size: i.Size}
	if at := slices.IndexFunc(g.Profiles, func(p Profile) bool { return p.Name == i.Profile }); at >= 0 {
		s.Number = g.Profiles[at].Number
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
