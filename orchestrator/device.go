package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/orchestrator/guest"
	"github.com/penstock/penstock/orchestrator/mps"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// Values of control.Observed.Mechanism for a GPU. Time slicing does not enforce shares.
const (
	mechanismMPS         = "mps"
	mechanismTimeSlicing = "time-slicing"
)

// machine finds GPUs. Its methods may take seconds, and any goroutine may call them.
type machine interface {
	// find makes no context on the device.
	find(name string) (foundGPU, error)
	session() (nvml.Session, error)
	startMPS(context.Context, mps.Options) (mpsDaemon, error)
	// priorities returns whether stream priorities hold between processes on a GPU with MPS.
	// cached reports that an earlier start measured it. environment is mpsDaemon's.
	priorities(ctx context.Context, g foundGPU, environment map[string]string) (p control.StreamPriorities, cached bool, err error)
}

// mpsDaemon is the part of mps.Daemon that device uses.
type mpsDaemon interface {
	Environment() map[string]string
	State() mps.State
	Changes() <-chan struct{}
	Health(context.Context) (mps.Health, error)
	EndWork(ctx context.Context, pids []int) error
	Close() error
}

// foundGPU describes a GPU as CUDA reports it.
type foundGPU struct {
	uuid, name  string
	driver      string // its version
	sms         int
	memoryBytes int64
	// groupSMs has the number of multiprocessors of each group, by index (cuda.Split). It
	// is empty with time slicing, and if the driver cannot make groups. noGroups then has
	// the driver's reason.
	groupSMs []int
	noGroups string
}

// realMachine is the machine that this process runs on.
type realMachine struct{ prober }

func (m realMachine) find(name string) (foundGPU, error) {
	if err := StayOut(m.dir); err != nil {
		return foundGPU{}, err
	}
	d, err := cuda.Find(name)
	if err != nil {
		return foundGPU{}, err
	}
	p, err := d.Properties()
	if err != nil {
		return foundGPU{}, fmt.Errorf("read properties of %v: %w", d, err)
	}
	f := foundGPU{uuid: d.UUID(), name: d.Name(), sms: p.SMs, memoryBytes: p.MemoryBytes}
	split, err := d.Split()
	if err != nil {
		f.noGroups = line(err.Error())
	} else {
		f.groupSMs = split.GroupSMs()
	}
	return f, nil
}

func (realMachine) session() (nvml.Session, error) { return nvml.Open() }

func (m realMachine) startMPS(ctx context.Context, o mps.Options) (mpsDaemon, error) {
	if m.sandbox != nil && m.sandbox.User != nil {
		o.UID, o.Confine = m.sandbox.User.UID, sandbox.AsUser(m.sandbox.User, m.self, m.dir)
	}
	d, err := mps.Start(ctx, o)
	if err != nil {
		return nil, err // avoids a nil *Daemon in the interface
	}
	return d, nil
}

// StayOut keeps this process from becoming a client of an MPS server when it
// initialises CUDA. After a fault, a server recovers only when its last client has
// ended, so this process would block the recovery. StayOut sets
// CUDA_MPS_PIPE_DIRECTORY for the whole process, to a folder in which no daemon
// listens. Call it before the first use of CUDA. dir is the runtime folder.
func StayOut(dir string) error {
	return os.Setenv("CUDA_MPS_PIPE_DIRECTORY", filepath.Join(dir, "no-mps"))
}

// gpuState is the observed state of a device. The supervisor keeps the latest one.
type gpuState struct {
	// opened: the search for the device has ended. It found a GPU, or cpu is true, or err
	// is set. A restarted orchestrator also sets it, with the state of the last one
	// (restoreGPU).
	opened bool
	// cpu: the manager requested control.DeviceAuto, and there is no GPU or no driver.
	cpu bool
	err error // why the device cannot be used; set after a failed search

	foundGPU
	why       string // why MPS or groups are not available
	mechanism string
	// environment makes a process use this device and no other.
	environment map[string]string
	// priorities is the result of the priority probe; nil if there was none, or if it failed.
	priorities *control.StreamPriorities
	// serving: processes may be woken on the device. With MPS, this needs a server that
	// accepts clients. idle says why no process may be woken; ignore it while serving is
	// true.
	serving bool
	idle    string
	// losses counts the MPS servers that died; see mps.State.
	losses uint64
	// usedBytes and freeBytes are the device's memory, at most a second old. They are
	// -1 if unknown.
	usedBytes, freeBytes int64
}

