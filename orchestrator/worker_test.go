package orchestrator

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/orchestrator/cpushare"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// workerMain is the process of a worker. Its members behave as their functions' names say.
func workerMain() int {
	worker, err := control.OpenChild()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		select {
		case m, ok := <-worker.Members():
			if !ok {
				return 1
			}
			go memberMain(m)
		case o, ok := <-worker.Orders():
			switch {
			case !ok:
				return 1
			case o.Do == control.DoDrain:
				return 0
			}
		}
	}
}

func memberMain(m *control.Child) {
	name := m.Start().IF
	if name == "fails" {
		m.Exit(errors.New("cannot open model.onnx"))
		return
	}
	if name == "slow" {
		time.Sleep(memberTimeout + time.Second)
	}
	said, woken := control.Notice{State: control.Loaded}, false
	m.Notify(said)
	for o := range m.Orders() {
		switch o.Do {
		case control.DoWake:
			woken = true
			for _, s := range []control.State{control.Linking, control.Ready, control.Active} {
				said = control.Notice{State: s, Reason: fmt.Sprintf("guarantee %v", o.GuaranteePercent)}
				m.Notify(said)
			}
		case control.DoReport:
			said.Woken = woken
			m.Notify(said)
		case control.DoDrain:
			if name == "hangs" {
				forever()
			}
			m.Notify(control.Notice{State: control.Draining})
			m.Exit(nil)
			m.Notify(said) // another thread may have been about to report
			return
		}
	}
}

// memberOf describes a member of the worker cold.
func memberOf(name string, generation uint32, role control.Role) control.DesiredProcess {
	p := newDesired(generation, role, 0)
	p.IF, p.Worker, p.GuaranteePercent, p.Level, p.BalanceNanos = name, "cold", 40, 2, 1e6
	return p
}

// untilMember waits for a state of a function's process.
func (n *realNode) untilMember(name string, generation uint32, state control.State) (found control.ObservedProcess) {
	n.t.Helper()
	n.until(fmt.Sprintf("generation %d of %s is %s", generation, name, state), func(o control.Observed) bool {
		for _, p := range o.Processes {
			if p.IF == name && p.Generation == generation && p.State == state {
				found = p
				return true
			}
		}
		return false
	})
	return found
}

func TestWorker(t *testing.T) {
	for _, mechanism := range []string{"", cpushare.Governor} {
		t.Run("mechanism "+mechanism, func(t *testing.T) {
			n := newNode(t).run(func(o *Options) { o.Mechanism = mechanism })
			other := n.child(1, control.Shadow)
			other.IF = "other"
			n.want(memberOf("face", 1, control.Serve), memberOf("fashion", 1, control.Shadow), other)
			face, fashion, own := n.untilMember("face", 1, control.Active), n.untilMember("fashion", 1, control.Loaded), n.untilMember("other", 1, control.Loaded)
			if face.PID != fashion.PID || face.PID == own.PID {
				t.Errorf("members have processes %d and %d, want one; the other function has %d, want its own", face.PID, fashion.PID, own.PID)
			}
			if face.Reason != "guarantee 40" {
				t.Errorf("face was woken with %q, want the worker's guarantee of 40", face.Reason)
			}

			// A member starts next to those that serve, and one that has ended leaves them.
			n.want(memberOf("face", 1, control.Drain), memberOf("face", 2, control.Serve), memberOf("fashion", 1, control.Serve))
			n.untilMember("face", 1, control.Stopped)
			if p := n.untilMember("face", 2, control.Active); p.PID != face.PID {
				t.Errorf("second generation has process %d, want the worker's %d", p.PID, face.PID)
			}
			n.untilMember("fashion", 1, control.Active)

			// The worker ends with its last member; the next one starts another.
			n.want()
			n.until("no process is listed", func(o control.Observed) bool { return len(o.Processes) == 0 })
			n.untilGone(face.PID)
			n.want(memberOf("face", 3, control.Serve))
			if p := n.untilMember("face", 3, control.Active); p.PID == face.PID {
				t.Errorf("third generation has the ended process %d", p.PID)
			}
		})
	}
}

