package orchestrator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
)

// node is a supervisor with fakes and a manager that repeats its messages, in a synctest
// bubble.
type node struct {
	t       *testing.T
	link    *fakeLink
	spawner *fakeSpawner
	shares  *fakeShares
	machine *fakeMachine
	guests  *fakeGuests
	log     journal

	stop        context.CancelFunc // ends run, as SIGTERM does
	stopped     chan struct{}
	err         error // how run ended; valid once stopped is closed
	desired     control.Desired
	silenced    chan struct{} // closed: the manager sends nothing more
	stoppedTime atomic.Int64  // time that passed while the process was stopped
	messages    chan control.Desired
}

// runNode runs f with a node, and then checks that nothing is left.
func runNode(t *testing.T, lives func(spec) life, f func(*node)) {
	runOptions(t, Options{}, lives, f)
}

// runOptions is runNode with a runtime folder.
func runOptions(t *testing.T, o Options, lives func(spec) life, f func(*node)) {
	outer := t // the test that f reports to
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		n := &node{
			t: t, link: newFakeLink(), spawner: &fakeSpawner{lives: lives}, shares: newFakeShares(), machine: newFakeMachine(),
			guests: &fakeGuests{ended: make(chan string, 1)},
			stop:   cancel, stopped: make(chan struct{}), silenced: make(chan struct{}), messages: make(chan control.Desired),
			desired: control.Desired{Version: control.Version, ManagerID: "m", AttachSocket: "/run/a", Devices: []string{control.DeviceCPU}},
		}
		began := time.Now()
		clock := runclock.New(func() time.Duration { return time.Since(began) + time.Duration(n.stoppedTime.Load()) })
		go func() {
			tick := time.NewTicker(runclock.TickEvery)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					clock.Tick()
				case <-n.stopped:
					return
				}
			}
		}()
		s := newSupervisor(Options{
			Self: "/bin/penstock", CPUs: []int{1, 2}, Log: zerolog.New(&n.log), spawner: n.spawner, shares: n.shares,
			machine: n.machine, clock: clock, Dir: o.Dir, Run: o.Run,
		}, n.link)
		s.guests.server = n.guests
		go func() {
			defer close(n.stopped)
			n.err = s.run(ctx)
		}()
		go n.repeat()
		defer func() { // runs after a Fatal as well
			cancel()
			<-n.stopped
			n.silence()
			synctest.Wait()
			if err := n.spawner.close(); err != nil {
				t.Error(err)
			}
			n.shares.Close()
			n.machine.check(t)
			for _, w := range n.shares.wrong {
				t.Error("shares:", w)
			}
			if t.Failed() || outer.Failed() {
				t.Log(n.log.String())
			}
		}()
		f(n)
	})
}

// repeat is the manager's side. It sends the latest state again and again, and loses a
// third of the messages.
func (n *node) repeat() {
	var latest *control.Desired
	tick := time.NewTicker(control.RepeatEvery)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-n.silenced:
			return
		case d := <-n.messages:
			latest = &d
		case <-tick.C:
		}
		if latest == nil || i%3 == 2 {
			continue
		}
		select {
		case <-n.link.desired:
		default:
		}
		n.link.desired <- *latest
	}
}

// want sets the desired processes, and waits until the orchestrator has acknowledged
// them.
func (n *node) want(processes ...control.DesiredProcess) {
	n.t.Helper()
	n.desired.Seq++
	n.desired.Processes = onDevice(n.desired.Devices, processes)
	n.messages <- n.desired
	n.until("the desired state is acknowledged", func(o control.Observed) bool {
		return o.ManagerID == n.desired.ManagerID && o.AckSeq == n.desired.Seq
	})
}

// replaceManager starts another manager.
func (n *node) replaceManager(id string) {
	n.desired.ManagerID, n.desired.Seq = id, 0
}

func (n *node) silence() {
	select {
	case <-n.silenced:
	default:
		close(n.silenced)
	}
}

