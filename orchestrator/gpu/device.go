// Package gpu opens GPUs and watches them: MPS, groups of multiprocessors, memory, and whether stream priorities hold.
// It makes no context on a GPU.
package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/orchestrator/guest"
	"github.com/penstock/penstock/orchestrator/mps"
	"github.com/penstock/penstock/orchestrator/program"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// Values of control.GPU.Mechanism for a GPU. Time slicing does not enforce shares.
const (
	MPS         = "mps"
	TimeSlicing = "time-slicing"
)

// Machine finds GPUs. Its methods may take seconds, and any goroutine may call them.
type Machine interface {
	// Find makes no context on the device.
	Find(name string) (Found, error)
	// Claim makes the GPU this node's until release. Its error is one line that names the node that has it.
	Claim(uuid string) (release func(), err error)
	Session() (nvml.Session, error)
	StartMPS(context.Context, mps.Options) (Daemon, error)
	// Priorities returns whether stream priorities hold between processes on a GPU with MPS.
	// cached reports that an earlier start measured it. environment is the daemon's.
	Priorities(ctx context.Context, g Found, environment map[string]string) (p control.StreamPriorities, cached bool, err error)
}

// Daemon is the part of mps.Daemon that device uses.
type Daemon interface {
	Environment() map[string]string
	State() mps.State
	Changes() <-chan struct{}
	Health(context.Context) (mps.Health, error)
	EndWork(ctx context.Context, pids []int) error
	Close() error
}

// Found describes a GPU as CUDA reports it.
type Found struct {
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	Driver      string `json:"driver,omitempty"` // its version
	SMs         int    `json:"sms"`
	MemoryBytes int64  `json:"memory_bytes"`
	// GroupSMs has the number of multiprocessors of each group, by index (cuda.Split). It
	// is empty with time slicing, and if the driver cannot make groups. NoGroups then has
	// the driver's reason.
	GroupSMs []int  `json:"group_sms,omitempty"`
	NoGroups string `json:"no_groups,omitempty"`
}

// Here is the machine that this process runs on.
type Here struct {
	Dir   string // the runtime folder
	Self  string // this binary, which contains the launcher of package sandbox
	Cache string // the folder of results of probes; empty: every start measures
	// Confined: the probe runs in the sandbox. User is its user, and that of MPS; nil is this process's.
	Confined     bool
	User         *sandbox.User
	ProbeTimeout time.Duration // 0: a default
	Log          zerolog.Logger
}

func (m Here) Find(name string) (Found, error) {
	if nvml.IsInstance(name) {
		return findInstance(name)
	}
	if err := StayOut(m.Dir); err != nil {
		return Found{}, err
	}
	d, err := cuda.Find(name)
	if err != nil {
		return Found{}, err
	}
	p, err := d.Properties()
	if err != nil {
		return Found{}, fmt.Errorf("read properties of %v: %w", d, err)
	}
	f := Found{UUID: d.UUID(), Name: d.Name(), SMs: p.SMs, MemoryBytes: p.MemoryBytes}
	split, err := d.Split()
	if err != nil {
		f.NoGroups = program.Line(err.Error())
	} else {
		f.GroupSMs = split.GroupSMs()
	}
	return f, nil
}

// findInstance asks NVML, as CUDA shows a process only one of all MIG instances.
func findInstance(name string) (Found, error) {
	session, err := nvml.Open()
	if err != nil {
		return Found{}, err
	}
	in, err := nvml.FindInstance(session, name)
	return Found{
		UUID: in.UUID, Name: in.Name, SMs: in.SMs, MemoryBytes: in.MemoryBytes,
		NoGroups: "the groups of a MIG instance are unknown",
	}, err
}

func (Here) Session() (nvml.Session, error) { return nvml.Open() }

func (m Here) StartMPS(ctx context.Context, o mps.Options) (Daemon, error) {
	if m.User != nil {
		o.UID, o.Confine = m.User.UID, sandbox.AsUser(m.User, m.Self, m.Dir)
	}
	d, err := mps.Start(ctx, o)
	if err != nil {
		return nil, err // avoids a nil *Daemon in the interface
	}
	for _, s := range mps.Strangers(o.Dir, o.UUID) {
		o.Log.Warn().Int("pid", s.PID).Str("folder", s.Folder).Str("end_it", s.Quit()).
			Msg("another MPS daemon may have the GPU; its clients and the functions then take turns, without enforced shares")
	}
	return d, nil
}

