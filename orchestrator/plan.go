package orchestrator

import (
	"slices"
	"time"

	"github.com/penstock/penstock/control"
)

// desiredState is the desired state.
type desiredState struct {
	// desired is the manager's latest message, nil while there is no manager.
	desired *control.Desired
	// ending: the orchestrator itself is about to end.
	ending bool
	// waiting: another orchestrator started the processes, and their manager has not
	// sent this one a message yet. Until then no process is started or asked to end.
	waiting bool
}

// observedProcess is the observed state of one process.
type observedProcess struct {
	state     control.State
	terms     control.Terms // terms that were last written or ordered
	woken     bool
	member    bool      // of a worker; set by observedState
	asleep    bool      // it cannot be woken now; set by observedState
	handshook bool      // it has reported its version
	spawned   time.Time // 0: it was never started
	since     time.Time // when it entered state

	// When it was sent the order drain, SIGTERM and SIGKILL. Zero: not yet.
	drained, termed, killed time.Time
	// hungUp is when an order found that the process had closed its end of the link.
	// Zero: not yet.
	hungUp time.Time

	// On a GPU: the groups of its last order, whether it has yet to arrive there, the
	// time of the order, and when its device failed.
	groups  []int
	moving  bool
	ordered time.Time
	failed  time.Time
	// warmingSince is when it began to serve with a part of its batch sizes; zero if it has
	// all. It does not move before it has all.
	warmingSince time.Time
}

// observedState is the observed state of all processes.
type observedState struct {
	// managerID is the manager that the processes belong to; empty at first.
	managerID string
	processes map[key]observedProcess
	// held returns the time before which a process may not be started. ok is false if nothing can be
	// started on its device yet.
	held func(control.DesiredProcess) (until time.Time, ok bool)
}

// limits are the deadlines, all positive.
type limits struct {
	handshake time.Duration // spawn -> first notice
	load      time.Duration // spawn -> loaded; linking -> ready; ready -> all batch sizes; order to move -> arrival
	drain     time.Duration // drain -> SIGTERM
	term      time.Duration // SIGTERM -> SIGKILL
	lost      time.Duration // device failed -> SIGKILL
	hangUp    time.Duration // link closed -> SIGKILL
}

// actionKind says what to do to a process.
type actionKind uint8

const (
	// adopt makes the desired manager the owner of the processes. It concerns no
	// process.
	adopt actionKind = iota + 1
	spawn
	// markExited lists a process that was not started as exited; why has the reason.
	markExited
	wake
	// reshare changes the share.
	reshare
	drain
	term
	kill
	// forget drops a process that has ended and is not desired.
	forget // it stays forgotten: a manager numbers each process once, and receive drops old messages
)

func (k actionKind) String() string {
	return [...]string{"?", "adopt", "spawn", "mark-exited", "wake", "reshare", "drain", "term", "kill", "forget"}[k]
}

// message is the log message of the action.
func (k actionKind) message() string {
	return [...]string{"?", "adopt manager", "start process", "mark process as exited", "wake process",
		"change process's share", "drain process", "terminate process", "kill process", "remove record of process"}[k]
}

// action is a step of a plan. wanted is set for spawn, markExited, wake and reshare.
type action struct {
	kind   actionKind
	key    key
	wanted control.DesiredProcess
	// fault is the process's mistake, if that is the reason. The process then counts as
	// failed.
	fault string
	// why is the reason, if the process made no mistake.
	why string
}

// plan returns the actions that are due now, in the order of the processes' names. The
// result next is when to plan again if nothing happens before; zero: no deadline is
// pending. It is a pure function.
func plan(now time.Time, w desiredState, f observedState, l limits) (todo []action, next time.Time) {
	p := planner{now: now, target: w, facts: f, limits: l}
	another := w.desired != nil && w.desired.ManagerID != f.managerID
	wanted := map[key]control.DesiredProcess{}
	if w.desired != nil && !another {
		for _, d := range w.desired.Processes {
			wanted[keyOf(d)] = d
		}
	}

	for _, k := range sortedKeys(f.processes) {
		d, desired := wanted[k]
		if a := p.step(f.processes[k], d, desired, another); a.kind != 0 {
			a.key = k
			todo = append(todo, a)
		}
	}
	if another {
		if len(f.processes) == 0 && !w.ending {
			todo = append(todo, action{kind: adopt})
		}
		return todo, p.next
	}
	for _, k := range sortedKeys(wanted) {
		if _, exists := f.processes[k]; exists {
			continue
		}
		if a := p.begin(wanted[k]); a.kind != 0 {
			a.key, a.wanted = k, wanted[k]
			todo = append(todo, a)
		}
	}
	return todo, p.next
}

// planner is the state of one plan.
type planner struct {
	now    time.Time
	target desiredState
	facts  observedState
	limits limits
	next   time.Time // the next deadline
}

// due reports whether t is reached. If not, it lowers next to t.
func (p *planner) due(t time.Time) bool {
	if !p.now.Before(t) {
		return true
	}
	if p.next.IsZero() || t.Before(p.next) {
		p.next = t
	}
	return false
}