// device opens a GPU and watches it, on its own goroutine:
//
//	1 find it; the driver initialises
//	2 open NVML, start MPS, measure stream priorities (priorities.go)
//	3 read its memory every second; take changes of MPS at once;
//	  after a process's end poll every 10 ms, until NVML no longer lists the process,
//	  or releaseTimeout has passed
//
// After steps 2 and 3 it puts its state into states, in place of one that was not read.
type device struct {
	deviceOptions
	machine machine
	dir     string
	log     zerolog.Logger

	states chan gpuState // holds the latest state only
	kick   chan struct{}
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	daemon  mpsDaemon    // nil without MPS
	session nvml.Session // nil without NVML
	// ends has the ended processes that NVML may still list, by process id, and the time at
	// which device stops waiting for each; see follow.
	ends map[int]time.Time
}

// deviceOptions say how to open a device.
type deviceOptions struct {
	name  string
	noMPS bool // start no MPS
	probe bool // with MPS, report stream priorities
	// resumed: processes of an earlier orchestrator use the device, so nothing is measured.
	// priorities is what that orchestrator knew.
	resumed    bool
	priorities *control.StreamPriorities
}

// How often the device is polled: normally, and after a process's end. A memory query
// takes 5 µs, the list of processes 30 µs (H200, driver 580).
const (
	deviceEvery = time.Second
	followEvery = 10 * time.Millisecond
)

// releaseTimeout is the max time to wait until the memory of an ended process is free.
// Usually the driver has freed it before wait(2) returns (measured: a killed process
// with 2 GiB). A driver that is busy with a fault needs longer.
const releaseTimeout = 2 * time.Second

// openDevice returns a device, which its own goroutine opens. If before is not nil, the
// goroutine first closes before.
func openDevice(before *device, o deviceOptions, m machine, dir string, log zerolog.Logger) *device {
	ctx, cancel := context.WithCancel(context.Background())
	d := &device{
		deviceOptions: o, machine: m, dir: dir, log: log,
		states: make(chan gpuState, 1), kick: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{}),
		ends: map[int]time.Time{},
	}
	go func() {
		defer close(d.done)
		if before != nil {
			before.close()
		}
		d.run(ctx)
	}()
	return d
}

// close ends MPS and the goroutine. The processes must have ended.
func (d *device) close() {
	d.cancel()
	<-d.done
}

func (d *device) run(ctx context.Context) {
	s, session := d.open(ctx)
	defer d.closeDaemon()
	if ctx.Err() != nil {
		return
	}
	d.publish(s)
	if !s.cpu && s.err == nil {
		d.watch(ctx, s, session)
	}
}

// closeDaemon ends MPS.
func (d *device) closeDaemon() {
	if d.daemon == nil {
		return
	}
	if err := d.daemon.Close(); err != nil {
		d.log.Warn().Err(err).Msg("cannot stop MPS")
	}
}

// watch sends new states of an open device until ctx ends. session is nil without NVML.
func (d *device) watch(ctx context.Context, s gpuState, session nvml.Session) {
	var changes <-chan struct{}
	if d.daemon != nil {
		changes = d.daemon.Changes()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	complained := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-d.kick:
		case <-timer.C:
		}
		if session != nil {
			err := d.readMemory(session, &s)
			if err != nil && !complained {
				d.log.Warn().Err(err).Msg("cannot read the GPU's memory")
			}
			complained = err != nil
		} else {
			d.followNone()
		}
		if d.daemon != nil {
			m := d.daemon.State()
			s.serving, s.losses, s.idle = m.Serving, m.Losses, "waiting for MPS: "+m.Why
		}
		d.publish(s)
		if d.following() {
			timer.Reset(followEvery)
		} else {
			timer.Reset(deviceEvery)
		}
	}
}