// StayOut keeps this process from becoming a client of an MPS server when it
// initialises CUDA. After a fault, a server recovers only when its last client has
// ended, so this process would block the recovery. StayOut sets
// CUDA_MPS_PIPE_DIRECTORY for the whole process, to a folder in which no daemon
// listens. Call it before the first use of CUDA. dir is the runtime folder.
func StayOut(dir string) error {
	return os.Setenv("CUDA_MPS_PIPE_DIRECTORY", program.NoMPS(dir))
}

// State is the observed state of a device. The supervisor keeps the latest one.
type State struct {
	// Opened: the search for the device has ended. It found a GPU, or CPU is true, or Err
	// is set. A restarted orchestrator also sets it, with the state of the last one.
	Opened bool `json:"-"`
	// CPU: the manager requested control.DeviceAuto, and there is no GPU or no driver.
	CPU bool  `json:"-"`
	Err error `json:"-"` // why the device cannot be used; set after a failed search
	// Lost says why a device that worked does not any more; empty if it works. It is opened again when it does.
	Lost string `json:"-"`

	Found
	Why       string `json:"why,omitempty"` // why MPS or groups are not available
	Mechanism string `json:"mechanism"`
	// Environment makes a process use this device and no other.
	Environment map[string]string `json:"environment,omitempty"`
	// Priorities is the result of the priority probe; nil if there was none, or if it failed.
	Priorities *control.StreamPriorities `json:"-"`
	// Serving: processes may be woken on the device. With MPS, this needs a server that
	// accepts clients. Idle says why no process may be woken; ignore it while Serving is
	// true.
	Serving bool   `json:"-"`
	Idle    string `json:"-"`
	// Losses counts the MPS servers that died; see mps.State.
	Losses uint64 `json:"-"`
	// UsedBytes and FreeBytes are the device's memory, at most a second old. They are
	// -1 if unknown.
	UsedBytes int64 `json:"-"`
	FreeBytes int64 `json:"-"`
}

// Device opens a GPU and watches it, on its own goroutine:
//
//	1 find it; the driver initialises
//	2 open NVML, start MPS, measure stream priorities (priorities.go)
//	3 read its memory every 400 ms; take changes of MPS at once;
//	  after a process's end poll every 10 ms, until NVML no longer lists the process,
//	  or releaseTimeout has passed
//	4 the device is lost: end MPS, and after a pause 1
//
// After steps 2 and 3, and before step 4, it publishes its state, and sends to changes. A query of a device that fails
// may take as long as the driver likes. In step 3 nothing waits for it.
type Device struct {
	Options
	machine Machine
	dir     string
	log     zerolog.Logger

	changes chan<- struct{}
	kick    chan struct{}
	failed  chan string // see GiveUp
	cancel  context.CancelFunc
	done    chan struct{}

	mu      sync.Mutex
	latest  *State       // nil once it was received
	daemon  Daemon       // nil without MPS
	session nvml.Session // nil without NVML
	ends    map[int]end  // of processes that NVML may still list, by process id; see Follow

	// Owned by run.
	release func() // gives up the claim; nil before there is one
	counted bool   // NVML has known the device
	hadMPS  bool   // MPS has run on it
}

// end is the end of a process whose memory may not be free yet.
type end struct {
	bytes int64
	until time.Time // then the memory counts as free
}

// Options say how to open a device.
type Options struct {
	Device string `json:"device"`           // the manager's name for it
	NoMPS  bool   `json:"no_mps,omitempty"` // start no MPS
	Probe  bool   `json:"probe,omitempty"`  // with MPS, report stream priorities
	// Resumed: processes of an earlier orchestrator use the device, so nothing is measured.
	// Known is what that orchestrator knew.
	Resumed bool                      `json:"-"`
	Known   *control.StreamPriorities `json:"stream_priorities,omitempty"`
	// Bound is the UUID of the GPU that this run of the node has opened under this name; empty if it has not.
	// If it cannot be opened, it is lost. The same index may be another GPU then.
	Bound string `json:"-"`
	// Added: the node runs already. If the device cannot be opened, it is lost, too.
	Added bool `json:"-"`
}

