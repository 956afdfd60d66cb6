package serve

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/internal/loop"
	"github.com/penstock/penstock/shm"
)

// reporter reports to the manager what batching does. A goroutine of the reporter, which begins when the process
// serves, sends the figures of the loop.
type reporter struct {
	p       *process
	loop    *loop.Loop
	account *gate.Account
	done    chan struct{} // closed when the loop has ended
}

// run reports at once and then every control.ReportEvery, until the loop has ended. It leaves out a
// report that equals the last one.
func (r *reporter) run() {
	tick := time.NewTicker(control.ReportEvery)
	defer tick.Stop()

	var last control.Report
	began := cpuTime()
	for {
		select {
		case <-r.done:
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
		case <-r.done:
			return
		case <-tick.C:
		}
	}
}

// report returns the present figures.
func (r *reporter) report(cpuNanos int64) control.Report {
	batches, account := r.loop.Figures(), r.account.Figures()
	return control.Report{
		Generation: r.p.start.Generation,
		Limit:      batches.Limit,
		TailNanos:  int64(batches.Tail),
		Fit:        control.Fit(batches.Fit.String()),
		CPUNanos:   cpuNanos,
		Ran:        batches.Ran,

		DeviceNanos: int64(account.Charged), DemotedNanos: int64(account.Demoted),
		Unprotected: r.unprotected(account.Refused),
		FixedNanos:  int64(account.Fixed), EachNanos: int64(account.PerImage),

		Residency:    r.p.residence.Report(shm.Now()),
		Measurements: r.p.measured,
		Compared:     r.p.comparedFiles(),
		Handovers:    batches.Handovers, IdleNanos: batches.IdleNanos,
	}
}

// unprotected tells why batches beyond the guarantee are not demoted. It is empty if they are,
// or if there were none. On CPUs the orchestrator demotes the process.
func (r *reporter) unprotected(refused bool) control.Unprotected {
	switch {
	case !r.p.onGPU() || r.p.orders.terms().Level == budget.Demoted:
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
