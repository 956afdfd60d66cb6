package profiler

import (
	"fmt"
	"slices"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/plan"
)

// Instances are the MIG instances of a GPU in which a Profiler measures, one size after the other. Close
// restores them.
type Instances struct {
	session mig.Session
	uuid    string
	table   plan.GPU
	cuts    bool
	before  []mig.Instance
}

// OpenInstances finds the instances of a GPU in MIG mode. cuts allows to cut the GPU, which must then be idle.
func OpenInstances(session mig.Session, uuid string, cuts bool) (*Instances, error) {
	in := &Instances{session: session, uuid: uuid, cuts: cuts}
	g, err := in.gpu()
	if err != nil {
		return nil, err
	}
	if in.table, err = plan.ForDevice(g.Name); err != nil {
		return nil, err
	}
	in.before = g.Instances
	for _, i := range g.Instances {
		if cuts && len(i.PIDs) > 0 {
			return nil, fmt.Errorf("cut %v: %s at slot %d: %w: %v", g, i.Profile, i.Start, mig.ErrInUse, i.PIDs)
		}
	}
	if !cuts && len(in.sizes(g)) == 0 {
		return nil, fmt.Errorf("%v has no idle instance of a size that plans use; allow to cut it with --cut", g)
	}
	return in, nil
}

// gpu reads how the GPU is cut now.
func (in *Instances) gpu() (mig.GPU, error) {
	gpus, err := in.session.GPUs()
	if err != nil {
		return mig.GPU{}, err
	}
	at := slices.IndexFunc(gpus, func(g mig.GPU) bool { return g.UUID == in.uuid })
	switch {
	case at < 0:
		return mig.GPU{}, fmt.Errorf("%s has no MIG; leave out --cut", in.uuid)
	case !gpus[at].MIG:
		return mig.GPU{}, fmt.Errorf("%v: %w; turn it on (nvidia-smi -i %d -mig 1 resets the GPU), or leave out --cut", gpus[at], mig.ErrMode, gpus[at].Index)
	}
	return gpus[at], nil
}

// idle finds an instance of a size that one process can use as a whole, and none uses.
func idle(g mig.GPU, size plan.Size) (mig.Instance, bool) {
	at := slices.IndexFunc(g.Instances, func(i mig.Instance) bool {
		return i.Profile == size.Profile && i.UUID != "" && len(i.PIDs) == 0
	})
	if at < 0 {
		return mig.Instance{}, false
	}
	return g.Instances[at], true
}

// sizes returns the sizes in which can be measured, in GPCs.
func (in *Instances) sizes(g mig.GPU) (gpcs []int) {
	for _, size := range in.table.Sizes {
		offered := slices.ContainsFunc(g.Profiles, func(p mig.Profile) bool { return p.Name == size.Profile })
		if _, ok := idle(g, size); ok || in.cuts && offered {
			gpcs = append(gpcs, size.GPCs)
		}
	}
	return gpcs
}

// Scale returns the scale of the sizes. The processes in an instance share the whole of it.
func (in *Instances) Scale() (Scale, error) {
	g, err := in.gpu()
	return Scale{Unit: profile.GPCs, Total: in.table.GPCs, Shares: in.sizes(g), Percent: func(int) float64 { return 100 }}, err
}

// use returns the device of an instance of a size. It cuts the GPU if there is none.
func (in *Instances) use(gpcs int) (device string, err error) {
	size, _ := in.table.Size(gpcs) // Fill has checked that it exists
	g, err := in.gpu()
	if err != nil {
		return "", err
	}
	i, ok := idle(g, size)
	if !ok && in.cuts {
		whole := mig.Instance{Profile: size.Profile, Slices: size.GPCs, Start: size.Starts[0], Size: size.Slots, Compute: []mig.Compute{{Slices: size.GPCs}}}
		if err := in.cut(whole); err != nil {
			return "", err
		}
		if g, err = in.gpu(); err != nil {
			return "", err
		}
		i, ok = idle(g, size)
	}
	if !ok {
		return "", fmt.Errorf("%v has no idle %s any more: another program uses it", g, size.Profile)
	}
	return i.UUID, nil
}

// cut divides the GPU into these instances, and no others.
func (in *Instances) cut(wanted ...mig.Instance) error {
	g, err := in.gpu()
	if err != nil {
		return err
	}
	for _, step := range g.Steps(wanted) {
		if err := in.session.Take(step); err != nil {
			return err
		}
	}
	return nil
}

// Close cuts the GPU as before, if it was allowed to cut it. No process may run in the instances.
func (in *Instances) Close() error {
	if !in.cuts {
		return nil
	}
	if err := in.cut(in.before...); err != nil {
		return fmt.Errorf("restore the instances of %s: %w; cut it by hand, as before: %v", in.uuid, err, in.before)
	}
	return nil
}
