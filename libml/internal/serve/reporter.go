package serve

import (
	"errors"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/shm"
)

// reporter reports to the manager what batching does. The loop stores the figures. A goroutine
// of the reporter, which begins when the process serves, sends them.
type reporter struct {
	p       *process
	account *gate.Account

	handovers handovers // the loop's
	published atomic.Pointer[handovers]
	limit     atomic.Uint64 // math.Float64bits
	fit       atomic.Uint32
	tail      atomic.Int64
	ran       atomic.Int64 // requests
}

// handovers counts hand-overs and moves, and has the time for which the last one left the ring
// idle.
type handovers struct {
	count     uint64
	idleNanos int64 // -1: not idle
}

// addHandover counts a hand-over or a move.
func (r *reporter) addHandover(idleNanos int64) {
	r.handovers = handovers{count: r.handovers.count + 1, idleNanos: idleNanos}
	published := r.handovers
	r.published.Store(&published)
}

// publish stores the state of the batching rule.
func (r *reporter) publish(q *batching.Queue) {
	r.limit.Store(math.Float64bits(q.State.Limit))
	r.fit.Store(uint32(q.State.Fit))
	r.tail.Store(int64(q.Expected(q.Rule.Size(q.State))))
}

// run reports at once and then every control.ReportEvery, until done is closed. It leaves out a
// report that equals the last one.
func (r *reporter) run(done <-chan struct{}) {
	tick := time.NewTicker(control.ReportEvery)
	defer tick.Stop()

	var last control.Report
	began := cpuTime()
	for {
		select {
		case <-done:
			return
		default:
		}
		if report := r.report(cpuTime() - began); !report.Equal(last) {
			last = report
			switch err := r.p.conn.Report(report); {
			case errors.Is(err, control.ErrBehind):
				last = control.Report{} // report it again at the next tick
			case err != nil:
				return // the manager is gone; process.watch has noticed, too
			}
		}
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// report returns the present figures.
func (r *reporter) report(cpuNanos int64) control.Report {
	figures := r.account.Figures()
	report := control.Report{
		Generation: r.p.start.Generation,
		Limit:      math.Float64frombits(r.limit.Load()),
		TailNanos:  r.tail.Load(),
		Fit:        control.Fit(batching.Fit(r.fit.Load()).String()),
		CPUNanos:   cpuNanos,
		Ran:        r.ran.Load(),

		DeviceNanos: int64(figures.Charged), DemotedNanos: int64(figures.Demoted),
		Unprotected: r.unprotected(figures.Refused),
		FixedNanos:  int64(figures.Fixed), EachNanos: int64(figures.PerImage),

		Residency:    r.p.residence.Report(shm.Now()),
		Measurements: r.p.measured,
		Compared:     r.p.comparedFiles(),
	}
	if published := r.published.Load(); published != nil {
		report.Handovers, report.IdleNanos = published.count, published.idleNanos
	}
	return report
}

// unprotected tells why batches beyond the guarantee are not demoted. It is empty if they are,
// or if there were none. On CPUs the orchestrator demotes the process.
func (r *reporter) unprotected(refused bool) control.Unprotected {
	switch {
	case !r.p.onGPU() || r.p.orders.present().terms.Level == budget.Demoted:
		return ""
	case r.p.level == budget.Demoted:
		return control.UnprotectedByDevice
	case refused:
		return control.UnprotectedByFramework
	}
	return ""
}

// cpuTime is the CPU time that this process has used, in nanoseconds (getrusage(2)).
func cpuTime() int64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return r.Utime.Nano() + r.Stime.Nano()
}