// until waits, in the bubble's time, for a state that the orchestrator publishes.
func (n *node) until(what string, is func(control.Observed) bool) {
	n.t.Helper()
	for range 6000 { // a minute
		synctest.Wait()
		if is(n.link.observed()) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	n.t.Fatalf("never: %s; observed: %+v", what, n.link.observed())
}

func (n *node) untilState(generation uint32, state control.State) control.ObservedProcess {
	n.t.Helper()
	var found control.ObservedProcess
	n.until(fmt.Sprintf("generation %d is %s", generation, state), func(o control.Observed) bool {
		for _, p := range o.Processes {
			if p.Generation == generation && p.State == state {
				found = p
				return true
			}
		}
		return false
	})
	return found
}

func newDesired(generation uint32, role control.Role, share float64) control.DesiredProcess {
	return control.DesiredProcess{IF: "face", Generation: generation, Role: role, Terms: control.Terms{SharePercent: share}}
}

func TestProcessLife(t *testing.T) {
	runNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Shadow, 30))
		p := n.untilState(1, control.Loaded)
		if p.PID != 100 {
			t.Errorf("process id %d", p.PID)
		}
		if got := n.shares.of(key{"face", 0, 1}); got != 30 {
			t.Errorf("it loads with a share of %v", got)
		}
		n.want(newDesired(1, control.Serve, 40))
		p = n.untilState(1, control.Active)
		if p.SharePercent != 40 || p.PersistentBytes != 1000 || p.EphemeralBytes != 200 || p.WarmupMillis != 7 {
			t.Errorf("active as %+v", p)
		}
		n.want(newDesired(1, control.Serve, 50))
		synctest.Wait()
		if got := n.shares.of(key{"face", 0, 1}); got != 50 {
			t.Errorf("its share is %v", got)
		}
		n.want(newDesired(1, control.Drain, 50))
		if p = n.untilState(1, control.Stopped); p.Reason != "the manager ordered it" {
			t.Errorf("stopped: %s", p.Reason)
		}
		n.want()
		n.until("it is listed no more", func(o control.Observed) bool { return len(o.Processes) == 0 })

		f := n.spawner.generation(1)
		orders, signals := f.got()
		if want := []control.OrderKind{control.DoWake, control.DoShare, control.DoDrain}; !slices.Equal(orders, want) {
			t.Errorf("ordered %v, want %v", orders, want)
		}
		if len(signals) != 0 {
			t.Errorf("signals %v", signals)
		}
		if f.spec.start.AttachSocket != "/run/a" || f.spec.start.CPUs != 2 || !slices.Equal(f.spec.command, []string{"/bin/penstock", "if"}) {
			t.Errorf("started as %+v", f.spec)
		}
		if w := f.orders[0]; w.SharePercent != 40 || w.Governor {
			t.Errorf("woken by %+v", w)
		}
	})
}

// TestDesiredRepeated checks that a repeated desired state starts no process twice.
func TestDesiredRepeated(t *testing.T) {
	runNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Serve, 30), newDesired(2, control.Shadow, 30))
		n.untilState(1, control.Active)
		n.untilState(2, control.Loaded)
		time.Sleep(time.Minute) // hundreds of repetitions
		if len(n.spawner.started) != 2 {
			t.Errorf("%d processes were started", len(n.spawner.started))
		}
		if orders, _ := n.spawner.generation(1).got(); !slices.Equal(orders, []control.OrderKind{control.DoWake}) {
			t.Errorf("ordered %v", orders)
		}
	})
}