// open finds the GPU, opens NVML and starts MPS.
func (d *device) open(ctx context.Context) (gpuState, nvml.Session) {
	s := gpuState{opened: true, usedBytes: -1, freeBytes: -1}
	name := d.name
	if name == control.DeviceAuto {
		name = "cuda"
	}
	began := time.Now()
	if s.foundGPU, s.err = d.machine.find(name); s.err != nil {
		if d.name == control.DeviceAuto && missing(s.err) {
			s.cpu, s.err = true, nil
			d.log.Info().Msg("no GPU found; models run on the CPU")
			return s, nil
		}
		s.err = fmt.Errorf("open device %s: %w", d.name, s.err)
		return s, nil
	}
	session, err := d.machine.session()
	if err != nil {
		d.log.Warn().Err(err).Msg("cannot open NVML; the GPU's memory is unknown")
		session = nil
	}
	d.mu.Lock()
	d.session = session
	d.mu.Unlock()
	if s.driver, err = driverVersion(session); err != nil {
		d.log.Warn().Err(err).Msg("cannot read the version of the driver")
	}
	s.serving, s.mechanism = true, mechanismMPS
	if d.noMPS {
		s.byTime(d.dir)
		d.opened(&s, began)
		return s, session
	}
	daemon, err := d.machine.startMPS(ctx, mps.Options{Dir: d.dir, UUID: s.uuid, Session: session, Log: d.log})
	if err != nil {
		if ctx.Err() != nil {
			return s, nil
		}
		s.withoutMPS(err, d.dir)
		d.log.Warn().Str("why", s.why).
			Msg("cannot start MPS; functions take turns on the GPU without enforced shares; restart the node to try again")
	} else {
		d.mu.Lock()
		d.daemon = daemon
		d.mu.Unlock()
		s.environment = daemon.Environment()
		if s.noGroups != "" {
			s.why = "no partitions: " + s.noGroups
		}
		s.priorities = d.probePriorities(ctx, &s)
	}
	d.opened(&s, began)
	return s, session
}

// probePriorities returns whether stream priorities hold, nil if that is not known.
func (d *device) probePriorities(ctx context.Context, s *gpuState) *control.StreamPriorities {
	if !d.probe || d.resumed {
		return d.priorities
	}
	began := time.Now()
	p, cached, err := d.machine.priorities(ctx, s.foundGPU, s.environment)
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
		Str("driver", s.driver).Dur("after_ms", time.Since(began)).Msg(message)
	return &p
}

func (d *device) opened(s *gpuState, began time.Time) {
	d.log.Info().Str("gpu", s.name).Str("uuid", s.uuid).Int("sms", s.sms).Ints("groups", s.groupSMs).
		Str("mechanism", s.mechanism).Dur("after_ms", time.Since(began)).Msg("GPU opened")
}

// withoutMPS switches to time slicing, as MPS cannot run, and notes why.
func (s *gpuState) withoutMPS(err error, dir string) {
	s.byTime(dir)
	s.why = line("no MPS: " + err.Error())
	var p *mps.Problem
	if errors.As(err, &p) && p.Mend != "" {
		s.why = line(s.why + "; to repair: " + p.Mend)
	}
}

// byTime switches to time slicing. It drops the groups: processes that take turns would
// gain no isolation from groups of multiprocessors.
func (s *gpuState) byTime(dir string) {
	s.mechanism, s.groupSMs = mechanismTimeSlicing, nil
	// Also keep the processes from becoming clients of another user's daemon.
	s.environment = map[string]string{
		"CUDA_VISIBLE_DEVICES":    s.uuid,
		"CUDA_MPS_PIPE_DIRECTORY": filepath.Join(dir, "no-mps"),
	}
}

// missing reports whether err means that there is no GPU, or no driver for one.
func missing(err error) bool {
	return errors.Is(err, cuda.ErrNoDriver) || errors.Is(err, cuda.ErrNoDevice) || errors.Is(err, cuda.ErrNoCgo)
}

