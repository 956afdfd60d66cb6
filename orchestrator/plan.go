package orchestrator

import (
	"slices"
	"time"

	"github.com/penstock/penstock/control"
)

// wish is what should be.
type wish struct {
	// desired is the manager's last word, nil while there is no manager.
	desired *control.Desired
	// ending: the orchestrator itself is to end.
	ending bool
	// waiting: the processes are another orchestrator's, and their manager has not said
	// anything to this one yet. Nothing is done meanwhile.
	waiting bool
}

// fact is one process as it is.
type fact struct {
	state   control.State
	terms   terms // that were last written or ordered
	woken   bool
	shook   bool      // it has said its version
	spawned time.Time // 0: it never was
	since   time.Time // when state was entered

	// When it was asked, told and made to end; zero: not yet.
	drained, termed, killed time.Time
	// hungUp is when an order found the process's end of the link closed; zero: not yet.
	hungUp time.Time

	// On a GPU: the groups that it was last ordered to, whether and since when it
	// has to say that it is there, and when its device failed.
	groups  []int
	moving  bool
	ordered time.Time
	failed  time.Time
	// growing is since when it serves with a part of its batch sizes, zero where it has
	// all: it does not move before.
	growing time.Time
}

// facts is all that is.
type facts struct {
	// managerID is whose processes they are; empty at first.
	managerID string
	processes map[key]fact
	// past says which generations ended and were forgotten.
	past func(key) bool
	// held says until when nothing is started in a place.
	held func(place) time.Time
	// unready: nothing can be started yet, nowhere.
	unready bool
	// asleep: nobody can be woken now.
	asleep bool
}

// limits are the deadlines, all positive.
type limits struct {
	handshake time.Duration // spawn -> first notice
	load      time.Duration // spawn -> loaded, linking -> ready, ready -> with all batch sizes, and ordered to move -> there
	drain     time.Duration // asked -> told
	term      time.Duration // told -> made
	lost      time.Duration // its device failed -> made
	hangUp    time.Duration // it closed its link -> made
}

// actionKind is one thing to do to one process.
type actionKind uint8

const (
	// adopt makes the desired manager the one whose processes are here. It has no process.
	adopt actionKind = iota + 1
	spawn
	// bury lists a process as ended that was not started; why says why.
	bury
	wake
	// reshare writes another share.
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

// message says for the log what the orchestrator does.
func (k actionKind) message() string {
	return [...]string{"?", "adopt manager", "start process", "give up process that did not start", "wake process",
		"change process's share", "drain process", "terminate process", "kill process", "forget process"}[k]
}

// action is a step of a plan. wanted is set for spawn, bury, wake and reshare.
type action struct {
	kind   actionKind
	key    key
	wanted control.DesiredProcess
	// fault says what the process did wrong, where that is why; it has failed then.
	fault string
	// why says why, where it is not the process's fault.
	why string
}

// plan says what is to be done now, and when to look again if nothing happens
// before; the zero time: nothing will be due. It is pure. Actions come in the
// order of the processes' names.
func plan(now time.Time, w wish, f facts, l limits) (todo []action, next time.Time) {
	// due reports whether t is reached, and remembers it if not.
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

// step is the next action for a process that lives, if one is due.
func step(p fact, d control.DesiredProcess, desired bool, w wish, asleep bool, l limits, due func(time.Time) bool) (action, bool) {
	if !p.killed.IsZero() {
		return action{}, false // nothing comes after
	}
	if desired && d.Role == control.Kill {
		return action{kind: kill, why: "the manager ordered it"}, true
	}
	if !p.failed.IsZero() && due(p.failed.Add(l.lost)) {
		return action{kind: kill, fault: deviceFailed}, true
	}
	if !p.hungUp.IsZero() {
		// Most likely it has exited, and its exit status says why. It takes no orders.
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
	// It may stay. Does it keep its times?
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

// end is how the end of a process begins. One that is still starting has nothing
// to finish, and may not hear orders yet.
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