func TestProcessEnds(t *testing.T) {
	segfault := exit{code: -1, signal: syscall.SIGSEGV, tail: []string{"loading", "signal arrived"}}
	const second = time.Second
	for name, c := range map[string]struct {
		life    life
		role    control.Role // after it is loaded, or active
		state   control.State
		reason  string
		orders  []control.OrderKind
		signals []syscall.Signal
	}{
		"cannot be started": {life: life{refuse: errNoProgram}, state: control.Failed, reason: "no such program"},
		"crashes":           {life: life{dies: second, how: segfault}, state: control.Failed, reason: "segmentation fault): loading | signal arrived"},
		"exits by itself":   {life: life{dies: second}, state: control.Failed, reason: "the process ended without an order: exit status 0"},
		"fails to load": {life: life{failsToLoad: "no model there"}, state: control.Failed,
			reason: "no model there: exit status 1"},
		"says no handshake": {life: life{handshake: time.Hour}, state: control.Failed,
			reason: "no handshake within 10s", signals: []syscall.Signal{syscall.SIGKILL}},
		"hangs in loading": {life: life{muteAt: control.Loaded}, state: control.Failed,
			reason: "not loaded within 2m0s: killed by the orchestrator", signals: []syscall.Signal{syscall.SIGKILL}},
		"hangs in linking": {life: life{muteAt: control.Ready}, role: control.Serve, state: control.Failed,
			reason: "not ready within 2m0s of linking and warm-up: killed by the orchestrator", orders: []control.OrderKind{control.DoWake}, signals: []syscall.Signal{syscall.SIGKILL}},
		"talks nonsense": {life: life{nonsense: true}, state: control.Failed,
			reason: "protocol error: read notice: bad message", signals: []syscall.Signal{syscall.SIGKILL}},
		"goes backwards": {life: life{wrong: control.Loaded}, state: control.Failed,
			reason: "state loaded after active", signals: []syscall.Signal{syscall.SIGKILL}},
		"takes no orders": {life: life{ignoreOrders: true}, role: control.Serve, state: control.Failed,
			reason: "cannot send orders", signals: []syscall.Signal{syscall.SIGKILL}},
		"closes its link and runs on": {life: life{hungUp: true}, role: control.Drain, state: control.Failed,
			reason: "the process closed its link, and did not end within 1s: killed by the orchestrator", signals: []syscall.Signal{syscall.SIGKILL}},
		"drains": {life: life{drains: 4 * second}, role: control.Drain, state: control.Stopped,
			reason: "the manager ordered it", orders: []control.OrderKind{control.DoDrain}},
		"ignores drain": {life: life{ignoreDrain: true}, role: control.Drain, state: control.Stopped,
			reason: "the manager ordered it: ended by signal 15 (terminated)",
			orders: []control.OrderKind{control.DoDrain}, signals: []syscall.Signal{syscall.SIGTERM}},
		"ignores TERM": {life: life{ignoreDrain: true, ignoreTerm: true}, role: control.Drain, state: control.Stopped,
			reason: "the manager ordered it: ended by signal 9 (killed)",
			orders: []control.OrderKind{control.DoDrain}, signals: []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}},
		"lingers": {life: life{lingers: 20 * second}, role: control.Kill, state: control.Stopped,
			reason: "the manager ordered it", signals: []syscall.Signal{syscall.SIGKILL}},
		"crashes as it drains": {life: life{dies: 12 * second, how: segfault, drains: time.Hour}, role: control.Drain, state: control.Failed,
			reason: "segmentation fault", orders: []control.OrderKind{control.DoDrain}},
	} {
		t.Run(name, func(t *testing.T) {
			runNode(t, func(spec) life { return c.life }, func(n *node) {
				n.want(newDesired(1, control.Shadow, 30))
				if c.role != "" {
					n.untilState(1, control.Loaded)
					if c.life.dies > 0 {
						time.Sleep(c.life.dies - second)
					}
					n.want(newDesired(1, c.role, 30))
				}
				var p control.ObservedProcess
				for range 4 { // each waits a minute
					n.until("", func(o control.Observed) bool { return len(o.Processes) == 1 })
					if p = n.link.observed().Processes[0]; p.State.Ended() {
						break
					}
					time.Sleep(time.Minute)
				}
				if p.State != c.state || !strings.Contains(p.Reason, c.reason) {
					t.Errorf("%s: %q, want %s: %q", p.State, p.Reason, c.state, c.reason)
				}
				orders, signals := n.spawner.generation(1).got()
				if !slices.Equal(orders, c.orders) || !slices.Equal(signals, c.signals) {
					t.Errorf("ordered %v and signalled %v, want %v and %v", orders, signals, c.orders, c.signals)
				}
				// It stays listed, and is not started again, while it is desired.
				time.Sleep(time.Minute)
				if q := n.link.observed().Processes; len(q) != 1 || !reflect.DeepEqual(q[0], p) || len(n.spawner.started) != 1 {
					t.Errorf("a minute later %+v, and %d were started", q, len(n.spawner.started))
				}
			})
		})
	}
}