// A member that is removed while it loads its model does not end its worker.
func TestWorkerRemovesLoadingMember(t *testing.T) {
	n := newNode(t).run(func(o *Options) { o.limits.drain, o.limits.term = time.Millisecond, time.Millisecond })
	n.want(memberOf("face", 1, control.Serve), memberOf("slow", 1, control.Shadow))
	face := n.untilMember("face", 1, control.Active)
	n.untilMember("slow", 1, control.Starting)
	n.want(memberOf("face", 1, control.Serve))
	n.until("slow is forgotten", func(o control.Observed) bool { return len(o.Processes) == 1 })
	if p := n.untilMember("face", 1, control.Active); p.PID != face.PID {
		t.Errorf("face has process %d, want %d", p.PID, face.PID)
	}
}

func TestWorkerMemberFails(t *testing.T) {
	n := newNode(t).run()
	n.want(memberOf("face", 1, control.Serve), memberOf("fails", 1, control.Shadow))
	if p := n.untilMember("fails", 1, control.Failed); p.Reason != "exit status 1: cannot open model.onnx" {
		t.Errorf("failed: %s", p.Reason)
	}
	pid := n.untilMember("face", 1, control.Active).PID
	own := memberOf("own", 1, control.Shadow)
	own.Command = []string{"/bin/true"}
	n.want(memberOf("face", 1, control.Serve), own)
	if p := n.untilMember("own", 1, control.Failed); p.Reason != "its model is a program of its own, which worker cold cannot host" {
		t.Errorf("failed: %s", p.Reason)
	}
	if p := n.untilMember("face", 1, control.Active); p.PID != pid || !exists(pid) {
		t.Errorf("face has process %d, want %d, which lives", p.PID, pid)
	}
}

func TestWorkerKilled(t *testing.T) {
	n := newNode(t).run()
	n.want(memberOf("face", 1, control.Serve), memberOf("fashion", 1, control.Serve))
	pid := n.untilMember("face", 1, control.Active).PID
	n.untilMember("fashion", 1, control.Active)
	must.OK(t, syscall.Kill(pid, syscall.SIGKILL))
	for _, name := range []string{"face", "fashion"} {
		if p := n.untilMember(name, 1, control.Failed); p.Reason != "killed by signal 9 (not by Penstock)" {
			t.Errorf("%s failed: %s", name, p.Reason)
		}
	}
	n.want(memberOf("face", 2, control.Serve), memberOf("fashion", 2, control.Serve))
	if a, b := n.untilMember("face", 2, control.Active), n.untilMember("fashion", 2, control.Active); a.PID != b.PID || a.PID == pid {
		t.Errorf("members have processes %d and %d, want one other than %d", a.PID, b.PID, pid)
	}
}

// TestWorkerMemberHangs kills a member that does not end, and with it its worker.
func TestWorkerMemberHangs(t *testing.T) {
	n := newNode(t).run()
	n.want(memberOf("face", 1, control.Serve), memberOf("hangs", 1, control.Serve))
	n.untilMember("face", 1, control.Active)
	n.untilMember("hangs", 1, control.Active)
	n.want(memberOf("face", 1, control.Serve), memberOf("hangs", 1, control.Kill))
	if p := n.untilMember("face", 1, control.Failed); !strings.Contains(p.Reason, "worker cold was killed because its member hangs/0#1 did not end") {
		t.Errorf("face failed: %s", p.Reason)
	}
	n.untilMember("hangs", 1, control.Stopped)

	// A member that does end takes no other with it.
	n.want(memberOf("face", 2, control.Serve), memberOf("fashion", 1, control.Serve))
	pid := n.untilMember("face", 2, control.Active).PID
	n.untilMember("fashion", 1, control.Active)
	n.want(memberOf("face", 2, control.Serve), memberOf("fashion", 1, control.Kill))
	n.untilMember("fashion", 1, control.Stopped)
	if p := n.untilMember("face", 2, control.Active); p.PID != pid {
		t.Errorf("face has process %d, want %d", p.PID, pid)
	}
}

