package orchestrator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/control"
)

var (
	t0   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	some = limits{handshake: time.Second, load: 10 * time.Second, drain: 5 * time.Second, term: 2 * time.Second,
		lost: 100 * time.Millisecond, hangUp: time.Second}
	testKey = key{"face", 0, 1}
	atOnce  = func(control.DesiredProcess) (time.Time, bool) { return time.Time{}, true }
)

// want is a manager that desires one process.
func want(role control.Role, share float64) desiredState {
	return desiredState{desired: &control.Desired{ManagerID: "m", Seq: 1, Processes: []control.DesiredProcess{
		{IF: "face", Generation: 1, Role: role, Terms: control.Terms{SharePercent: share}},
	}}}
}

var nothing = desiredState{desired: &control.Desired{ManagerID: "m"}}

// alive is a process in a state, with the share that want desires.
func alive(state control.State, edits ...func(*observedProcess)) *observedProcess {
	f := &observedProcess{state: state, terms: control.Terms{SharePercent: 30}, handshook: true, spawned: t0, since: t0}
	for _, e := range edits {
		e(f)
	}
	return f
}

func TestPlan(t *testing.T) {
	woken := func(f *observedProcess) { f.woken = true }
	member := func(f *observedProcess) { f.member = true }
	unshaken := func(f *observedProcess) { f.handshook = false }
	at := func(t *time.Time, after time.Duration) { *t = t0.Add(after) }
	drained := func(f *observedProcess) { at(&f.drained, 0) }
	termed := func(f *observedProcess) { at(&f.termed, 0) }
	killed := func(f *observedProcess) { at(&f.killed, 0) }
	grouped := func(w desiredState) desiredState { w.desired.Processes[0].SMGroups = []int{1, 2}; return w }
	moving := func(f *observedProcess) { f.moving = true; at(&f.ordered, 0) }
	growing := func(f *observedProcess) { at(&f.warmingSince, 5*time.Second) }
	seen := func(w desiredState) desiredState { w.desired.Processes[0].Started = true; return w }
	hungUp := func(f *observedProcess) { at(&f.hungUp, 0) }
	lost := func(f *observedProcess) { at(&f.failed, 0) }
	stranger := desiredState{desired: &control.Desired{ManagerID: "other"}}
	for name, c := range map[string]struct {
		target desiredState
		is     *observedProcess
		held   time.Duration
		gpu    string // "unready", "asleep"
		now    time.Duration
		do     string        // the action, and a part of its why
		next   time.Duration // -1: never
	}{
		"a shadow that is not there is started":    {target: want(control.Shadow, 30), do: "spawn", next: -1},
		"one to serve is started, too":             {target: want(control.Serve, 30), do: "spawn", next: -1},
		"a start waits for its backoff":            {target: want(control.Shadow, 30), held: 3 * time.Second, next: 3 * time.Second},
		"and no longer":                            {target: want(control.Shadow, 30), held: 3 * time.Second, now: 3 * time.Second, do: "spawn", next: -1},
		"what is to drain is not started":          {target: want(control.Drain, 30), do: "mark-exited never started", next: -1},
		"what is to be killed is not started":      {target: want(control.Kill, 30), do: "mark-exited never started", next: -1},
		"nothing is started at the end":            {target: desiredState{desired: want(control.Serve, 30).desired, ending: true}, do: "mark-exited the orchestrator stops", next: -1},
		"a handshake has a second":                 {target: want(control.Shadow, 30), is: alive(control.Starting, unshaken), next: time.Second},
		"and then it is missing":                   {target: want(control.Shadow, 30), is: alive(control.Starting, unshaken), now: time.Second, do: "kill no handshake", next: -1},
		"loading has ten":                          {target: want(control.Shadow, 30), is: alive(control.Starting), now: time.Second, next: 10 * time.Second},
		"and then it hangs":                        {target: want(control.Shadow, 30), is: alive(control.Starting), now: 10 * time.Second, do: "kill not loaded", next: -1},
		"linking has ten":                          {target: want(control.Serve, 30), is: alive(control.Linking, woken), now: time.Second, next: 10 * time.Second},
		"and then it hangs, too":                   {target: want(control.Serve, 30), is: alive(control.Linking, woken), now: 10 * time.Second, do: "kill not ready", next: -1},
		"a shadow sleeps":                          {target: want(control.Shadow, 30), is: alive(control.Loaded), now: time.Hour, next: -1},
		"until it is to serve":                     {target: want(control.Serve, 30), is: alive(control.Loaded), do: "wake", next: -1},
		"but not while it loads":                   {target: want(control.Serve, 30), is: alive(control.Starting), next: 10 * time.Second},
		"one that serves is left alone":            {target: want(control.Serve, 30), is: alive(control.Active, woken), now: time.Hour, next: -1},
		"a new share is written":                   {target: want(control.Serve, 40), is: alive(control.Active, woken), do: "reshare", next: -1},
		"a shadow's, too":                          {target: want(control.Shadow, 40), is: alive(control.Loaded), do: "reshare", next: -1},
		"a drain is asked for":                     {target: want(control.Drain, 30), is: alive(control.Active, woken), do: "drain the manager ordered it", next: -1},
		"as for one that is wanted no more":        {target: nothing, is: alive(control.Active, woken), do: "drain no longer needed", next: -1},
		"and when the manager ended":               {target: desiredState{}, is: alive(control.Active, woken), do: "drain manager ended", next: -1},
		"and at the end":                           {target: desiredState{desired: want(control.Serve, 30).desired, ending: true}, is: alive(control.Active, woken), do: "drain the orchestrator stops", next: -1},
		"one that starts has nothing to drain":     {target: nothing, is: alive(control.Starting), do: "term no longer needed", next: -1},
		"a member that starts is asked to drain":   {target: nothing, is: alive(control.Starting, member), do: "drain no longer needed", next: -1},
		"and has time to load its model":           {target: nothing, is: alive(control.Starting, member, drained), now: 5 * time.Second, next: 10 * time.Second},
		"or to link it":                            {target: nothing, is: alive(control.Linking, member, drained), now: 5 * time.Second, next: 10 * time.Second},
		"but not more":                             {target: nothing, is: alive(control.Linking, member, drained), now: 10 * time.Second, do: "term", next: -1},
		"nor at the end":                           {target: desiredState{desired: nothing.desired, ending: true}, is: alive(control.Linking, member, drained), now: 5 * time.Second, do: "term", next: -1},
		"nor after the manager's end":              {target: desiredState{}, is: alive(control.Linking, member, drained), now: 5 * time.Second, do: "term", next: -1},
		"a member that serves has five seconds":    {target: nothing, is: alive(control.Active, member, woken, drained), next: 5 * time.Second},
		"a drain has five seconds":                 {target: nothing, is: alive(control.Draining, drained), next: 5 * time.Second},
		"then it is told":                          {target: nothing, is: alive(control.Draining, drained), now: 5 * time.Second, do: "term did not end after the order to drain", next: -1},
		"whatever is wished now":                   {target: want(control.Serve, 30), is: alive(control.Active, drained), now: 5 * time.Second, do: "term", next: -1},
		"SIGTERM has two seconds":                  {target: nothing, is: alive(control.Draining, drained, termed), next: 2 * time.Second},
		"then it is made to end":                   {target: nothing, is: alive(control.Draining, drained, termed), now: 2 * time.Second, do: "kill after SIGTERM", next: -1},
		"after that there is nothing":              {target: nothing, is: alive(control.Draining, killed), now: time.Hour, next: -1},
		"a kill is at once":                        {target: want(control.Kill, 30), is: alive(control.Active, woken), do: "kill the manager ordered it", next: -1},
		"in a drain, too":                          {target: want(control.Kill, 30), is: alive(control.Draining, drained), do: "kill", next: -1},
		"and once":                                 {target: want(control.Kill, 30), is: alive(control.Draining, killed), next: -1},
		"an end is listed while it is desired":     {target: want(control.Serve, 30), is: alive(control.Failed), next: -1},
		"and then forgotten":                       {target: nothing, is: alive(control.Failed), do: "forget", next: -1},
		"another manager's are killed":             {target: stranger, is: alive(control.Active), do: "kill another manager", next: -1},
		"and waited for":                           {target: stranger, is: alive(control.Active, killed), next: -1},
		"and forgotten":                            {target: stranger, is: alive(control.Stopped), do: "forget", next: -1},
		"before that manager is the one":           {target: stranger, do: "adopt", next: -1},
		"but not at the end":                       {target: desiredState{desired: stranger.desired, ending: true}, next: -1},
		"nothing is started without a device":      {target: want(control.Serve, 30), gpu: "unready", next: -1},
		"nobody is woken when nobody may be":       {target: want(control.Serve, 30), is: alive(control.Loaded), gpu: "asleep", next: -1},
		"other groups are ordered":                 {target: grouped(want(control.Serve, 30)), is: alive(control.Active, woken), do: "reshare", next: -1},
		"not of a sleeper":                         {target: grouped(want(control.Shadow, 30)), is: alive(control.Loaded), next: -1},
		"nor of one that moves":                    {target: grouped(want(control.Serve, 30)), is: alive(control.Active, woken, moving), next: 10 * time.Second},
		"which hangs after ten seconds":            {target: grouped(want(control.Serve, 30)), is: alive(control.Active, woken, moving), now: 10 * time.Second, do: "kill not on its multiprocessors", next: -1},
		"not while it gets its batch sizes":        {target: grouped(want(control.Serve, 30)), is: alive(control.Active, woken, moving, growing), now: 10 * time.Second, next: 15 * time.Second},
		"for which it has ten seconds, too":        {target: want(control.Serve, 30), is: alive(control.Active, woken, growing), now: 15 * time.Second, do: "kill not all batch sizes", next: -1},
		"a lost device is left at once":            {target: want(control.Serve, 30), is: alive(control.Active, woken, lost), next: 100 * time.Millisecond},
		"or made to be":                            {target: want(control.Serve, 30), is: alive(control.Active, woken, lost), now: 100 * time.Millisecond, do: "kill the GPU failed", next: -1},
		"in a drain, too, whoever wishes it":       {target: nothing, is: alive(control.Draining, drained, lost), now: 100 * time.Millisecond, do: "kill the GPU failed", next: -1},
		"a process that was seen is not started":   {target: seen(want(control.Serve, 30)), do: "mark-exited ended under an earlier", next: -1},
		"a manager may be silent at first":         {target: desiredState{waiting: true}, is: alive(control.Active, woken), next: -1},
		"then what has ended is still to be told":  {target: desiredState{waiting: true}, is: alive(control.Failed), next: -1},
		"a closed link gives the exit its time":    {target: nothing, is: alive(control.Active, hungUp), next: time.Second},
		"and is a fault if there is none":          {target: nothing, is: alive(control.Active, hungUp), now: time.Second, do: "kill closed its link", next: -1},
		"without a manager there is nothing to do": {target: desiredState{}, next: -1},
	} {
		t.Run(name, func(t *testing.T) {
			f := observedState{managerID: "m", processes: map[key]observedProcess{}, held: atOnce}
			if c.is != nil {
				q := *c.is
				q.asleep = c.gpu == "asleep"
				f.processes[testKey] = q
			}
			if c.held > 0 || c.gpu == "unready" {
				f.held = func(control.DesiredProcess) (time.Time, bool) { return t0.Add(c.held), c.gpu != "unready" }
			}
			todo, next := plan(t0.Add(c.now), c.target, f, some)
			kind, why, _ := strings.Cut(c.do, " ")
			switch {
			case kind == "" && len(todo) != 0:
				t.Errorf("does %v", todo)
			case kind != "" && len(todo) != 1:
				t.Errorf("does %v, want one %s", todo, kind)
			case kind != "":
				if a := todo[0]; a.kind.String() != kind || !strings.Contains(a.why+a.fault, why) {
					t.Errorf("does %v (%s%s), want %s", a.kind, a.why, a.fault, c.do)
				}
			}
			want := time.Time{}
			if c.next >= 0 {
				want = t0.Add(c.next)
			}
			if !next.Equal(want) {
				t.Errorf("looks again at %v, want %v", next, want)
			}
		})
	}
}