// How often the device is polled: normally, and after a process's end. A memory query
// takes 5 µs, the list of processes 30 µs (H200, driver 580).
const (
	deviceEvery = 400 * time.Millisecond
	followEvery = 10 * time.Millisecond
)

// The pauses before a lost device is opened again grow. They are short again for a device that worked for maxPause.
const (
	minPause = time.Second
	maxPause = 15 * time.Second
)

// mpsPatience is how long MPS may be down before the device counts as lost, if NVML does not know better. A busy machine
// needs up to 20 s to start it.
const mpsPatience = 30 * time.Second

// releaseTimeout is the max time to wait until the memory of an ended process is free.
// Usually the driver has freed it before wait(2) returns (measured: a killed process
// with 2 GiB). A driver that is busy with a fault needs longer.
const releaseTimeout = 2 * time.Second

// Open returns a device, which its own goroutine opens after first has returned. Devices may have the same channel of
// changes, whose capacity is 1. It holds a value if a device has a state that was not received.
func Open(first func(), o Options, m Machine, dir string, changes chan<- struct{}, log zerolog.Logger) *Device {
	ctx, cancel := context.WithCancel(context.Background())
	d := &Device{
		Options: o, machine: m, dir: dir, log: log,
		changes: changes, kick: make(chan struct{}, 1), failed: make(chan string, 1), cancel: cancel, done: make(chan struct{}),
		ends: map[int]end{},
	}
	go func() {
		defer close(d.done)
		first()
		d.run(ctx)
	}()
	return d
}

// Changed returns the latest state; nil if it was received already.
func (d *Device) Changed() *State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.latest
	d.latest = nil
	return s
}

// GiveUp makes an open device lost, whatever NVML says. It is opened again like any other lost device.
func (d *Device) GiveUp(why string) {
	select {
	case d.failed <- why:
	default: // it is given up already
	}
}

// Close ends MPS and the goroutine. The processes must have ended.
func (d *Device) Close() {
	d.cancel()
	<-d.done
}

