package manager

import (
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/manager/policy/pair"
)

// process is what an instance knows of the process of a generation, besides its place in the
// pair. The control loop owns it.
type process struct {
	pid    int
	conn   *control.AttachConn // nil if the process is not attached
	worker string              // that hosts it; empty if it is not in one
	// left: the function was asked to leave this process, because it is superseded.
	left bool
	// A process that has ended may wait for the orchestrator's report, and its end counts only
	// then. unreported: whether the GPU was lost; exitBy: why a process ended that did not serve;
	// doubtUntil: whether a process that failed while linking had lost the GPU. The times are
	// zero if there is nothing to wait for.
	unreported         bool
	exitBy, doubtUntil time.Time
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

// hangUp closes the connection of a process that is no longer needed.
func (p processes) hangUp(generation uint32) {
	if q := p[generation]; q != nil && q.conn != nil {
		q.conn.Close()
		q.conn = nil
	}
}

// forget drops a process, and closes its connection.
func (p processes) forget(generation uint32) {
	p.hangUp(generation)
	delete(p, generation)
}

// lost records that a process closed its connection: treat it as dead.
func (in *instance) lost(generation uint32) {
	if p := in.processes[generation]; p != nil {
		p.conn = nil
	}
	q := in.pair.Process(generation)
	if q == nil {
		return
	}
	// Without a successor the cause does not matter. If the node was killed, no orchestrator is
	// left to report it.
	if q.Role == control.Drain || q.Role == control.Kill || in.f.removing {
		in.pair.Gone(generation, "")
		return
	}
	in.log.Warn().Uint32("generation", generation).Msg("process disconnected")
	if q.State == control.Active && in.m.sharing.Device.MPS {
		in.awaitReport(generation)
		return
	}
	if q.State == control.Active {
		// The shadow takes over now. The process stays desired until the orchestrator
		// has reported how it ended.
		in.pair.Died(generation, "process ended")
		return
	}
	// No shadow waits to take over, so there is time for the orchestrator to report why.
	in.processes.of(generation).exitBy = runclock.Time().Add(exitReportTimeout)
}

// exitReportTimeout is how long the orchestrator has to report why a process ended.
const exitReportTimeout = time.Second

// markExited marks processes as exited without a reason when none was reported in time.
func (p processes) markExited(now time.Time, in *pair.Pair) {
	for generation, p := range p {
		if !p.exitBy.IsZero() && now.After(p.exitBy) {
			in.Gone(generation, "process ended")
			p.exitBy = time.Time{}
		}
	}
}

// kill ends a process that does harm.
func (in *instance) kill(generation uint32, cause error) {
	if q := in.pair.Process(generation); q != nil && q.Role != control.Kill {
		in.log.Error().Err(cause).Uint32("generation", generation).Msg("process broke the protocol; killed it")
		in.pair.Kill(generation)
	}
}

// failures are the failed processes of an instance. The control loop owns it.
type failures struct {
	// reason is why the last process failed; empty once one serves.
	reason string
	// last is about the last process that failed; nil if none has.
	last *control.ProcessFailure
	// count is the number of processes that failed.
	count uint64
}

// observe applies the orchestrator's report on a process. An expected failure is not counted.
func (f *failures) observe(o *control.ObservedProcess, expected bool) {
	switch o.State {
	case control.Failed:
		if !expected {
			f.count++
		}
		f.reason = o.Reason
		f.last = &control.ProcessFailure{Generation: o.Generation, PID: o.PID, At: time.Now(), Reason: o.Reason}
	case control.Active:
		f.reason = ""
	}
}
