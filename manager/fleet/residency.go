package fleet

import (
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
)

// residency is what the members of a worker with limited memory report on an instance's model. The
// control loop owns it.
type residency struct {
	// last is the last report, of the process of a generation; nil if that process is in no such
	// worker.
	last       *control.Residency
	generation uint32
	// loads and evictions count since the function was added.
	loads, evictions uint64
}

// note records the report of the process of a generation.
func (r *residency) note(generation uint32, now *control.Residency) {
	before := r.last
	if before == nil || generation != r.generation {
		before = &control.Residency{}
	}
	if now != nil {
		r.loads += now.Loads - min(before.Loads, now.Loads)
		r.evictions += now.Evictions - min(before.Evictions, now.Evictions)
	}
	r.last, r.generation = now, generation
}

// status describes the model's residency for users; nil if it is always in memory.
func (r *residency) status() *control.ResidencyStatus {
	if r.last == nil {
		return nil
	}
	return &control.ResidencyStatus{
		State: r.last.State, Bytes: r.last.Bytes, Loads: r.loads, Evictions: r.evictions, LastLoadMillis: r.last.LastLoadMillis,
	}
}

// currentResidency is the residency of the process that serves; nil if there is none.
func (in *instance) currentResidency() *control.ResidencyStatus {
	if q := in.pair.Active(); q == nil || q.Generation != in.residency.generation {
		return nil
	}
	return in.residency.status()
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
			in := f.instances[0] // a member has one instance
			if f.worker != w.Name || in.currentResidency() == nil {
				continue
			}
			r := in.residency.last
			s.FixedBytes = max(s.FixedBytes, r.FixedBytes)
			if r.Thrashing {
				s.Thrashing, s.NeededBytes = true, max(s.NeededBytes, r.NeededBytes)
			}
		}
		all = append(all, s)
	}
	return all
}

// warmedUp has the results of the last warm-up. The control loop owns it.
type warmedUp struct {
	card     *models.Card // another worker has another card
	results  *control.Measurements
	compared string // control.Report.Compared
}

// of returns the results for a card; nil and empty if there are none.
func (w *warmedUp) of(card *models.Card) (results *control.Measurements, compared string) {
	if w.card != card {
		return nil, ""
	}
	return w.results, w.compared
}