// world carries out plans on processes that behave at random.
type world struct {
	t        *rapid.T
	now      time.Time
	target   desiredState
	observed observedState
	started  map[key]bool // under this manager
	held     map[place]time.Time
	unready  bool // nothing can be started
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, now: t0, started: map[key]bool{}, held: map[place]time.Time{}}
	w.observed = observedState{
		processes: map[key]observedProcess{},
		held: func(p control.DesiredProcess) (time.Time, bool) {
			return w.held[keyOf(p).place()], !w.unready
		},
	}
	return w
}

// settle carries out plans until they are empty, and checks each step.
func (w *world) settle() {
	for range 10 {
		todo, next := plan(w.now, w.target, w.observed, some)
		if !next.IsZero() && !next.After(w.now) {
			w.t.Fatalf("looks again at %v, and it is %v", next, w.now)
		}
		if len(todo) == 0 {
			return
		}
		for _, a := range todo {
			w.do(a)
		}
	}
	w.t.Fatal("the plan is never done")
}

func (w *world) do(a action) {
	f, there := w.observed.processes[a.key]
	refuse := func(is bool, why string) {
		if is {
			w.t.Fatalf("%v of %v, which %s: %+v", a.kind, a.key, why, f)
		}
	}
	switch a.kind {
	case adopt:
		refuse(len(w.observed.processes) > 0, "leaves another manager's processes")
		w.observed.managerID = w.target.desired.ManagerID
		clear(w.started)
		return
	case spawn:
		refuse(there, "is there")
		refuse(w.started[a.key], "was started before")
		refuse(w.target.ending, "comes at the end")
		refuse(w.target.desired.ManagerID != w.observed.managerID, "belongs to another manager")
		refuse(w.now.Before(w.held[a.key.place()]), "has to wait")
		refuse(w.unready, "has no device")
		w.started[a.key] = true
		w.observed.processes[a.key] = observedProcess{state: control.Starting, member: a.key.name == "detect", terms: a.wanted.Terms, spawned: w.now, since: w.now}
		return
	case markExited:
		refuse(there, "is there")
		w.observed.processes[a.key] = observedProcess{state: control.Stopped}
		return
	case forget:
		refuse(!f.state.Ended(), "lives")
		delete(w.observed.processes, a.key)
		return
	}
	refuse(!there, "is not there")
	refuse(f.state.Ended(), "has ended")
	refuse(!f.killed.IsZero(), "was killed")
	switch a.kind {
	case wake:
		refuse(f.woken || f.state != control.Loaded, "does not sleep")
		refuse(!f.drained.IsZero() || !f.termed.IsZero(), "is to end")
		refuse(f.asleep, "may not be woken")
		f.woken, f.terms = true, a.wanted.Terms
		f.groups, f.ordered, f.moving = a.wanted.SMGroups, w.now, len(a.wanted.SMGroups) > 0
	case reshare:
		refuse(!f.drained.IsZero() || !f.termed.IsZero(), "is to end")
		same := f.terms == a.wanted.Terms
		refuse(same && (f.moving || !f.woken), "may not move")
		f.terms = a.wanted.Terms
		if f.woken && !f.moving && !slices.Equal(f.groups, a.wanted.SMGroups) {
			f.groups, f.ordered, f.moving = a.wanted.SMGroups, w.now, true
		}
	case drain:
		refuse(!f.drained.IsZero() || !f.termed.IsZero(), "is to end already")
		f.drained = w.now
	case term:
		refuse(!f.termed.IsZero(), "was told already")
		refuse(!f.drained.IsZero() && w.now.Sub(f.drained) < some.drain, "has time left")
		f.termed = w.now
	case kill:
		f.killed = w.now
	}
	w.observed.processes[a.key] = f
}

