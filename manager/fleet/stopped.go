package fleet

import (
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/shm"
)

// A process that another program has stopped (SIGSTOP) answers nothing until it continues. The instance does not
// wait for the hang timeout if its shadow can serve. It kills the process after the first missed deadline, and the
// shadow takes the ring with the requests that wait.
//
// A process that is merely slow is never taken for a stopped one, because the kernel tells the difference. A process
// under a debugger is in another state too.

// standsStill reports whether the process q is stopped, a deadline has passed, and the shadow can take over. The process
// must have been stopped for a tick: after a pause of the whole node the manager may continue first.
func (in *instance) standsStill(q *pair.Process, now time.Duration) bool {
	if !stopped(in.processes.known(q.Generation).pid) {
		in.stoppedSince = 0
		return false
	}
	if in.stoppedSince == 0 {
		in.stoppedSince = now
	}
	standby := in.pair.Shadow()
	return now-in.stoppedSince >= WatchPeriod/2 && in.queue.Overdue(shm.Now()) &&
		standby != nil && standby.State == control.Loaded && standby.Card == in.pair.Card() && !stopped(in.processes.known(standby.Generation).pid)
}

// stopped reports whether a signal has stopped a process (state T of proc_pid_stat(5)).
func stopped(pid int) bool {
	if pid <= 0 {
		return false
	}
	stat, _ := procstat.Read(pid) // others notice that it has ended
	return stat.State() == 'T'
}