// begin returns the action for a desired process that does not exist; the zero action if none
// is due.
func (p *planner) begin(d control.DesiredProcess) action {
	switch {
	case d.Role == control.Drain || d.Role == control.Kill:
		return action{kind: markExited, why: "the process was never started"}
	case d.Started:
		return action{kind: markExited, why: "the process ended under an earlier orchestrator"}
	case p.target.ending:
		return action{kind: markExited, why: "the orchestrator stops"}
	}
	if until, ok := p.facts.held(d); ok && p.due(until) {
		return action{kind: spawn}
	}
	return action{}
}

// step returns the next action for a process; the zero action if none is due. another: the
// desired state is that of another manager.
func (p *planner) step(q observedProcess, d control.DesiredProcess, desired, another bool) action {
	switch {
	case q.state.Ended() && !desired && !p.target.waiting:
		return action{kind: forget}
	case q.state.Ended():
		return action{}
	case !q.killed.IsZero():
		return action{} // SIGKILL is the last action
	case another:
		return action{kind: kill, why: "another manager has started"}
	case desired && d.Role == control.Kill:
		return action{kind: kill, why: "the manager ordered it"}
	case !q.failed.IsZero() && p.due(q.failed.Add(p.limits.lost)):
		return action{kind: kill, fault: deviceFailed}
	case !q.hungUp.IsZero(), !q.termed.IsZero(), !q.drained.IsZero():
		return p.finish(q)
	}
	if why, ends := p.unwanted(d, desired); ends {
		return end(q, why)
	}
	if p.target.desired == nil {
		return action{} // another orchestrator's manager is still to send its message
	}
	if fault := p.overdue(q); fault != "" {
		return action{kind: kill, fault: fault}
	}
	switch {
	case d.Role == control.Serve && !q.woken && q.state == control.Loaded && !q.asleep:
		return action{kind: wake, wanted: d}
	case q.terms != d.Terms, q.woken && !q.moving && !slices.Equal(q.groups, d.SMGroups):
		return action{kind: reshare, wanted: d}
	}
	return action{}
}

// finish returns the next action for a process that is ending.
func (p *planner) finish(q observedProcess) action {
	switch {
	case !q.hungUp.IsZero():
		// Most likely it has exited, and its exit status gives the reason. It takes no
		// orders.
		if p.due(q.hungUp.Add(p.limits.hangUp)) {
			return action{kind: kill, fault: "the process closed its link, and did not end within " + p.limits.hangUp.String()}
		}
	case !q.termed.IsZero():
		if p.due(q.termed.Add(p.limits.term)) {
			return action{kind: kill, why: "the process did not end after SIGTERM"}
		}
	case p.due(p.drainDeadline(q)):
		return action{kind: term, why: "the process did not end after the order to drain"}
	}
	return action{}
}

// drainDeadline returns when a process must have drained. A member of a worker cannot be interrupted while it loads or
// links its model, and it would have to be killed with the worker's other members. It therefore has the time of a load.
func (p *planner) drainDeadline(q observedProcess) time.Time {
	deadline := q.drained.Add(p.limits.drain)
	othersStay := q.member && p.target.desired != nil && !p.target.ending
	loading := q.state == control.Starting || q.state == control.Linking
	if loaded := q.since.Add(p.limits.load); othersStay && loading && loaded.After(deadline) {
		return loaded
	}
	return deadline
}

// unwanted reports whether a process must end, and why.
func (p *planner) unwanted(d control.DesiredProcess, desired bool) (why string, ends bool) {
	switch {
	case p.target.ending:
		return "the orchestrator stops", true
	case p.target.desired == nil:
		return "the manager ended", !p.target.waiting
	case !desired:
		return "the process is no longer needed", true
	}
	return "the manager ordered it", d.Role == control.Drain
}

// overdue returns the deadline that a process has missed; empty if none.
func (p *planner) overdue(q observedProcess) (fault string) {
	load := p.limits.load
	switch {
	case !q.handshook && p.due(q.spawned.Add(p.limits.handshake)):
		return "no handshake within " + p.limits.handshake.String()
	case q.state == control.Starting && p.due(q.spawned.Add(load)):
		return "not loaded within " + load.String()
	case q.state == control.Linking && p.due(q.since.Add(load)):
		return "not ready within " + load.String() + " of linking and warm-up"
	case !q.warmingSince.IsZero() && p.due(q.warmingSince.Add(load)):
		return "not all batch sizes within " + load.String()
	case q.moving && q.warmingSince.IsZero() && p.due(q.ordered.Add(load)):
		return "not on its multiprocessors within " + load.String()
	}
	return ""
}

// end returns the first action that ends a process. A process that is still starting has
// nothing to finish, and may not read orders yet. A member of a worker gets no signals.
func end(p observedProcess, why string) action {
	if p.state == control.Starting && !p.member {
		return action{kind: term, why: why}
	}
	return action{kind: drain, why: why}
}

func sortedKeys[V any](m map[key]V) []key {
	keys := make([]key, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}
