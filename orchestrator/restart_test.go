package orchestrator

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/grouptest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/orchestrator/cpushare"
	"github.com/penstock/penstock/orchestrator/gpu"
	"github.com/penstock/penstock/orchestrator/keeper"
)

// kept is a node whose orchestrators follow each other, with one keeper.
type kept struct {
	*realNode
	keeper    *keeper.Local
	served    chan error // receives once the keeper has seen the last orchestrator's end
	mechanism string
	hangUp    func() // ends the last orchestrator's connection to the keeper
}

func newKeptNode(t *testing.T) *kept {
	t.Helper()
	n := &kept{realNode: newNode(t), keeper: keeper.NewLocal(), mechanism: cpushare.Governor}
	t.Cleanup(func() { n.keeper.Close() })
	return n
}

// orchestrate starts the next orchestrator as a separate process.
func (n *kept) orchestrate() *exec.Cmd {
	n.t.Helper()
	ours, theirs, err := keeper.SocketPair()
	must.OK(n.t, err)
	defer theirs.Close()
	socket, err := syscall.Dup(int(ours.Fd()))
	must.OK(n.t, err)
	n.t.Cleanup(func() { syscall.Close(socket) })
	n.hangUp = func() { syscall.Shutdown(socket, syscall.SHUT_RDWR) }
	served := make(chan error, 1)
	n.served = served
	go func() { served <- n.keeper.Serve(ours) }()
	options, err := json.Marshal(plainOptions{Dir: n.dir, Mechanism: n.mechanism, Kept: true})
	must.OK(n.t, err)
	cmd := exec.Command(n.self, "orchestrate", string(options))
	cmd.Stderr, cmd.ExtraFiles = n.log, []*os.File{theirs}
	must.OK(n.t, cmd.Start())
	n.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			killed(cmd)
		}
	})
	return cmd
}

func killed(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

// untilAnother waits for a message of an orchestrator other than the last.
func (n *kept) untilAnother() {
	n.t.Helper()
	last := n.last.OrchestratorID
	n.until("another orchestrator is heard", func(o control.Observed) bool { return o.OrchestratorID != last })
}

// edited returns the one process that the keeper holds, and its note changed by edit.
func (n *kept) edited(edit func(*saved)) (id string, note json.RawMessage) {
	n.t.Helper()
	held := n.keeper.Held()
	if len(held) != 1 {
		n.t.Fatalf("%d processes are held", len(held))
	}
	held[0].Link.Close()
	held[0].Stdout.Close()
	held[0].Stderr.Close()
	s, err := readSaved(held[0].Note)
	must.OK(n.t, err)
	edit(&s)
	if note, err = json.Marshal(s); err != nil {
		n.t.Fatal(err)
	}
	return held[0].ID, note
}

// started marks processes as seen by the manager.
func started(list ...control.DesiredProcess) []control.DesiredProcess {
	for i := range list {
		list[i].Started = true
	}
	return list
}

// TestKeeperEnds: an orchestrator that can no longer start processes
// exits, so that the node starts another.
func TestKeeperEnds(t *testing.T) {
	n := newKeptNode(t)
	cmd := n.orchestrate()
	n.want(n.child(1, control.Serve))
	n.untilState(1, control.Active)
	n.hangUp()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(n.log.String(), keeper.ErrClosed.Error()) {
			t.Errorf("it ended with %v, want %v", err, keeper.ErrClosed)
		}
	case <-time.After(patience):
		t.Error("it runs on")
	}
}

func TestResume(t *testing.T) {
	n := newKeptNode(t)
	if f := cpushare.Probe(); f[0].Usable || f[1].Usable {
		n.mechanism = "" // use control groups, which the next orchestrator has to find again
	}
	cmd := n.orchestrate()
	n.want(n.child(1, control.Serve), n.child(2, control.Shadow))
	a, b := n.untilState(1, control.Active), n.untilState(2, control.Loaded)
	n.want(started(n.child(1, control.Serve), n.child(2, control.Shadow))...)
	for range 5 {
		killed(cmd)
		cmd = n.orchestrate()
		n.untilAnother()
		if len(n.last.Processes) != 2 {
			t.Fatalf("processes %+v", n.last.Processes)
		}
		for i, want := range []control.ObservedProcess{a, b} {
			if p := n.last.Processes[i]; p.PID != want.PID || p.State != want.State || p.SharePercent != 30 {
				t.Errorf("process %+v, want %+v", p, want)
			}
		}
	}
	// The processes take orders, and end when ordered to.
	n.want(started(n.child(1, control.Drain), n.child(2, control.Serve))...)
	if p := n.untilState(2, control.Active); p.PID != b.PID {
		t.Errorf("process %d serves, want %d", p.PID, b.PID)
	}
	if p := n.untilState(1, control.Stopped); p.Reason != "the manager ordered it" {
		t.Errorf("stopped: %s", p.Reason)
	}
	n.want(started(n.child(2, control.Serve))...)
	n.until("it is forgotten", func(o control.Observed) bool { return len(o.Processes) == 1 })
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	n.untilGone(b.PID)
	if left := grouptest.Of(os.Getpid()); len(left) > 0 {
		t.Errorf("groups are left: %v", left)
	}
	if n.log.has("no quota for the process") {
		t.Error("a group was not found again")
	}
}