func (d *Device) run(ctx context.Context) {
	defer func() {
		if d.closeDaemon(); d.release != nil {
			d.release()
		}
	}()
	var last State // of the device when it worked
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		s, session := d.open(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.Err != nil && (d.Bound != "" || d.Added) {
			last.Opened, last.Lost = true, program.Line(s.Err.Error())
			s = last
		}
		if s.Lost == "" {
			d.publish(s)
			if s.CPU || s.Err != nil {
				return
			}
			began := time.Now()
			if s.Lost = d.watch(ctx, &s, session); ctx.Err() != nil {
				return
			}
			if time.Since(began) > maxPause {
				pause = minPause
			}
			// It is the same GPU when it works again, so nothing is measured again.
			last, d.Bound, d.Resumed, d.Known = s, s.UUID, true, s.Priorities
		}
		s.Serving, s.Idle, s.UsedBytes, s.FreeBytes = false, "the device is lost: "+s.Lost, -1, -1
		d.publish(s)
		d.closeDaemon()
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// closeDaemon ends MPS.
func (d *Device) closeDaemon() {
	d.mu.Lock()
	daemon := d.daemon
	d.daemon = nil
	d.mu.Unlock()
	if daemon == nil {
		return
	}
	if err := daemon.Close(); err != nil {
		d.log.Warn().Err(err).Msg("cannot stop MPS")
	}
}

// watch sends new states of an open device until ctx ends, or the device is lost. It returns why. session is nil
// without NVML.
func (d *Device) watch(ctx context.Context, s *State, session nvml.Session) (lost string) {
	var changes <-chan struct{}
	daemon := d.daemon
	if daemon != nil {
		changes = daemon.Changes()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var down time.Time // since when MPS has been down; zero if it runs
	answers, asking, complained := make(chan memory, 1), false, false
	for {
		news := session == nil
		select {
		case <-ctx.Done():
			return ""
		case why := <-d.failed:
			return why
		case <-changes:
			news = true
		case <-d.kick:
		case <-timer.C:
			news = news || asking // ended processes are not followed for ever
		case m := <-answers:
			if d.gone(m.err) {
				return program.Line(m.err.Error())
			}
			if m.err != nil && !complained {
				d.log.Warn().Err(m.err).Msg("cannot read the GPU's memory")
			}
			asking, complained, news = false, m.err != nil, true
			s.UsedBytes, s.FreeBytes = m.usedBytes, m.freeBytes
		}
		switch {
		case session == nil:
			d.followNone()
		case !asking && !news:
			asking = true
			go func() { answers <- d.readMemory(session, s.UUID) }()
		}
		if daemon != nil {
			m := daemon.State()
			s.Serving, s.Losses, s.Idle = m.Serving, m.Losses, "waiting for MPS: "+m.Why
			switch {
			case m.Serving:
				down = time.Time{}
			case down.IsZero():
				down = time.Now()
			case time.Since(down) > mpsPatience && (session == nil || complained):
				return program.Line(fmt.Sprintf("MPS cannot be restarted for %v: %s", mpsPatience, m.Why))
			}
		}
		if news {
			d.publish(*s)
		}
		if d.following() {
			timer.Reset(followEvery)
		} else {
			timer.Reset(deviceEvery)
		}
	}
}

// gone reports whether an answer of NVML means that the device is lost. NVML may not know a device that CUDA can use.
func (d *Device) gone(err error) bool {
	d.counted = d.counted || err == nil
	return errors.Is(err, nvml.ErrLost) || d.counted && errors.Is(err, nvml.ErrNoDevice)
}

// open finds the GPU, opens NVML and starts MPS.
func (d *Device) open(ctx context.Context) (State, nvml.Session) {
	s := State{Opened: true, UsedBytes: -1, FreeBytes: -1}
	name := cmp.Or(d.Bound, d.Options.Device)
	if name == control.DeviceAuto {
		name = "cuda"
	}
	began := time.Now()
	if s.Found, s.Err = d.machine.Find(name); s.Err != nil {
		if d.Options.Device == control.DeviceAuto && Missing(s.Err) {
			s.CPU, s.Err = true, nil
			d.log.Info().Msg("no GPU found; models run on the CPU")
			return s, nil
		}
		s.Err = fmt.Errorf("open device %s: %w", d.Options.Device, s.Err)
		return s, nil
	}
	if d.release == nil {
		if d.release, s.Err = d.machine.Claim(s.UUID); s.Err != nil {
			s.Err = fmt.Errorf("open device %s: %w", d.Options.Device, s.Err)
			return s, nil
		}
	}
	session, err := d.machine.Session()
	if err != nil {
		d.log.Warn().Err(err).Msg("cannot open NVML; the GPU's memory is unknown")
		session = nil
	}
	d.mu.Lock()
	d.session = session
	d.mu.Unlock()
	if session != nil {
		if _, err := session.Usage(s.UUID); d.gone(err) {
			s.Err = fmt.Errorf("open device %s: %w", d.Options.Device, err)
			return s, nil
		}
	}
	if s.Driver, err = driverVersion(session); err != nil {
		d.log.Warn().Err(err).Msg("cannot read the version of the driver")
	}
	s.Serving, s.Mechanism = true, MPS
	if d.NoMPS {
		s.byTime(d.dir)
		d.opened(&s, began)
		return s, session
	}
	daemon, err := d.machine.StartMPS(ctx, mps.Options{Dir: d.dir, UUID: s.UUID, Session: session, Log: d.log})
	if err != nil {
		if ctx.Err() != nil {
			return s, nil
		}
		if d.hadMPS {
			s.Err = fmt.Errorf("open device %s: start MPS: %w", d.Options.Device, err)
			return s, nil
		}
		s.withoutMPS(err, d.dir)
		d.log.Warn().Str("why", s.Why).
			Msg("cannot start MPS; functions take turns on the GPU without enforced shares; restart the node to try again")
	} else {
		d.mu.Lock()
		d.daemon, d.hadMPS = daemon, true
		d.mu.Unlock()
		s.Environment = daemon.Environment()
		if s.NoGroups != "" {
			s.Why = "no partitions: " + s.NoGroups
		}
		s.Priorities = d.probePriorities(ctx, &s)
	}
	d.opened(&s, began)
	return s, session
}

// probePriorities returns whether stream priorities hold, nil if that is not known.
func (d *Device) probePriorities(ctx context.Context, s *State) *control.StreamPriorities {
	if !d.Probe || d.Resumed {
		return d.Known
	}
	began := time.Now()
	p, cached, err := d.machine.Priorities(ctx, s.Found, s.Environment)
	if err != nil {
		if ctx.Err() == nil {
			d.log.Warn().Err(err).Msg("cannot measure stream priorities; assuming that they hold between processes")
		}
		return nil
	}
	message := "stream priorities hold between processes"
	if !p.Hold {
		message = "stream priorities do not hold between processes"
	}
	d.log.Info().Bool("cached", cached).Float64("alone_us", p.AloneMicros).Float64("high_us", p.HighMicros).Float64("equal_us", p.EqualMicros).
		Str("driver", s.Driver).Dur("after_ms", time.Since(began)).Msg(message)
	return &p
}

func (d *Device) opened(s *State, began time.Time) {
	d.log.Info().Str("gpu", s.Name).Str("uuid", s.UUID).Int("sms", s.SMs).Ints("groups", s.GroupSMs).
		Str("mechanism", s.Mechanism).Dur("after_ms", time.Since(began)).Msg("GPU opened")
}

// withoutMPS switches to time slicing, as MPS cannot run, and notes why.
func (s *State) withoutMPS(err error, dir string) {
	s.byTime(dir)
	s.Why = program.Line("no MPS: " + err.Error())
	var p *mps.Problem
	if errors.As(err, &p) && p.Fix != "" {
		s.Why = program.Line(s.Why + "; to repair: " + p.Fix)
	}
}

// byTime switches to time slicing. It drops the groups: processes that take turns would
// gain no isolation from groups of multiprocessors.
func (s *State) byTime(dir string) {
	s.Mechanism, s.GroupSMs = TimeSlicing, nil
	// Also keep the processes from becoming clients of another user's daemon.
	s.Environment = map[string]string{
		"CUDA_VISIBLE_DEVICES":    s.UUID,
		"CUDA_MPS_PIPE_DIRECTORY": program.NoMPS(dir),
	}
}

// Missing reports whether err means that there is no GPU, or no driver for one.
func Missing(err error) bool {
	return errors.Is(err, cuda.ErrNoDriver) || errors.Is(err, cuda.ErrNoDevice) || errors.Is(err, cuda.ErrNoCgo)
}

// memory is a device's memory in bytes, -1 if it is unknown.
type memory struct {
	usedBytes, freeBytes int64
	err                  error
}

// readMemory reads the device's memory, and stops following ended processes that NVML no
// longer lists.
func (d *Device) readMemory(session nvml.Session, uuid string) memory {
	if d.following() {
		list, err := session.Processes(uuid)
		d.mu.Lock()
		for pid := range d.ends {
			listed := slices.ContainsFunc(list, func(p nvml.Process) bool { return p.PID == pid })
			if err != nil || !listed {
				delete(d.ends, pid)
			}
		}
		d.mu.Unlock()
		if err != nil {
			return memory{-1, -1, err}
		}
	}
	// Read the usage after the list. If the list lacks a process, its memory was free
	// before, and the usage does not contain it.
	u, err := session.Usage(uuid)
	if err != nil {
		return memory{-1, -1, err}
	}
	return memory{u.UsedBytes, u.FreeBytes, nil}
}

func (d *Device) publish(s State) {
	d.mu.Lock()
	d.latest = &s
	d.mu.Unlock()
	select {
	case d.changes <- struct{}{}:
	default:
	}
}

// Follow makes device poll every followEvery until NVML no longer lists an ended process, for at most releaseTimeout.
// The process had this much memory.
func (d *Device) Follow(pid int, bytes int64) {
	d.mu.Lock()
	d.ends[pid] = end{bytes, time.Now().Add(releaseTimeout)}
	d.mu.Unlock()
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// Releasing returns how much memory of ended processes may not be free yet. When it has become less, the device sends
// its state.
func (d *Device) Releasing() (bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, end := range d.ends {
		bytes += end.bytes
	}
	return bytes
}

// followNone stops waiting for ended processes: without NVML nothing lists them.
func (d *Device) followNone() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.ends)
}

func (d *Device) following() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.ends, func(_ int, e end) bool { return !time.Now().Before(e.until) })
	return len(d.ends) > 0
}