// A killed process's link closes before its exit can be waited for.
func TestExitBeatsClosedLink(t *testing.T) {
	killed := exit{code: -1, signal: syscall.SIGKILL}
	runNode(t, func(spec) life { return life{hungUp: true, dies: time.Second, how: killed} }, func(n *node) {
		n.want(newDesired(1, control.Shadow, 30))
		n.untilState(1, control.Loaded)
		time.Sleep(500 * time.Millisecond)
		n.want(newDesired(1, control.Drain, 30))
		p := n.untilState(1, control.Failed)
		if p.Reason != "killed by signal 9 (not by Penstock)" {
			t.Errorf("reason %q", p.Reason)
		}
		if _, signals := n.spawner.generation(1).got(); len(signals) != 0 {
			t.Errorf("signals %v", signals)
		}
	})
}

func TestEarlyFailures(t *testing.T) {
	dying := func(spec) life { return life{dies: time.Millisecond, how: exit{code: 3}} }
	runNode(t, dying, func(n *node) {
		var waits []time.Duration
		for g := uint32(1); g <= 8; g++ {
			wanted := time.Now()
			n.want(newDesired(g, control.Shadow, 30))
			if g == 3 {
				p := n.link.observed().Processes[0]
				if p.State != control.Starting || p.PID != 0 || !strings.Contains(p.Reason, "waiting 200ms after 2 early failures; the last one: exit status 3") {
					t.Errorf("while it waits: %+v", p)
				}
			}
			n.untilState(g, control.Failed)
			waits = append(waits, n.spawner.generation(g).born.Sub(wanted).Round(100*time.Millisecond))
		}
		want := []time.Duration{0, 100, 200, 400, 800, 1600, 3200, 5000}
		for i := range want {
			want[i] *= time.Millisecond
		}
		// Ordering and observing themselves take some hundredths of a second.
		for i := range waits {
			if d := want[i] - waits[i]; d < 0 || d > 200*time.Millisecond {
				t.Errorf("the waits are %v, want about %v", waits, want)
				break
			}
		}
	})
}

// Between two failures, the state shows the reason of the last one. It does not if
// another process serves in that place.
func TestRestartReason(t *testing.T) {
	const slow = time.Minute / 2 // a failure that late is no early failure
	lives := func(sp spec) life {
		switch sp.key.generation {
		case 1:
			return life{dies: time.Millisecond, how: exit{code: 3}}
		case 2:
			return life{handshake: time.Second, load: 2 * slow, dies: slow, how: exit{code: 4}}
		case 5:
			return life{handshake: time.Second, dies: 2 * time.Second, how: exit{code: 5}}
		}
		return life{handshake: time.Second, load: time.Second, link: time.Second}
	}
	runNode(t, lives, func(n *node) {
		starts := func(g uint32) control.ObservedProcess {
			t.Helper()
			var found control.ObservedProcess
			n.until("it starts", func(o control.Observed) bool {
				for _, p := range o.Processes {
					if p.Generation == g && p.State == control.Starting && p.PID != 0 {
						found = p
						return true
					}
				}
				return false
			})
			return found
		}
		says := func(p control.ObservedProcess, want string) {
			t.Helper()
			if want == "" && p.Reason != "" || !strings.Contains(p.Reason, want) {
				t.Errorf("generation %d, %s, says %q, want %q", p.Generation, p.State, p.Reason, want)
			}
		}
		n.want(newDesired(1, control.Serve, 30))
		n.untilState(1, control.Failed)
		n.want(newDesired(2, control.Serve, 30))
		says(starts(2), "starting again; the last process failed: exit status 3")
		n.untilState(2, control.Failed)
		n.want(newDesired(3, control.Serve, 30))
		says(starts(3), "starting again; the last process failed: exit status 4")
		says(n.untilState(3, control.Linking), "starting again; the last process failed: exit status 4")
		says(n.untilState(3, control.Active), "")
		n.want(newDesired(3, control.Serve, 30), newDesired(5, control.Shadow, 30))
		n.untilState(5, control.Failed)
		n.want(newDesired(3, control.Serve, 30), newDesired(6, control.Shadow, 30))
		says(starts(6), "")
	})
}

