package orchestrator

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/gpu"
	"github.com/penstock/penstock/orchestrator/mps"
)

// device is a device that the manager wants, with all that the supervisor knows of it and of its use. The
// supervisor's goroutine owns it. Each process has one, from its start to its end.
type device struct {
	s   *supervisor
	log zerolog.Logger

	gpu.Options
	gpu.State             // the latest one
	handle    *gpu.Device // nil: the CPU
	reported  bool        // handle has: the state is not that of a note
	recovery  recovery
	weights   weightServer
	backoffs  map[place]*backoff // of places that have a desired process
	refused   map[string]int     // processes of each function that had no use of the device, since one was ready
}

// newDevice returns a device that has yet to be opened.
func (s *supervisor) newDevice(o gpu.Options) *device {
	return &device{s: s, log: s.log.With().Str("device", o.Device).Logger(), Options: o, backoffs: map[place]*backoff{}}
}

// open opens the device after first has returned.
func (d *device) open(first func()) {
	if d.Device != control.DeviceCPU {
		d.handle = gpu.Open(first, d.Options, d.s.o.machine, d.s.o.Dir, d.s.deviceChanges, d.log)
	}
}

// close ends what runs beside processes on the device. The processes must have ended.
func (d *device) close() {
	d.weights.running.close()
	if d.handle != nil {
		d.handle.Close()
	}
}

// openDevices opens the devices that the manager wants, and closes all others. A manager that is adopted has no
// processes yet. A device that lacks something that this manager wants is then opened again: MPS may start now.
func (s *supervisor) openDevices(wanted *control.Desired, adopting bool) {
	before, running := s.devices, len(s.devices) > 0
	s.devices = nil
	var added []*device
	for _, name := range wanted.Devices {
		o := gpu.Options{Device: name, NoMPS: wanted.NoMPS, Probe: wanted.ProbePriorities, Bound: s.bound[name], Added: running}
		i := slices.IndexFunc(before, func(d *device) bool { return d.Device == name && !(adopting && d.lacks(o)) })
		if i < 0 {
			added = append(added, s.newDevice(o))
			s.devices = append(s.devices, added[len(added)-1])
			continue
		}
		s.devices = append(s.devices, before[i])
		before = slices.Delete(before, i, i+1)
	}

	var dropped sync.WaitGroup // one of them may be opened again
	for _, d := range before {
		dropped.Go(d.close)
	}
	s.closing.Go(dropped.Wait)
	for _, d := range added {
		d.open(dropped.Wait)
	}
}

// lacks reports whether an open device is without something that is wanted: MPS, turns in place of MPS, or measured priorities.
func (d *device) lacks(o gpu.Options) bool {
	fellBack := d.onGPU() && d.Lost == "" && !d.sharesAtOnce() && !o.NoMPS
	return d.NoMPS != o.NoMPS || o.Probe && !d.Probe || fellBack
}

func (s *supervisor) closeDevices() {
	for _, d := range s.devices {
		s.closing.Go(d.close)
	}
	s.closing.Wait()
}

// deviceOf returns the device of that name, nil if the manager does not want it.
func (s *supervisor) deviceOf(name string) *device {
	for _, d := range s.devices {
		if d.Device == name {
			return d
		}
	}
	return nil
}

// deviceFailure is why a device cannot be used; nil if all can.
func (s *supervisor) deviceFailure() error {
	for _, d := range s.devices {
		if d.Err != nil {
			return d.Err
		}
	}
	return nil
}

// held says why no process may be started on the device now; empty if it may.
func (d *device) held() string {
	switch {
	case d.opening():
		return "waiting until the GPU is found"
	case d.Lost != "":
		return d.Idle
	}
	return ""
}

// opening reports whether it is not known yet what the device is.
func (d *device) opening() bool { return d.handle != nil && !d.Opened }

// onGPU reports whether the device is a GPU, and open.
func (d *device) onGPU() bool { return d.handle != nil && d.Opened && !d.CPU && d.Err == nil }

// sharesAtOnce reports whether a fault ends all processes of the device: they are clients of one MPS
// server.
func (d *device) sharesAtOnce() bool { return d.Mechanism == gpu.MPS }

// noteDevices takes the new states of devices.
func (s *supervisor) noteDevices() {
	for _, d := range s.devices {
		if d.handle == nil {
			continue
		}
		if now := d.handle.Changed(); now != nil {
			d.note(*now)
		}
	}
	if !s.swept && s.target.desired != nil && !slices.ContainsFunc(s.devices, func(d *device) bool { return d.handle != nil && !d.reported }) {
		s.swept = true
		s.closing.Go(s.sweep)
	}
}

// sweep ends the MPS daemons of GPUs that an earlier orchestrator used and this one does not.
func (s *supervisor) sweep() {
	if err := mps.Sweep(s.o.Dir); err != nil {
		s.log.Warn().Err(err).Msg("cannot end the MPS daemons of an earlier orchestrator")
	}
}

// note takes the device's new state.
func (d *device) note(now gpu.State) {
	died, worked := d.Opened && now.Losses > d.Losses, d.Lost == ""
	d.State, d.reported = now, true
	if d.Err != nil {
		d.s.target.ending = true // no process can run without the device
		return
	}
	if d.Lost != "" {
		if worked {
			d.vanish()
		}
		return
	}
	d.s.bind(d)
	if d.recovery.serverless {
		if d.recovery.serverless = !died; d.recovery.serverless && !d.recovery.asking {
			d.ask(key{})
		}
	}
	if died {
		d.recovery.dying = time.Time{}
		d.loseAll(key{}, "the MPS server ended")
		d.acquit()
	}
}

// wakesHeld says why no process of the device may be woken now; empty if nothing prevents it.
//
// A process that has just ended delays a wake only if the memory that it held is needed.
// A recovery does not wait while as much memory is free as all ended processes held.
func (d *device) wakesHeld() string {
	if !d.onGPU() {
		return ""
	}
	if why := d.recovery.holds(d.s.now()); why != "" {
		return why
	}
	if !d.Serving {
		return d.Idle
	}
	if bytes := d.handle.Releasing(); bytes > 0 && d.FreeBytes >= 0 && bytes > d.FreeBytes {
		return fmt.Sprintf("waiting until %d MiB of ended processes are free", bytes>>20)
	}
	return ""
}

// wakesHeldUntil is when to look again. Zero: a change of a device will trigger it.
func (s *supervisor) wakesHeldUntil() (next time.Time) {
	for _, d := range s.devices {
		if dying := d.recovery.dying; d.onGPU() && s.now().Before(dying) && (next.IsZero() || dying.Before(next)) {
			next = dying
		}
	}
	return next
}

// observe returns the device for the manager.
func (d *device) observe() control.ObservedDevice {
	o := control.ObservedDevice{Device: d.Device, Lost: d.Lost}
	switch {
	case d.opening(), d.Err != nil, d.Lost != "" && d.Mechanism == "":
	case d.onGPU():
		o.Mechanism, o.GPU = d.Mechanism, d.Observed()
		o.GPU.Weights = d.weights.running.state()
	default:
		o.Mechanism = d.s.o.shares.Mechanism()
	}
	return o
}