func (w *world) draw() (k key, f observedProcess, ok bool) {
	keys := slices.DeleteFunc(sortedKeys(w.observed.processes), func(k key) bool { return w.observed.processes[k].state.Ended() })
	if len(keys) == 0 {
		return k, f, false
	}
	k = rapid.SampledFrom(keys).Draw(w.t, "process")
	return k, w.observed.processes[k], true
}

func drawDesired(t *rapid.T) *control.Desired {
	d := &control.Desired{ManagerID: rapid.SampledFrom([]string{"m", "m", "m", "n"}).Draw(t, "manager")}
	for _, name := range []string{"detect", "face"} {
		for g := uint32(1); g <= 4; g++ {
			role := rapid.SampledFrom([]control.Role{"", control.Shadow, control.Serve, control.Drain, control.Kill}).Draw(t, "role")
			if role != "" {
				d.Processes = append(d.Processes, control.DesiredProcess{IF: name, Generation: g, Role: role,
					Terms:    control.Terms{SharePercent: float64(rapid.IntRange(0, 3).Draw(t, "share"))},
					SMGroups: rapid.SampledFrom([][]int{nil, {0}, {1, 2}}).Draw(t, "groups")})
			}
		}
	}
	return d
}

func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"desired", "silence", "time", "progress", "progress", "end", "ending", "device", "arrival", "loss"}).Draw(t, "event") {
			case "desired":
				w.target.desired = drawDesired(t)
				w.target.desired.Processes = slices.DeleteFunc(w.target.desired.Processes, func(p control.DesiredProcess) bool {
					_, there := w.observed.processes[keyOf(p)]
					return w.started[keyOf(p)] && !there // a manager numbers each process once
				})
			case "silence":
				w.target.desired = nil
			case "ending":
				w.target.ending = rapid.IntRange(0, 9).Draw(t, "one in ten") == 0 || w.target.ending
			case "time":
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 12000).Draw(t, "ms")) * time.Millisecond)
			case "progress":
				if k, f, ok := w.draw(); ok {
					f.handshook = true
					next := rapid.SampledFrom([]control.State{control.Starting, control.Loaded, control.Linking,
						control.Ready, control.Active, control.Draining}).Draw(t, "state")
					if next.Follows(f.state) {
						f.state, f.since = next, w.now
					}
					w.observed.processes[k] = f
				}
			case "device":
				w.unready = rapid.Bool().Draw(t, "unready")
				for k, f := range w.observed.processes {
					f.asleep = rapid.Bool().Draw(t, "asleep")
					w.observed.processes[k] = f
				}
			case "arrival":
				if k, f, ok := w.draw(); ok {
					f.moving = false
					w.observed.processes[k] = f
				}
			case "loss":
				if k, f, ok := w.draw(); ok && f.woken && f.failed.IsZero() {
					f.failed = w.now
					w.observed.processes[k] = f
				}
			case "end":
				if k, f, ok := w.draw(); ok {
					f.state = control.Failed
					w.observed.processes[k] = f
					w.held[k.place()] = w.now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "backoff")) * time.Millisecond)
				}
			}
			w.settle()
		}
		// From any state: if no process is desired, all have been killed after the two
		// deadlines, even if none cooperates.
		w.target.desired = nil
		w.settle()
		w.now = w.now.Add(some.drain)
		w.settle()
		w.now = w.now.Add(some.term)
		w.settle()
		for k, f := range w.observed.processes {
			if f.killed.IsZero() {
				t.Fatalf("%v lives on: %+v", k, f)
			}
		}
	})
}