// An orchestrator that dies after a member has ended, and before the manager has followed, has
// read the member's last notice.
func TestResumeAfterMemberEnded(t *testing.T) {
	n := newKeptNode(t)
	cmd := n.orchestrate()
	n.want(memberOf("face", 1, control.Serve), memberOf("fashion", 1, control.Serve))
	n.untilMember("fashion", 1, control.Active)
	face := n.untilMember("face", 1, control.Active)
	wanted := started(memberOf("face", 1, control.Serve), memberOf("fashion", 1, control.Drain))
	n.want(wanted...)
	n.untilMember("fashion", 1, control.Stopped)
	killed(cmd)
	cmd = n.orchestrate()
	n.untilAnother()
	n.want(wanted...)
	n.untilMember("fashion", 1, control.Stopped)
	if p := n.untilMember("face", 1, control.Active); p.PID != face.PID {
		t.Errorf("face has process %d, want %d", p.PID, face.PID)
	}
	killed(cmd)
}

// An orchestrator may die at any time, even right after it has sent an order.
func TestOrchestratorCrash(t *testing.T) {
	n := newKeptNode(t)
	cmd := n.orchestrate()
	for g := uint32(1); g <= 12; g++ {
		n.want(n.child(g, control.Serve))
		time.Sleep(time.Duration(g) * time.Millisecond) // starting, loading, being woken
		killed(cmd)
		cmd = n.orchestrate()
		p := n.untilState(g, control.Active)
		n.want(started(n.child(g, control.Kill))...)
		killed(cmd)
		cmd = n.orchestrate()
		if q := n.untilState(g, control.Stopped); q.PID != p.PID && q.PID != 0 {
			t.Errorf("generation %d was process %d, and then %d", g, p.PID, q.PID)
		}
		n.untilGone(p.PID)
	}
	for g := uint32(1); g <= 12; g++ {
		if starts := n.starts(g); starts > 1 {
			t.Errorf("generation %d was started %d times", g, starts)
		}
	}
}

