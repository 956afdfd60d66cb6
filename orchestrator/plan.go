package orchestrator

import (
	"slices"
	"time"

	"github.com/penstock/penstock/control"
)

// wish is the desired state.
type wish struct {
	// desired is the manager's latest message, nil while there is no manager.
	desired *control.Desired
	// ending: the orchestrator itself is about to end.
	ending bool
	// waiting: another orchestrator started the processes, and their manager has not
	// sent this one a message yet. Until then no process is started or asked to end.
	waiting bool
}

// fact is the observed state of one process.
type fact struct {
	state   control.State
	terms   terms // terms that were last written or ordered
	woken   bool
	shook   bool      // it has reported its version
	spawned time.Time // 0: it was never started
	since   time.Time // when it entered state

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
	// growing is when it began to serve with a part of its batch sizes; zero if it has
	// all. It does not move before it has all.
	growing time.Time
}

// facts is the observed state of all processes.
type facts struct {
	// managerID is the manager that the processes belong to; empty at first.
	managerID string
	processes map[key]fact
	// past reports whether a generation has ended and was forgotten.
	past func(key) bool
	// held returns the time before which nothing may be started in a place.
	held func(place) time.Time
	// unready: no process can be started yet, in any place.
	unready bool
	// asleep: no process can be woken now.
	asleep bool
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
	// bury lists a process that was not started as exited; why has the reason.
	bury
	wake
	// reshare changes the share.
	reshare
	drain
	term
	kill
	// forget drops a process that has ended and is not desired.
	forget
)

func (k actionKind) String() string {
	return [...]string{"?", "adopt", "spawn", "bury", "wake", "reshare", "drain", "term", "kill", "forget"}[k]
}

// message is the log message of the action.
func (k actionKind) message() string {
	return [...]string{"?", "adopt manager", "start process", "give up process that did not start", "wake process",
		"change process's share", "drain process", "terminate process", "kill process", "forget process"}[k]
}

// action is a step of a plan. wanted is set for spawn, bury, wake and reshare.
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
func plan(now time.Time, w wish, f facts, l limits) (todo []action, next time.Time) {
	// due reports whether t is reached. If not, it lowers next to t.
	due := func(t time.Time) bool {
		if !now.Before(t) {
			return true
		}
		if next.IsZero() || t.Before(next) {
			next = t
		}
		return false
	}

	stranger := w.desired != nil && w.desired.ManagerID != f.managerID
	wanted := map[key]control.DesiredProcess{}
	if w.desired != nil && !stranger {
		for _, p := range w.desired.Processes {
			wanted[keyOf(p)] = p
		}
	}

	for _, k := range sortedKeys(f.processes) {
		p := f.processes[k]
		d, desired := wanted[k]
		switch {
		case p.state.Ended():
			if !desired && !w.waiting {
				todo = append(todo, action{kind: forget, key: k})
			}
		case stranger:
			if p.killed.IsZero() {
				todo = append(todo, action{kind: kill, key: k, why: "another manager has started"})
			}
		default:
			if a, ok := step(p, d, desired, w, f.asleep, l, due); ok {
				a.key = k
				todo = append(todo, a)
			}
		}
	}

	if stranger {
		if len(f.processes) == 0 && !w.ending {
			todo = append(todo, action{kind: adopt})
		}
		return todo, next
	}
	for _, k := range sortedKeys(wanted) {
		if _, there := f.processes[k]; there {
			continue
		}
		d := wanted[k]
		switch {
		case f.past(k):
			todo = append(todo, action{kind: bury, key: k, wanted: d, why: "this generation has ended before"})
		case d.Role == control.Drain || d.Role == control.Kill:
			todo = append(todo, action{kind: bury, key: k, wanted: d, why: "it was not started"})
		case d.Started:
			todo = append(todo, action{kind: bury, key: k, wanted: d, why: "it ended with another orchestrator"})
		case w.ending:
			todo = append(todo, action{kind: bury, key: k, wanted: d, why: "the orchestrator ends"})
		case !f.unready && due(f.held(k.place())):
			todo = append(todo, action{kind: spawn, key: k, wanted: d})
		}
	}
	return todo, next
}

// step returns the next action for a process that runs, if one is due.
func step(p fact, d control.DesiredProcess, desired bool, w wish, asleep bool, l limits, due func(time.Time) bool) (action, bool) {
	if !p.killed.IsZero() {
		return action{}, false // SIGKILL is the last action
	}
	if desired && d.Role == control.Kill {
		return action{kind: kill, why: "the manager ordered it"}, true
	}
	if !p.failed.IsZero() && due(p.failed.Add(l.lost)) {
		return action{kind: kill, fault: deviceFailed}, true
	}
	if !p.hungUp.IsZero() {
		// Most likely it has exited, and its exit status gives the reason. It takes no
		// orders.
		if due(p.hungUp.Add(l.hangUp)) {
			return action{kind: kill, fault: "it closed its link and still ran " + l.hangUp.String() + " later"}, true
		}
		return action{}, false
	}
	if !p.termed.IsZero() {
		if due(p.termed.Add(l.term)) {
			return action{kind: kill, why: "it did not end after SIGTERM"}, true
		}
		return action{}, false
	}
	if !p.drained.IsZero() {
		if due(p.drained.Add(l.drain)) {
			return action{kind: term, why: "it did not end when it was drained"}, true
		}
		return action{}, false
	}
	switch {
	case w.ending:
		return end(p, "the orchestrator ends"), true
	case w.desired == nil && w.waiting:
		return action{}, false
	case w.desired == nil:
		return end(p, "the manager is gone"), true
	case !desired:
		return end(p, "it is no longer wanted"), true
	case d.Role == control.Drain:
		return end(p, "the manager ordered it"), true
	}
	// The process may stay. Check its deadlines.
	switch {
	case !p.shook && due(p.spawned.Add(l.handshake)):
		return action{kind: kill, fault: "no handshake within " + l.handshake.String()}, true
	case p.state == control.Starting && due(p.spawned.Add(l.load)):
		return action{kind: kill, fault: "not loaded within " + l.load.String()}, true
	case p.state == control.Linking && due(p.since.Add(l.load)):
		return action{kind: kill, fault: "not ready within " + l.load.String() + " of linking and warm-up"}, true
	case !p.growing.IsZero() && due(p.growing.Add(l.load)):
		return action{kind: kill, fault: "not all batch sizes within " + l.load.String()}, true
	case p.moving && p.growing.IsZero() && due(p.ordered.Add(l.load)):
		return action{kind: kill, fault: "not on its multiprocessors within " + l.load.String()}, true
	}
	switch {
	case d.Role == control.Serve && !p.woken && p.state == control.Loaded && !asleep:
		return action{kind: wake, wanted: d}, true
	case p.terms != termsOf(d), p.woken && !p.moving && !slices.Equal(p.groups, d.SMGroups):
		return action{kind: reshare, wanted: d}, true
	}
	return action{}, false
}

// end returns the first action that ends a process. A process that is still starting has
// nothing to finish, and may not read orders yet.
func end(p fact, why string) action {
	if p.state == control.Starting {
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
