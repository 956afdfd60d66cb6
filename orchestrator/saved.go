package orchestrator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/atomicfile"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/gpu"
	"github.com/penstock/penstock/orchestrator/keeper"
	"github.com/penstock/penstock/orchestrator/program"
	"github.com/penstock/penstock/private"
)

// An orchestrator that takes over from a dead one resumes its processes:
//
//	1 the keeper hands out what it holds: links, output, exit statuses, and a note per
//	  process, which the dead orchestrator wrote at the process's start and at each change
//	2 the note has the process's manager and its orders
//	3 the orchestrator asks each process to repeat its state (control.DoReport)
//	4 it follows the manager's next message as if it had never been away
//
// Nothing that happened between the last note and the death is lost. Notices wait in the
// link. The report shows the effect of an order that was sent. An order that is repeated
// changes nothing. The keeper keeps a process that has exited until the manager has been
// informed, so its generation is not started again.
//
// A note of another version was written by another binary: its process is ended.

// saved is the note of a process. It is valid for one version of control's messages.
type saved struct {
	Version      int    `json:"version"`
	ManagerID    string `json:"manager_id"`
	AttachSocket string `json:"attach_socket"`

	IF         string `json:"if"`
	Instance   int    `json:"instance"`
	Generation uint32 `json:"generation"`
	Worker     string `json:"worker,omitempty"`

	State        control.State `json:"state"`
	Handshook    bool          `json:"shook,omitempty"`
	Woken        bool          `json:"woken,omitempty"`
	SharePercent float64       `json:"share_percent"`
	Governor     bool          `json:"governor,omitempty"`
	WokenPercent float64       `json:"woken_percent,omitempty"`
	Groups       []int         `json:"groups,omitempty"`
	Moving       bool          `json:"moving,omitempty"`

	Drained   bool   `json:"drained,omitempty"`
	Termed    bool   `json:"termed,omitempty"`
	Killed    bool   `json:"killed,omitempty"`
	Asked     string `json:"asked,omitempty"`
	Fault     string `json:"fault,omitempty"`
	LastWords string `json:"last_words,omitempty"`

	Counters cgroup.Counters `json:"counters"`
	Device   savedDevice     `json:"device"`
}

// savedDevice is the device that a process was started for. A CPU has no state.
type savedDevice struct {
	gpu.Options
	GPU *gpu.State `json:"gpu,omitempty"`
}

// boundFile, in the runtime folder, has the GPU that each device is. A device that the node has opened before, and that
// is missing for the next orchestrator, is lost. A device that was never opened is a mistake of the operator.
const boundFile = "devices.json"

// boundDevices is the content of boundFile.
type boundDevices struct {
	Run  string            `json:"run"`  // Options.Run
	GPUs map[string]string `json:"gpus"` // UUIDs by device
}

// readBound returns what an earlier orchestrator of this run has written.
func readBound(dir, run string) map[string]string {
	var b boundDevices
	if folder, err := private.OpenFolder(dir); err == nil {
		defer folder.Close()
		text, _ := folder.ReadFile(boundFile, 1<<20)
		_ = json.Unmarshal(text, &b) // the first orchestrator finds no file
	}
	if run == "" || b.Run != run || b.GPUs == nil {
		return map[string]string{}
	}
	return b.GPUs
}

// Restarted reports whether an earlier orchestrator of this run of a node has opened GPUs.
func Restarted(dir, run string) bool { return len(readBound(dir, run)) > 0 }

// bind notes which GPU a device is.
func (s *supervisor) bind(d *device) {
	if d.CPU || s.bound[d.Device] == d.UUID {
		return
	}
	s.bound[d.Device] = d.UUID
	if s.o.Run == "" {
		return
	}
	text, err := json.Marshal(boundDevices{s.o.Run, s.bound})
	if err == nil {
		err = atomicfile.Replace(filepath.Join(s.o.Dir, boundFile), text, 0o600)
	}
	if err != nil {
		d.log.Warn().Err(err).Msg("cannot note which GPU the device is; an orchestrator that starts while it is lost will not start")
	}
}

// heldProcess is a process that another orchestrator started.
type heldProcess struct {
	id     string
	note   json.RawMessage
	age    time.Duration
	exited bool // another process may have its process id now
	held   *keeper.Process
	member *member // of a worker; nil if it is not in one
}

// readSaved decodes a note, and refuses other versions.
func readSaved(note json.RawMessage) (saved, error) {
	var v struct {
		Version int `json:"version"`
	}
	var n saved
	if err := json.Unmarshal(note, &v); err != nil {
		return n, fmt.Errorf("read note: %w", err)
	}
	if v.Version != control.Version {
		return n, &control.VersionError{Peer: "the last orchestrator", Theirs: v.Version, Ours: control.Version}
	}
	if err := json.Unmarshal(note, &n); err != nil {
		return n, fmt.Errorf("read note: %w", err)
	}
	if n.Generation == 0 || control.CheckName(n.IF) != nil || n.ManagerID == "" || !n.State.Known() {
		return n, fmt.Errorf("read note: %w: %.100s", control.ErrBadMessage, note)
	}
	return n, nil
}

