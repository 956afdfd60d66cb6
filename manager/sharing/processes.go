package sharing

import (
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/pair"
)

// observation is which batch sizes a process reports to run and, on a GPU, what it reports to use.
type observation struct {
	sms     int
	groups  []int
	batches []int
	growing bool // it is still getting more batch sizes
}

// complete reports whether the process runs all its batch sizes.
func (o *observation) complete() bool { return len(o.batches) > 0 && !o.growing }

// process is what is known of the process of a generation.
type process struct {
	observation
	spent spending // so far
}

// processes are the known processes of an instance, by generation.
type processes map[uint32]*process

// of returns the process of a generation, and adds it if it is not known.
func (p processes) of(generation uint32) *process {
	if p[generation] == nil {
		p[generation] = &process{}
	}
	return p[generation]
}

// known returns what is known of a generation; the zero value if nothing is.
func (p processes) known(generation uint32) process {
	if q := p[generation]; q != nil {
		return *q
	}
	return process{}
}

// forgetObservations drops what was observed on another device.
func (p processes) forgetObservations() {
	for _, q := range p {
		q.observation = observation{}
	}
}

// Growth is how the batch sizes of a process have changed since its last report.
type Growth struct {
	More     bool // it has more than before
	Complete bool // it has got the last ones
}

// Observe learns from what the orchestrator reports on a process besides its state.
func (in *Instance) Observe(q *pair.Process, o *control.ObservedProcess) (g Growth) {
	in.learnMinimum(q, o)
	in.learnWrong(q, o)
	if o.State.Ended() || o.SMs == 0 && len(o.SMGroups) == 0 && len(o.Batches) == 0 {
		return g
	}
	if !in.f.s.onGPU() {
		in.noteSpending(o.Generation, spending{time.Duration(o.DeviceNanos), time.Duration(o.DemotedNanos)})
	}
	p := in.processes.of(o.Generation)
	before, now := p.observation, observation{o.SMs, o.SMGroups, o.Batches, o.WarmingUp}
	p.observation = now
	if now.complete() && !before.complete() {
		in.pair.Whole(o.Generation)
		in.learnRight(q)
	}
	if g.Complete = before.growing && !now.growing; g.Complete {
		in.log.Info().Uint32("generation", o.Generation).Ints("batches", now.batches).Msg("process has all its batch sizes")
	}
	g.More = len(before.batches) > 0 && len(now.batches) > len(before.batches)
	return g
}

// Report learns from a report of the active process.
func (in *Instance) Report(r *control.Report) {
	in.Entitled.unprotected = r.Unprotected
	if in.f.s.onGPU() {
		in.noteSpending(r.Generation, spending{time.Duration(r.DeviceNanos), time.Duration(r.DemotedNanos)})
	}
	in.noteCosts(r)
	in.Limit = r.Limit
	fit := r.Fit
	if in.Growing() {
		fit = control.FitUnknown
	}
	if fit != in.Fit {
		in.Fit = fit
		in.log.Debug().Str("fit", string(fit)).Float64("limit", r.Limit).Msg("batching")
		in.f.s.tuneEarly(in)
	}
}

// HandedOver records that another process got the ring.
func (in *Instance) HandedOver() { in.Placement.Replaced() }

// Ended drops a process that has ended.
func (in *Instance) Ended(generation uint32) {
	delete(in.processes, generation)
	in.Placement.Forget(generation)
}

// Growing reports whether the active process is still getting batch sizes. Its measurements until
// then say nothing about its share.
func (in *Instance) Growing() bool {
	q := in.pair.Active()
	return q != nil && in.processes.known(q.Generation).growing
}

// Fill adds to a desired process of the instance its role and its part of the device.
func (in *Instance) Fill(p *control.DesiredProcess, q *pair.Process) {
	groups, wait := in.groupsFor(q.Generation, q.Role)
	p.Role, p.SMGroups = q.Role, groups
	if wait {
		p.Role = control.Shadow
	}
	p.Terms = in.terms(q, p.Role)
	p.PartialWarmUp = q.Early && in.f.s.onGPU() && in.answersRightly(q)
}