// A function that is removed and added again under the same name is another function,
// perhaps with another model.
func TestAddedAgain(t *testing.T) {
	for name, late := range map[string]bool{"all have ended": false, "the last ends later, and fails": true} {
		t.Run(name, func(t *testing.T) {
			lives := func(sp spec) life {
				switch g := sp.key.generation; {
				case g < 6:
					return life{dies: time.Millisecond, how: exit{code: 3}}
				case g == 6:
					return life{ignoreDrain: true, ignoreTerm: true, dies: 3 * time.Second, how: exit{code: 3}}
				}
				return life{handshake: time.Second}
			}
			runNode(t, lives, func(n *node) {
				last := uint32(5)
				for g := uint32(1); g <= last; g++ {
					n.want(newDesired(g, control.Shadow, 30))
					n.untilState(g, control.Failed)
				}
				if late {
					last = 6
					n.want(newDesired(last, control.Shadow, 30))
					n.untilState(last, control.Loaded)
				}
				n.want()
				time.Sleep(100 * time.Millisecond)
				if late {
					n.want(newDesired(7, control.Shadow, 30))
					n.until("the one before is gone", func(control.Observed) bool { return len(n.spawner.living()) == 1 })
				}
				wanted := time.Now()
				n.want(newDesired(8, control.Shadow, 30))
				p := n.untilState(8, control.Starting)
				if p.PID == 0 || p.Reason != "" {
					t.Errorf("it is %+v", p)
				}
				n.untilState(8, control.Loaded)
				if d := n.spawner.generation(8).born.Sub(wanted); d > 200*time.Millisecond {
					t.Errorf("it waited %v", d)
				}
			})
		})
	}
}

func TestBackoffPerInstance(t *testing.T) {
	lives := func(sp spec) life {
		if sp.key.instance == 0 {
			return life{dies: time.Millisecond, how: exit{code: 3}}
		}
		return life{}
	}
	runNode(t, lives, func(n *node) {
		for g := uint32(1); g <= 6; g++ {
			n.want(newDesired(g, control.Shadow, 30))
			n.untilState(g, control.Failed)
		}
		other := newDesired(7, control.Shadow, 30)
		other.Instance = 1
		wanted := time.Now()
		n.want(other)
		n.untilState(7, control.Loaded)
		if d := n.spawner.generation(7).born.Sub(wanted); d > 200*time.Millisecond {
			t.Errorf("it waited %v", d)
		}
	})
}

// TestCrashSeenByManager checks that a crash counts as a failure even if the manager noticed it first.
func TestCrashSeenByManager(t *testing.T) {
	lives := func(sp spec) life {
		if sp.key.generation == 1 {
			return life{dies: time.Second, how: exit{code: -1, signal: syscall.SIGABRT}, ignoreDrain: true}
		}
		return life{}
	}
	runNode(t, lives, func(n *node) {
		n.want(newDesired(1, control.Serve, 30))
		n.untilState(1, control.Active)
		time.Sleep(time.Until(n.spawner.generation(1).born.Add(time.Second - time.Nanosecond)))
		n.want(newDesired(2, control.Shadow, 30)) // the attach link informed the manager; process 1 is no longer desired
		n.untilState(2, control.Loaded)
		time.Sleep(time.Second)
		if !strings.Contains(n.log.String(), `"backoff_ms":100`) {
			t.Error("the crash was not counted")
		}
	})
}

// TestNewManager checks that processes of the old manager end before the new one's start.
func TestNewManager(t *testing.T) {
	lives := func(sp spec) life { return life{ignoreDrain: true, ignoreTerm: true, lingers: 300 * time.Millisecond} }
	runNode(t, lives, func(n *node) {
		n.want(newDesired(1, control.Serve, 30), newDesired(2, control.Shadow, 30))
		n.untilState(1, control.Active)
		old := slices.Clone(n.spawner.started)
		n.replaceManager("n")
		n.want(newDesired(1, control.Shadow, 30)) // the same generation number, for another manager
		n.untilState(1, control.Loaded)
		if len(n.spawner.started) != 3 {
			t.Fatalf("%d processes were started", len(n.spawner.started))
		}
		fresh := n.spawner.started[2]
		for _, p := range old {
			orders, signals := p.got()
			if !slices.Equal(signals, []syscall.Signal{syscall.SIGKILL}) || slices.Contains(orders, control.DoDrain) {
				t.Errorf("generation %d was ordered %v and signalled %v", p.spec.key.generation, orders, signals)
			}
		}
		if living := n.spawner.living(); len(living) != 1 || living[0] != fresh {
			t.Errorf("%d live", len(living))
		}
	})
}

