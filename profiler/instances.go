package profiler

import (
	"errors"
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
	taken   []mig.Step // that cut the GPU
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
		if _, ok := idle(g, size); ok || in.cuts {
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
		steps, err := mig.Steps([]mig.GPU{g}, []mig.Placement{{GPU: g.UUID, Profile: size.Profile, Start: size.Starts[0]}})
		if err != nil {
			return "", err
		}
		if err := mig.Do(in.session, steps, nil); err != nil {
			if failed, ok := errors.AsType[*mig.Failure](err); ok {
				in.taken = append(in.taken, failed.Left...)
			}
			return "", err
		}
		in.taken = append(in.taken, steps...)
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

// Close cuts the GPU as before. No process may run in the instances.
func (in *Instances) Close() error {
	left, err := mig.Undo(in.session, in.taken)
	if in.taken = left; err != nil {
		return fmt.Errorf("restore the instances of %s: %w; undo by hand: %v", in.uuid, err, left)
	}
	return nil
}