// starts counts how often a generation has logged its start.
func (n *kept) starts(generation uint32) int {
	count := 0
	for line := range strings.Lines(n.log.String()) {
		var l struct {
			Message    string
			Generation uint32
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Generation == generation && l.Message == "hello from face" {
			count++
		}
	}
	return count
}

func TestEndDuringRestart(t *testing.T) {
	n := newKeptNode(t)
	cmd := n.orchestrate()
	n.want(n.child(1, control.Serve), n.child(2, control.Shadow))
	p := n.untilState(1, control.Active)
	n.untilState(2, control.Loaded)
	n.want(started(n.child(1, control.Serve), n.child(2, control.Shadow))...)
	for range 2 { // the second orchestrator dies as well, before the manager has followed
		killed(cmd)
		syscall.Kill(p.PID, syscall.SIGKILL)
		n.untilGone(p.PID)
		cmd = n.orchestrate()
		n.untilAnother()
		q := n.untilState(1, control.Failed)
		if q.PID != p.PID || q.Reason != "killed by signal 9 (not by Penstock)" {
			t.Errorf("process %+v", q)
		}
	}
	if n.starts(1) != 1 {
		t.Error("its generation was started again")
	}
}

// Without a keeper the processes are gone, and so are their generations.
func TestGenerationIsNotStartedAgain(t *testing.T) {
	n := newNode(t)
	cmd := n.orchestrate("")
	n.want(n.child(1, control.Serve))
	n.untilState(1, control.Active)
	n.want(started(n.child(1, control.Serve))...)
	killed(cmd)
	n.orchestrate("")
	if p := n.untilState(1, control.Stopped); p.PID != 0 || p.Reason != "the process ended under an earlier orchestrator" {
		t.Errorf("process %+v", p)
	}
	n.want(n.child(2, control.Serve))
	n.untilState(2, control.Active)
}

func TestNewManagerAfterRestart(t *testing.T) {
	n := newKeptNode(t)
	cmd := n.orchestrate()
	n.want(n.child(1, control.Serve))
	p := n.untilState(1, control.Active)
	killed(cmd)
	n.startManager("second")
	n.want(n.child(1, control.Serve))
	n.orchestrate()
	if q := n.untilState(1, control.Active); q.PID == p.PID {
		t.Error("it is the old manager's")
	}
	n.untilGone(p.PID)
}

func TestEndWithManager(t *testing.T) {
	n := newKeptNode(t)
	cmd := n.orchestrate()
	n.want(n.child(1, control.Serve))
	p := n.untilState(1, control.Active)
	killed(cmd)
	n.manager.Close()
	n.orchestrate()
	n.untilGone(p.PID)
	wait.For(t, "the log to say why", func() bool { return n.log.has("manager ended; stopping its processes") })
}

func TestNoteOfAnotherVersion(t *testing.T) {
	for name, edit := range map[string]func(*saved){
		"another version":    func(n *saved) { n.Version++ },
		"no generation":      func(n *saved) { n.Generation = 0 },
		"a name with a path": func(n *saved) { n.IF = "../face" },
		"an unknown state":   func(n *saved) { n.State = "happy" },
	} {
		t.Run(name, func(t *testing.T) {
			n := newKeptNode(t)
			cmd := n.orchestrate()
			n.want(n.child(1, control.Serve))
			p := n.untilState(1, control.Active)
			killed(cmd)
			<-n.served // all of the orchestrator's notes are written
			n.keeper.Note(n.edited(edit))
			n.want(started(n.child(1, control.Serve))...)
			n.orchestrate()
			n.untilState(1, control.Stopped)
			n.untilGone(p.PID)
			n.want(n.child(2, control.Serve))
			n.untilState(2, control.Active)
		})
	}
}

func TestResumeOnGPU(t *testing.T) {
	fakeGPUs(t)
	n := newKeptNode(t)
	n.desired.Devices = []string{fakeUUID[:8]}
	cmd := n.orchestrate()
	a, b, shadow := n.onFakeGPU(1, 30), n.onFakeGPU(2, 100, 0, 15), n.onFakeGPU(3, 20)
	b.SharedWeights, shadow.Role = true, control.Shadow
	n.want(a, b, shadow)
	var before [3]control.ObservedProcess
	for i, state := range []control.State{control.Active, control.Active, control.Loaded} {
		before[i] = n.untilState(uint32(i+1), state)
	}
	n.until("weights are held", holdsWeights)
	device, daemon := *gpuOf(n.last), n.daemonOf()
	n.want(started(a, b, shadow)...)
	for range 3 {
		killed(cmd)
		cmd = n.orchestrate()
		n.untilAnother()
		o := n.last // the first message of the new orchestrator
		if mechanismOf(o) != gpu.MPS || gpuOf(o) == nil || gpuOf(o).UUID != device.UUID || len(gpuOf(o).GroupSMs) != len(device.GroupSMs) {
			t.Errorf("observed %+v, %+v", o, gpuOf(o))
		}
		for i, p := range o.Processes {
			if p.PID != before[i].PID || p.State != before[i].State || !slices.Equal(p.SMGroups, before[i].SMGroups) {
				t.Errorf("process %+v, want %+v", p, before[i])
			}
		}
		n.until("the processes have reported", func(o control.Observed) bool {
			return o.Processes[0].SMs == before[0].SMs && o.Processes[1].SMs == before[1].SMs
		})
		n.until("the same weights are held", func(o control.Observed) bool {
			return gpuOf(o).Weights != nil && *gpuOf(o).Weights == *device.Weights
		})
		if n.daemonOf() != daemon {
			t.Errorf("daemon %d in place of %d", n.daemonOf(), daemon)
		}
	}
	shadow.Role = control.Serve
	n.want(started(a, b, shadow)...) // woken once the GPU is open again
	if p := n.untilState(3, control.Active); p.PID != before[2].PID || p.SMs == 0 {
		t.Errorf("woken is %+v", p)
	}
	if n.daemonOf() != daemon || !exists(daemon) {
		t.Errorf("daemon %d in place of %d", n.daemonOf(), daemon)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	for _, pid := range []int{before[0].PID, before[1].PID, before[2].PID, int(device.Weights.Bytes), daemon} {
		n.untilGone(pid)
	}
}

// The last orchestrator read the handshake but did not note it.
func TestResumeAfterHandshake(t *testing.T) {
	n := newKeptNode(t)
	cmd := n.orchestrate()
	n.want(n.child(1, control.Shadow))
	p := n.untilState(1, control.Loaded)
	n.want(started(n.child(1, control.Serve))...)
	n.untilState(1, control.Active)
	killed(cmd)
	<-n.served
	n.keeper.Note(n.edited(func(note *saved) { note.Handshook, note.State, note.Woken = false, control.Starting, false }))
	n.orchestrate()
	n.untilAnother()
	if q := n.untilState(1, control.Active); q.PID != p.PID {
		t.Errorf("process %d, want %d", q.PID, p.PID)
	}
}