// Memory returns the GPU's free memory and that of each process. ok is false if it is unknown.
func (d *Device) Memory(uuid string) (u guest.Usage, ok bool) {
	d.mu.Lock()
	session := d.session
	d.mu.Unlock()
	if session == nil {
		return u, false
	}
	list, err := session.Processes(uuid)
	var total nvml.Usage
	if err == nil {
		total, err = session.Usage(uuid)
	}
	if err != nil {
		d.log.Debug().Err(err).Msg("cannot read the memory of the GPU's processes")
		return u, false
	}
	u = guest.Usage{FreeBytes: total.FreeBytes, Processes: map[int]int64{}}
	for _, p := range list {
		u.Processes[p.PID] = p.UsedBytes
	}
	return u, true
}

// Health asks the MPS server for its health. Without MPS it returns mps.Well.
func (d *Device) Health(ctx context.Context) mps.Health {
	d.mu.Lock()
	daemon := d.daemon
	d.mu.Unlock()
	if daemon == nil {
		return mps.Well
	}
	h, err := daemon.Health(ctx)
	if err != nil {
		d.log.Warn().Err(err).Msg("cannot read the state of MPS")
	}
	return h
}

// endWorkTimeout bounds device.endWork. Its two questions take some 20 ms.
const endWorkTimeout = time.Second