// noteOf returns the note of a process in its present state.
func (s *supervisor) noteOf(k key, c *child) json.RawMessage {
	n := saved{
		Version: control.Version, ManagerID: s.manager.id, AttachSocket: s.manager.socket,
		IF: k.name, Instance: k.instance, Generation: k.generation, Worker: c.desired.Worker,
		State: c.state, Handshook: c.handshook, Woken: c.woken, SharePercent: c.terms.SharePercent, Governor: c.governor,
		WokenPercent: c.wokenPercent, Groups: c.groups, Moving: c.moving,
		Drained: !c.drained.IsZero(), Termed: !c.termed.IsZero(), Killed: !c.killed.IsZero(),
		Asked: c.asked, Fault: c.fault, LastWords: c.lastWords,
	}
	if c.process != nil {
		n.Counters = c.process.counters()
	}
	n.Device.Options = c.device.Options
	if c.device.onGPU() {
		n.Device.GPU, n.Device.Known = &c.device.State, c.device.Priorities
	}
	b, err := json.Marshal(n)
	if err != nil {
		s.addProcess(s.log.Error(), k).Err(err).Msg("cannot encode state of process")
	}
	return b
}

// save writes the notes that have changed.
func (s *supervisor) save() {
	for k, c := range s.processes {
		if c.process == nil || c.state.Ended() {
			continue
		}
		s.saveProcess(k, c)
	}
}

func (s *supervisor) saveProcess(k key, c *child) {
	if note := s.noteOf(k, c); !bytes.Equal(note, c.noted) {
		c.noted = note
		c.process.note(note)
	}
}

// restore resumes the processes that the keeper holds. It ends processes that another
// version started, and those that belong to another manager than the rest.
func (s *supervisor) restore(held []heldProcess) {
	var servers []*keeper.Process
	for _, h := range held {
		if strings.HasPrefix(h.id, weightsID) {
			servers = append(servers, h.held)
			continue
		}
		n, err := readSaved(h.note)
		if err == nil && s.manager.id != "" && n.ManagerID != s.manager.id {
			err = fmt.Errorf("it belongs to manager %s, the others to %s", n.ManagerID, s.manager.id)
		}
		if err != nil {
			s.log.Warn().Err(err).Str("process", h.id).Msg("cannot take over a process of the last orchestrator; ending it")
			s.closing.Go(func() { s.o.spawner.drop(h, s.limits.term) })
			continue
		}
		s.resume(h, n)
	}
	for _, server := range servers {
		i := slices.IndexFunc(s.devices, func(d *device) bool { return d.onGPU() && weightsID+d.UUID == server.ID })
		if i < 0 {
			s.closing.Go(func() { keeper.Drop(s.o.Keeper, server, program.EndTimeout) })
			continue
		}
		s.devices[i].weights.last = server
		s.devices[i].shareWeights()
	}
	if len(s.processes) == 0 {
		return
	}
	s.manager.lastMessage = s.now()
	s.target.waiting = true
	s.log.Info().Int("processes", len(s.processes)).Str("manager_id", s.manager.id).Msg("took over the processes of the last orchestrator")
}

// resume resumes one process.
func (s *supervisor) resume(h heldProcess, n saved) {
	k := key{n.IF, n.Instance, n.Generation}
	now := s.now()
	when := func(did bool) time.Time {
		if did {
			return now
		}
		return time.Time{}
	}
	c := &child{
		observedProcess: observedProcess{
			state: n.State, terms: control.Terms{SharePercent: n.SharePercent}, woken: n.Woken, handshook: n.Handshook,
			spawned: now.Add(-h.age), since: now,
			drained: when(n.Drained), termed: when(n.Termed), killed: when(n.Killed),
			groups: n.Groups, moving: n.Moving, ordered: now,
		},
		desired:  control.DesiredProcess{IF: n.IF, Instance: n.Instance, Generation: n.Generation, Device: n.Device.Device, Worker: n.Worker, Terms: control.Terms{SharePercent: n.SharePercent}, SMGroups: n.Groups},
		governor: n.Governor, wokenPercent: n.WokenPercent,
		asked: n.Asked, fault: n.Fault, lastWords: n.LastWords,
	}
	p, err := s.o.spawner.resume(h, k, n.Counters)
	if err != nil {
		s.addProcess(s.log.Warn(), k).Err(err).Msg("cannot take over a process of the last orchestrator; ending it")
		s.closing.Go(func() { s.o.spawner.drop(h, s.limits.term) })
		return
	}
	c.process = p
	s.manager.id, s.manager.socket = n.ManagerID, n.AttachSocket
	c.device = s.restoreDevice(n.Device)
	s.processes[k] = c
	s.follow(k, p)
	if h.exited {
		return
	}
	s.limit(k, c)
	if c.killed.IsZero() {
		s.order(k, c, control.Order{Do: control.DoReport})
	}
}

// restoreDevice returns the device of a process. It opens the device again, unless another process has it, too. Until it
// is open, the device's state is the one in the note, and no process is woken.
func (s *supervisor) restoreDevice(n savedDevice) *device {
	if d := s.deviceOf(n.Device); d != nil {
		return d
	}
	n.Options.Resumed = true
	if n.GPU != nil {
		n.Options.Bound = n.GPU.UUID
	}
	d := s.newDevice(n.Options)
	s.devices = append(s.devices, d)
	d.open(func() {})
	if n.GPU != nil {
		d.State = *n.GPU
		d.Opened, d.Priorities = true, n.Known
		d.Idle, d.UsedBytes, d.FreeBytes = "waiting until the GPU is opened again", -1, -1
	}
	return d
}