// TestManagerStopped: a manager that is silent but exists keeps its processes.
func TestManagerStopped(t *testing.T) {
	runNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Serve, 30), newDesired(2, control.Shadow, 30))
		n.untilState(1, control.Active)
		n.untilState(2, control.Loaded)
		n.silence()
		time.Sleep(10 * control.PeerTimeout)
		synctest.Wait()
		if living := n.spawner.living(); len(living) != 2 {
			t.Errorf("%d processes live, want 2", len(living))
		}
		if got := strings.Count(n.log.String(), "manager does not answer"); got != 1 {
			t.Errorf("the log says %d times that the manager is stopped, want once", got)
		}
		n.link.desired <- n.desired
		synctest.Wait()
		if !strings.Contains(n.log.String(), "manager answers again") {
			t.Error("the log does not say that the manager answers again")
		}
	})
}

// TestSupervisorStopped stops the supervisor for an hour in each phase: while it waits
// for the manager, for a start, for a drain and after SIGTERM.
func TestSupervisorStopped(t *testing.T) {
	for _, row := range []struct {
		name string
		life life
		role control.Role
	}{
		{"while a process serves", life{}, control.Serve},
		{"while a process shakes hands", life{handshake: 9 * time.Second}, control.Shadow},
		{"while a process drains", life{drains: 4 * time.Second}, control.Drain},
	} {
		t.Run(row.name, func(t *testing.T) {
			runNode(t, func(spec) life { return row.life }, func(n *node) {
				n.want(newDesired(1, control.Serve, 30))
				if row.role != control.Shadow {
					n.untilState(1, control.Active)
				}
				if row.role == control.Drain {
					n.want(newDesired(1, control.Drain, 30))
				}
				for range 5 {
					time.Sleep(500 * time.Millisecond)
					n.stoppedTime.Add(int64(time.Hour))
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if _, signals := n.spawner.generation(1).got(); len(signals) != 0 {
					t.Errorf("process got signals %v, want none", signals)
				}
				if living := len(n.spawner.living()); (living == 1) != (row.role != control.Drain) {
					t.Errorf("%d processes live", living)
				}
			})
		})
	}
}

func TestSilentManager(t *testing.T) {
	runNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Serve, 30), newDesired(2, control.Shadow, 30))
		n.untilState(1, control.Active)
		n.untilState(2, control.Loaded)
		time.Sleep(control.PeerTimeout) // the manager is not silent: they stay
		if len(n.spawner.living()) != 2 {
			t.Fatal("they ended too soon")
		}
		n.silence()
		n.link.exists.Store(false)
		time.Sleep(control.PeerTimeout / 2)
		synctest.Wait()
		if len(n.spawner.living()) != 2 {
			t.Error("half the time was enough")
		}
		time.Sleep(control.PeerTimeout)
		synctest.Wait()
		if living := n.spawner.living(); len(living) != 0 {
			t.Errorf("%d live on", len(living))
		}
		if orders, signals := n.spawner.generation(1).got(); !slices.Contains(orders, control.DoDrain) || len(signals) != 0 {
			t.Errorf("ordered %v and signalled %v", orders, signals)
		}
	})
}