// EndWork ends the work of clients of MPS that are about to be killed.
func (d *Device) EndWork(pids []int) {
	d.mu.Lock()
	daemon := d.daemon
	d.mu.Unlock()
	if daemon == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endWorkTimeout)
	defer cancel()
	if err := daemon.EndWork(ctx, pids); err != nil {
		d.log.Warn().Err(err).Msg("cannot end the GPU work of a guest before it is killed")
	}
}

// PromisedSMs returns the min and max number of multiprocessors that a process should
// report. They follow from its groups or, if it has none, from its MPS percentage. MPS
// assigns multiprocessors in pairs and usually rounds down. On Hopper it assigns at
// least 8. Measured on a GPU with 132: 8 for 1 %, 12 for 10 %, 16 for 12.5 %, 38 for
// 30 %, 44 for 33.4 %, 78 for 60 %.
func PromisedSMs(g Found, groups []int, percent float64) (least, most int) {
	if len(groups) > 0 {
		for _, i := range groups {
			if i >= 0 && i < len(g.GroupSMs) {
				least += g.GroupSMs[i]
			}
		}
		return least, least
	}
	const pair, smallest = 2, 8
	exact := percent / 100 * float64(g.SMs)
	return max(1, int(exact)-pair), min(g.SMs, max(smallest, int(exact)+pair))
}

// Percentage returns the value of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE for a share. It is
// at least 1, because MPS would treat 0 as no limit.
func Percentage(sharePercent float64) string {
	return fmt.Sprintf("%g", min(100, max(1, sharePercent)))
}

// Union returns the groups in a or b, in ascending order. A process that was ordered to
// move may run on the groups that it last reported, and on those that it was ordered to.
func Union(a, b []int) []int {
	u := slices.Concat(a, b)
	slices.Sort(u)
	return slices.Compact(u)
}

// Observed converts the device's state for the manager.
func (s *State) Observed() *control.GPU {
	return &control.GPU{
		UUID: s.UUID, Name: s.Name, Driver: s.Driver, SMs: s.SMs, GroupSMs: s.GroupSMs,
		MemoryBytes: s.MemoryBytes, UsedBytes: max(0, s.UsedBytes), Priorities: s.Priorities, Why: s.Why,
	}
}