// readMemory reads the device's memory, and stops following ended processes that NVML no
// longer lists.
func (d *device) readMemory(session nvml.Session, s *gpuState) error {
	s.usedBytes, s.freeBytes = -1, -1
	if d.following() {
		list, err := session.Processes(s.uuid)
		d.mu.Lock()
		for pid, until := range d.ends {
			listed := slices.ContainsFunc(list, func(p nvml.Process) bool { return p.PID == pid })
			if err != nil || !listed || !time.Now().Before(until) {
				delete(d.ends, pid)
			}
		}
		d.mu.Unlock()
		if err != nil {
			return err
		}
	}
	// Read the usage after the list. If the list lacks a process, its memory was free
	// before, and the usage does not contain it.
	u, err := session.Usage(s.uuid)
	if err == nil {
		s.usedBytes, s.freeBytes = u.UsedBytes, u.FreeBytes
	}
	return err
}

func (d *device) publish(s gpuState) {
	for {
		select {
		case d.states <- s:
			return
		default:
		}
		select {
		case <-d.states:
		default:
		}
	}
}

// follow makes device poll every followEvery until NVML no longer lists the ended process,
// for at most releaseTimeout.
func (d *device) follow(pid int) {
	d.mu.Lock()
	d.ends[pid] = time.Now().Add(releaseTimeout)
	d.mu.Unlock()
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// follows reports whether device still waits for the memory of an ended process.
func (d *device) follows(pid int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.ends[pid]
	return ok
}

// followNone stops waiting for ended processes: without NVML nothing lists them.
func (d *device) followNone() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.ends)
}

func (d *device) following() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ends) > 0
}

// memory returns the GPU's free memory and that of each process. ok is false if it is unknown.
func (d *device) memory(uuid string) (u guest.Usage, ok bool) {
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

// health asks the MPS server for its health. Without MPS it returns mps.Well.
func (d *device) health(ctx context.Context) mps.Health {
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

// endWork ends the work of clients of MPS that are about to be killed.
func (d *device) endWork(pids []int) {
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

// inherited returns what a process for a device inherits of the orchestrator's
// environment. On a GPU it leaves out CUDA_MPS_* and CUDA_VISIBLE_DEVICES: the caller
// adds those of the device.
func inherited(device string) []string {
	env := os.Environ()
	if device == control.DeviceCPU {
		return env
	}
	return slices.DeleteFunc(env, func(e string) bool {
		return strings.HasPrefix(e, "CUDA_MPS_") || strings.HasPrefix(e, "CUDA_VISIBLE_DEVICES=")
	})
}

// promisedSMs returns the min and max number of multiprocessors that a process should
// report. They follow from its groups or, if it has none, from its MPS percentage. MPS
// assigns multiprocessors in pairs and usually rounds down. On Hopper it assigns at
// least 8. Measured on a GPU with 132: 8 for 1 %, 12 for 10 %, 16 for 12.5 %, 38 for
// 30 %, 44 for 33.4 %, 78 for 60 %.
func promisedSMs(g foundGPU, groups []int, percent float64) (least, most int) {
	if len(groups) > 0 {
		for _, i := range groups {
			if i >= 0 && i < len(g.groupSMs) {
				least += g.groupSMs[i]
			}
		}
		return least, least
	}
	const pair, smallest = 2, 8
	exact := percent / 100 * float64(g.sms)
	return max(1, int(exact)-pair), min(g.sms, max(smallest, int(exact)+pair))
}

// percentage returns the value of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE for a share. It is
// at least 1, because MPS would treat 0 as no limit.
func percentage(sharePercent float64) string {
	return fmt.Sprintf("%g", min(100, max(1, sharePercent)))
}

// union returns the groups in a or b, in ascending order. A process that was ordered to
// move may run on the groups that it last reported, and on those that it was ordered to.
func union(a, b []int) []int {
	u := slices.Concat(a, b)
	slices.Sort(u)
	return slices.Compact(u)
}

// observed converts the device's state for the manager.
func (s *gpuState) observed() *control.ObservedDevice {
	return &control.ObservedDevice{
		UUID: s.uuid, Name: s.name, Driver: s.driver, SMs: s.sms, GroupSMs: s.groupSMs,
		MemoryBytes: s.memoryBytes, UsedBytes: max(0, s.usedBytes), Priorities: s.priorities, Why: s.why,
	}
}
