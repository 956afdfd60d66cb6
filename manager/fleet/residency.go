package fleet

import (
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// residency is what the process that serves has reported on its model as a member of a worker with
// limited memory; nil if it has reported none.
func (in *instance) residency() *control.Residency {
	if q := in.pair.Active(); q == nil || q.Generation != in.reported.Generation {
		return nil
	}
	return in.reported.Residency
}

// residencyStatus describes that for users, without what concerns the whole worker. The counters are
// those of the process.
func residencyStatus(r *control.Residency) *control.Residency {
	if r == nil {
		return nil
	}
	own := *r
	own.FixedBytes, own.Thrashing, own.NeededBytes = 0, false, 0
	return &own
}

// limitsOf returns the limits of a worker.
func limitsOf(w configs.Worker) control.WorkerLimits {
	return control.WorkerLimits{
		Lanes: w.Lanes, LanePolicy: w.Policy, MemoryBytes: int64(w.Memory), HostMemoryBytes: int64(w.HostMemory),
	}
}

// workersStatus describes the workers for users.
func (list functions) workersStatus(workers []configs.Worker) (all []control.WorkerStatus) {
	for _, w := range workers {
		s := control.WorkerStatus{Name: w.Name, MemoryBytes: int64(w.Memory), HostMemoryBytes: int64(w.HostMemory)}
		for _, f := range list {
			r := f.instances[0].residency() // a member has one instance
			if f.worker != w.Name || r == nil {
				continue
			}
			s.FixedBytes = max(s.FixedBytes, r.FixedBytes)
			if r.Thrashing {
				s.Thrashing, s.NeededBytes = true, max(s.NeededBytes, r.NeededBytes)
			}
		}
		all = append(all, s)
	}
	return all
}