// TestWorkerRestart ends the orchestrator under a worker. The next one takes over its members.
func TestWorkerRestart(t *testing.T) {
	n := newKeptNode(t)
	cmd := n.orchestrate()
	all := func(fashion control.Role) []control.DesiredProcess {
		return started(memberOf("face", 1, control.Serve), memberOf("fashion", 1, fashion))
	}
	n.want(memberOf("face", 1, control.Serve), memberOf("fashion", 1, control.Serve))
	pid := n.untilMember("face", 1, control.Active).PID
	n.untilMember("fashion", 1, control.Active)
	killed(cmd)
	<-n.served
	cmd = n.orchestrate()
	n.want(all(control.Serve)...)
	n.untilAnother()
	for _, name := range []string{"face", "fashion"} {
		if p := n.untilMember(name, 1, control.Active); p.PID != pid {
			t.Errorf("%s has process %d, want %d", name, p.PID, pid)
		}
	}
	n.want(all(control.Drain)...)
	n.untilMember("fashion", 1, control.Stopped)
	n.want(append(all(control.Drain)[:1], memberOf("fashion", 2, control.Serve))...)
	if p := n.untilMember("fashion", 2, control.Active); p.PID != pid {
		t.Errorf("new member has process %d, want %d", p.PID, pid)
	}

	// The worker ends while there is no orchestrator.
	killed(cmd)
	<-n.served
	must.OK(t, syscall.Kill(pid, syscall.SIGKILL))
	n.untilGone(pid)
	cmd = n.orchestrate()
	n.want(started(memberOf("face", 1, control.Serve), memberOf("fashion", 2, control.Serve))...)
	n.untilAnother()
	n.untilMember("face", 1, control.Failed)
	n.untilMember("fashion", 2, control.Failed)
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
}

// TestWorkerMayRead tests that a member whose model the worker's process may not read gets another.
func TestWorkerMayRead(t *testing.T) {
	models := t.TempDir()
	for _, name := range []string{"face", "elsewhere"} {
		must.OK(t, os.WriteFile(filepath.Join(models, name), nil, 0o600))
	}
	folder, link := filepath.Join(models, "folder"), filepath.Join(models, "folder", "link")
	must.OK(t, os.Mkdir(folder, 0o700))
	must.OK(t, os.Symlink("../elsewhere", link))
	later := filepath.Join(folder, "later")
	must.OK(t, os.WriteFile(later, nil, 0o600))
	w := &workers{hosts: map[string]*host{}}
	w.hosts["a"] = w.newHost(savedWorker{Worker: "cold", Device: "cpu", Reads: []string{"/lib", filepath.Join(models, "face"), folder}})
	for name, c := range map[string]struct {
		worker, device string
		reads          []string
		found          bool
	}{
		"same files":     {"cold", "cpu", []string{filepath.Join(models, "face")}, true},
		"other files":    {"cold", "cpu", []string{"/lib", filepath.Join(models, "elsewhere")}, false},
		"in a folder":    {"cold", "cpu", []string{later}, true},
		"link outside":   {"cold", "cpu", []string{link}, false},
		"missing":        {"cold", "cpu", []string{filepath.Join(folder, "none")}, false},
		"folder's name":  {"cold", "cpu", []string{folder + "er"}, false},
		"other worker":   {"warm", "cpu", nil, false},
		"other device":   {"cold", "GPU-1", nil, false},
		"without limits": {"cold", "cpu", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			sp := spec{worker: c.worker, start: control.Start{Device: c.device}, confined: &sandbox.Spec{}, reads: c.reads}
			if found := w.hostLocked(&sp) != nil; found != c.found {
				t.Errorf("found a process: %v, want %v", found, c.found)
			}
		})
	}
	for name, change := range map[string]func(h *host){
		"is ending":     func(h *host) { h.closing = true },
		"is superseded": func(h *host) { h.closing, h.saved.Superseded = false, true },
	} {
		change(w.hosts["a"])
		if w.hostLocked(&spec{worker: "cold", start: control.Start{Device: "cpu"}}) != nil {
			t.Errorf("found a process that %s", name)
		}
	}
}
