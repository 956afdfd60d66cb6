package fleet

import (
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/shm"
)

// A process that another program has stopped (SIGSTOP) answers nothing until it continues. The instance does not
// wait for the hang timeout if its shadow can serve. It kills the process after the first missed deadline, and the
// shadow takes the ring with the requests that wait.
//
// A process that is merely slow is never taken for a stopped one, because the kernel tells the difference. A process
// under a debugger is in another state too.

// failOver kills the process that should answer if it is stopped, a deadline has passed, and the shadow can take
// over. The process must have been stopped for a tick: after a pause of the whole node the manager may continue first.
func (in *instance) failOver(now time.Duration) {
	q := holder(in.pair, in.queue.Owner())
	if q == nil || q.Role == control.Kill || !stopped(in.processes.known(q.Generation).pid) {
		in.stoppedSince = 0
		return
	}
	if in.stoppedSince == 0 {
		in.stoppedSince = now
		return
	}
	standby := in.pair.Shadow()
	switch {
	case now-in.stoppedSince < WatchPeriod/2 || !in.queue.Overdue(shm.Now()):
		return
	case standby == nil || standby.State != control.Loaded || standby.Card != in.pair.Card():
		return
	case stopped(in.processes.known(standby.Generation).pid):
		return
	}
	in.log.Error().Uint32("generation", q.Generation).Uint32("standby", standby.Generation).
		Msg("process is stopped by a signal and missed a deadline; killed it, its shadow takes over")
	in.failures.reason = "another program had stopped the process (SIGSTOP); it missed a deadline and was killed"
	in.pair.Kill(q.Generation)
	in.f.hangs++
	in.stoppedSince = 0
}

// stopped reports whether a signal has stopped a process (state T of proc_pid_stat(5)).
func stopped(pid int) bool {
	if pid <= 0 {
		return false
	}
	stat, _ := procstat.Read(pid) // others notice that it has ended
	return stat.State() == 'T'
}
