// Package mig cuts GPUs into MIG instances, and says what has to change before it
// changes anything.
//
// The way of a change:
//
//  1. Session.GPUs lists the GPUs: their placement tables and what they are cut
//     into now (GPU, Instance: facts). Blank gives GPUs that are not there, for a
//     plan that is only looked at.
//  2. The caller says what should be (Placement: wishes).
//  3. Steps compares the two and says what to do, in order. It is pure, and
//     refuses what a GPU would refuse.
//  4. Do takes the steps one after the other. When one fails, those before it are
//     undone, in reverse, and Failure says what was done, undone and left.
//
// On a GPU that is wished for, instances that stay are not touched, and all that
// are not wished for go. GPUs without a wish are left alone. An instance in which
// a process runs is never destroyed: the driver refuses, and the change stops.
// MIG mode itself is not switched here: that resets the GPU and ends whatever
// runs on it, so it is asked for (Step of Op EnableMode).
//
// Positions are memory slices, as NVML counts them: an A100 has eight, of which a
// 3g.40gb takes four, starting at 0 or 4. NVIDIA's MIG User Guide calls them
// "placements".
//
// All of it needs root, or CAP_SYS_ADMIN: so says nvml.h of every function that
// lists or changes instances. Sessions may be used from any goroutine; two
// changes of one GPU at a time are the caller's to prevent.
//
// strict, next door, makes go-nvml's mock servers refuse as a GPU does.
package mig

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrMode is returned for a GPU on which MIG mode is off.
var ErrMode = errors.New("MIG mode is off")

// errNoGPU is returned for a wish on a GPU that is not there or cannot be cut.
var errNoGPU = errors.New("no such GPU with MIG")

// ErrNoProfile is returned for a wish that the GPU has no profile for.
var ErrNoProfile = errors.New("no such profile")

// ErrPlacement is returned for a profile where it cannot start.
var ErrPlacement = errors.New("a profile cannot start there")

// errOverlap is returned if two instances need the same memory slice.
var errOverlap = errors.New("two instances want the same slot")

// A GPU is one that can be cut, and how it is cut now.
type GPU struct {
	// Index is nvidia-smi's number of it, which may change when it is reset; UUID
	// does not change.
	Index      int
	UUID, Name string
	// MIG says that it is in MIG mode. Only then can it have instances.
	MIG bool
	// Profiles are what can be cut out, in NVML's order.
	Profiles []Profile
	// Instances are what is cut out, ascending by Start.
	Instances []Instance
}

// String is how errors and steps name it: "GPU 0 (GPU-…)".
func (g GPU) String() string { return named(g.Index, g.UUID) }

func named(index int, uuid string) string { return fmt.Sprintf("GPU %d (%s)", index, uuid) }

// Profile is a kind of GPU instance.
type Profile struct {
	// Name is nvidia-smi's: "3g.40gb".
	Name string
	// Number is NVML's (NVML_GPU_INSTANCE_PROFILE_3_SLICE is 2).
	Number int
	// Slices is how many compute slices it has, Size how many memory slices it
	// takes.
	Slices, Size int
	// Starts are the memory slices that it may start at, ascending.
	Starts []int
}

// Instance is a GPU instance as it is.
type Instance struct {
	// ID is the driver's, unique on its GPU while the instance lives.
	ID int
	// Profile is the name of its profile.
	Profile string
	// Slices, Start and Size are as in Profile.
	Slices, Start, Size int
	// Compute are the compute instances in it, ascending by ID.
	Compute []Compute
}

// whole says that processes find the instance as one device of its full size.
func (i Instance) whole() bool { return len(i.Compute) == 1 && i.Compute[0].Slices == i.Slices }

// Compute is a compute instance: the part of a GPU instance that a process sees.
type Compute struct{ ID, Slices int }

// Placement is a wish: an instance of that profile at that place, with one
// compute instance as large as it.
type Placement struct {
	// GPU is the GPU's UUID.
	GPU string
	// Profile is a profile's name, as "3g.40gb".
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
	// GPU is the GPU's UUID, Index its number at the time.
	GPU   string
	Index int
	// Profile, Number, Start and Size say which GPU instance, as in Profile and
	// Instance.
	Profile             string
	Number, Start, Size int
	// Compute is the compute instance of DestroyCompute and CreateCompute. The
	// driver gives the ID of one that is created.
	Compute Compute
}

// String says it as a person would: "create 3g.40gb in slots 4–7 of GPU 0 (GPU-…)".
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
	// GPUs lists those that have MIG, on or off, in the order of their indices.
	GPUs() ([]GPU, error)
	// Take takes one step. Its error names the step. A step that the driver refuses
	// has changed nothing.
	Take(Step) error
}

// Blank is n GPUs that are not there, in MIG mode and uncut, with these profiles.
// Their UUIDs are "gpu-0", "gpu-1", ...
func Blank(n int, name string, profiles []Profile) []GPU {
	gpus := make([]GPU, n)
	for i := range gpus {
		gpus[i] = GPU{Index: i, UUID: fmt.Sprintf("gpu-%d", i), Name: name, MIG: true, Profiles: profiles}
	}
	return gpus
}

// Steps says what to do so that every GPU that is wished for has the instances
// that are wished for and no others. They go GPU by GPU in the order of gpus; on
// a GPU first what must go goes, from the left, then what is missing is made, the
// larger first. Instances that are there already, whole, are not in it. What is
// there and wished for but not with a single compute instance of its full size
// keeps its GPU instance.
//
// The error is one of the package's, with the GPU, the profile, the place, and
// what would be right.
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

// steps is Steps on one GPU.
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
		if at >= 0 && i.whole() {
			missing = slices.Delete(missing, at, at+1)
			continue
		}
		about := g.about(i)
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

// lay checks the wishes against the GPU's table, and returns them as steps whose
// Compute is the whole instance, the larger first.
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

// about is a step about an instance.
func (g GPU) about(i Instance) Step {
	s := Step{GPU: g.UUID, Index: g.Index, Profile: i.Profile, Start: i.Start, Size: i.Size}
	if at := slices.IndexFunc(g.Profiles, func(p Profile) bool { return p.Name == i.Profile }); at >= 0 {
		s.Number = g.Profiles[at].Number
	}
	return s
}

// list is "0, 2 or 4".
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