func TestStopDrains(t *testing.T) {
	lives := func(sp spec) life {
		return []life{{drains: 2 * time.Second}, {ignoreDrain: true}, {ignoreDrain: true, ignoreTerm: true}, {handshake: time.Hour}}[sp.key.generation-1]
	}
	runNode(t, lives, func(n *node) {
		n.want(newDesired(1, control.Serve, 30), newDesired(2, control.Serve, 30), newDesired(3, control.Shadow, 30))
		n.untilState(1, control.Active)
		n.untilState(2, control.Active)
		n.untilState(3, control.Loaded)
		n.want(newDesired(1, control.Serve, 30), newDesired(2, control.Serve, 30), newDesired(3, control.Shadow, 30), newDesired(4, control.Shadow, 30))
		started := time.Now()
		n.stop()
		<-n.stopped
		if d := time.Since(started); d > defaultLimits.drain+defaultLimits.term+time.Second {
			t.Errorf("it took %v", d)
		}
		o := n.link.observed()
		if len(o.Processes) != 4 {
			t.Fatalf("last observed %+v", o)
		}
		for i, want := range []string{"", "(terminated)", "(killed)", "(terminated)"} {
			if p := o.Processes[i]; p.State != control.Stopped || !strings.HasSuffix(p.Reason, want) || !strings.HasPrefix(p.Reason, "the orchestrator stops") {
				t.Errorf("generation %d: %s, %q", p.Generation, p.State, p.Reason)
			}
		}
	})
}

func TestGovernorFallback(t *testing.T) {
	runNode(t, nil, func(n *node) {
		n.shares.refuse = func(name string) bool { return strings.HasSuffix(name, "-1") }
		n.want(newDesired(1, control.Serve, 30), newDesired(2, control.Serve, 30))
		n.untilState(1, control.Active)
		n.untilState(2, control.Active)
		if w := n.spawner.generation(1).orders[0]; !w.Governor || w.SharePercent != 30 {
			t.Errorf("1 was woken by %+v", w)
		}
		if w := n.spawner.generation(2).orders[0]; w.Governor {
			t.Errorf("2 was woken by %+v", w)
		}
	})
}

func TestOlderMessage(t *testing.T) {
	runNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Serve, 30))
		n.want(newDesired(1, control.Serve, 40))
		n.untilState(1, control.Active)
		old := n.desired
		old.Seq--
		old.Processes = nil
		n.link.desired <- old
		synctest.Wait()
		time.Sleep(time.Second)
		if orders, _ := n.spawner.generation(1).got(); slices.Contains(orders, control.DoDrain) {
			t.Error("it drains")
		}
	})
}

// TestLeaks applies random desired states to processes with random
// lives. runNode checks that no process and no share is left.
func TestLeaks(t *testing.T) {
	for range 50 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			lives := func(sp spec) life {
				// A separate random source per process: the order of events must not
				// change its life.
				r := rand.New(rand.NewPCG(seed, uint64(sp.key.generation)))
				ms := func(n int) time.Duration { return time.Duration(r.IntN(n)) * time.Millisecond }
				maybe := func() bool { return r.IntN(6) == 0 }
				l := life{
					handshake: ms(300), load: ms(1000), link: ms(1000), drains: ms(6000), lingers: ms(500),
					ignoreDrain: maybe(), ignoreTerm: maybe(), nonsense: maybe(), ignoreOrders: maybe(),
				}
				if maybe() {
					l.refuse = errNoProgram
				}
				if maybe() {
					l.wrong = control.Linking
				}
				if maybe() {
					l.muteAt = []control.State{control.Starting, control.Loaded, control.Ready, control.Draining}[r.IntN(4)]
				}
				if maybe() {
					l.failsToLoad = "no"
				}
				if maybe() {
					l.dies, l.how = ms(20000)+1, exit{code: r.IntN(2)}
				}
				return l
			}
			runNode(t, lives, func(n *node) {
				generation := uint32(0)
				var processes []control.DesiredProcess
				for i := range 40 {
					switch r.IntN(5) {
					case 0, 1:
						generation++
						p := newDesired(generation, []control.Role{control.Shadow, control.Serve}[r.IntN(2)], float64(r.IntN(100)))
						p.Instance = r.IntN(2)
						processes = append(processes, p)
					case 2:
						if len(processes) > 0 {
							i := r.IntN(len(processes))
							processes = slices.Delete(slices.Clone(processes), i, i+1)
						}
					case 3:
						if len(processes) > 0 {
							processes = slices.Clone(processes)
							processes[r.IntN(len(processes))].Role = []control.Role{control.Serve, control.Drain, control.Kill}[r.IntN(3)]
						}
					case 4:
						if r.IntN(4) == 0 {
							n.replaceManager(fmt.Sprint("m", i))
							processes = nil
						}
					}
					n.want(processes...)
					time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
				}
			})
		})
	}
}
