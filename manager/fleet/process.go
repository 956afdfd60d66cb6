package fleet

import (
	"crypto/rand"
	"errors"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/manager/policy/pair"
)

// process is what an instance knows of the process of a generation, besides its place in the
// pair. The control loop owns it.
type process struct {
	ticket string // that it must show when it attaches
	pid    int
	conn   *control.AttachConn // nil if the process is not attached
	worker string              // that hosts it; empty if it is not in one
	// left: the function was asked to leave this process, because it is superseded.
	left bool
	// sizes is how many batch sizes it runs; growing: it is still getting more.
	sizes   int
	growing bool
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
		p[generation] = &process{ticket: rand.Text()}
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

// reset drops what is known of a process, except its ticket, and closes its connection.
func (p processes) reset(generation uint32) {
	if q := p[generation]; q != nil {
		p.hangUp(generation)
		*q = process{ticket: q.ticket}
	}
}

// keep drops the processes that are no longer desired.
func (p processes) keep(of *pair.Pair) {
	for generation := range p {
		if of.Process(generation) == nil {
			p.hangUp(generation)
			delete(p, generation)
		}
	}
}

// reported is the last report of an active process, and what it runs: another worker has another card. The
// control loop owns it.
type reported struct {
	control.Report
	run pair.Run
}

// readReports reads a process's reports until its connection closes.
func (in *instance) readReports(conn *control.AttachConn, generation uint32) {
	defer conn.Close()
	for {
		r, err := conn.ReadReport()
		if errors.Is(err, control.ErrBadMessage) || errors.Is(err, control.ErrTooLong) {
			// The process lives and sends invalid reports. Its memory counts as free only
			// when it is dead.
			in.fleet.loop.Post(func() { in.kill(generation, err) })
			continue
		}
		if err != nil {
			// The kernel closes a dead process's sockets at once, so this is the first sign
			// of its death.
			in.fleet.loop.Post(func() { in.lost(generation) })
			return
		}
		in.fleet.loop.Post(func() { in.report(generation, r) })
	}
}

// report applies libml's report on its batching.
func (in *instance) report(generation uint32, r control.Report) {
	active := in.pair.Active()
	if active == nil || active.Generation != generation {
		return
	}
	r.Generation = generation
	in.noteHandovers(&r)
	in.reported = reported{r, active.Run}
}

// noteHandovers counts the new hand-overs in a process's report. A process's first
// hand-over gave it the ring; each later one was a move.
func (in *instance) noteHandovers(r *control.Report) {
	counted := uint64(0)
	if r.Generation == in.reported.Generation {
		counted = in.reported.Handovers
	}
	if r.Handovers <= counted {
		return
	}
	moves := r.Handovers - max(1, counted)
	in.f.swaps.Count += moves
	if r.IdleNanos < 0 {
		return
	}
	// The idle time is that of the last hand-over.
	mechanism := configs.ChangeShadow
	switch {
	case moves > 0:
		mechanism = configs.ChangePartition
	case in.pair.Restart:
		mechanism = configs.ChangeRestart
	}
	in.f.swaps.AddIdle(time.Duration(r.IdleNanos))
	in.fleet.metrics.HandedOver(in.f.name, string(mechanism), time.Duration(r.IdleNanos))
}

// desire appends the processes that should exist.
func (in *instance) desire(to []control.DesiredProcess) []control.DesiredProcess {
	for _, q := range in.pair.Processes() {
		with, d := in.f.setupFor(q.Card), in.fleet.device(q.Device)
		p := control.DesiredProcess{
			IF: in.f.name, Instance: in.id.Instance, Generation: q.Generation, Device: q.Device,
			SharedWeights: with.weights == configs.WeightsShared && d.Device.GPU != nil,
			Started:       q.Attached || in.processes.known(q.Generation).pid != 0,
			Command:       q.Card.Command, Framework: q.Card.SeparateProgram(), Dir: q.Card.Dir, Model: q.Card.Model, Data: q.Card.Data, Card: q.Card.File,
			Worker: with.worker, Environment: with.environment, Ticket: in.processes.of(q.Generation).ticket,
		}
		in.ordersOn(d).fill(&p, q, &in.fleet.cfg, d.Change(&in.fleet.cfg, in.f.config))
		p.PartialWarmUp = q.Early && d.Device.GPU != nil && d.AnswersRightly(&in.fleet.cfg, in.f.config, q)
		if w, ok := in.fleet.cfg.Worker(with.worker); ok {
			p.WorkerLimits = limitsOf(w)
		}
		to = append(to, p)
	}
	return to
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
	if q.State == control.Active && in.fleet.device(q.Device).Device.MPS {
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
