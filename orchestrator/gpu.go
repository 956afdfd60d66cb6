package orchestrator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/gpu"
	"github.com/penstock/penstock/orchestrator/mps"
)

// The supervisor on a GPU does some things differently. It opens the device when it adopts
// a manager that wants one. Until the device is open, it starts nothing.
//
//	spawn    the environment has the GPU's UUID, its groups and the folders of MPS
//	wake     the order has the percentage, or the groups, or neither if the process has
//	         no share; not while MPS is down
//	reshare  other groups, one order at a time: the next waits until the process has
//	         reported that it runs where it was ordered to. A percentage never changes.
//	lost     the device failed under all processes: report it at once, do not count it
//	         toward backoff, and kill a process that does not end by itself
//
// The supervisor reports two kinds of groups to the manager: those that a process was
// ordered to, and those that it has not yet reported to have left. The manager gives
// none of them to another process.

// deviceFailed is why a process is killed after another process's fault.
const deviceFailed = "the GPU failed for all its processes"

// lostTimeout is how long a process may live on a device that has failed. A busy process
// sees the failure in its running batch, answers and ends. An idle process sees nothing,
// and keeps the MPS server from recovering.
const lostTimeout = 50 * time.Millisecond

// serverEndTimeout is the max wait for the end of a server that has failed.
const serverEndTimeout = time.Second

// verdictTimeout is the max wait for the MPS server's answer on its health. If it
// answers at all, it takes 2 ms.
const verdictTimeout = 200 * time.Millisecond

// contextBytes is what a process's context takes in addition to its allocations (516 MiB
// on an H200, driver 580).
const contextBytes = 512 << 20

// deviceUse is what the supervisor knows of the device and its use.
type deviceUse struct {
	gpu.State             // the latest one
	device    *gpu.Device // nil: the CPU
	recovery  recovery
}

// recovery follows an MPS server that has failed, until there is another one.
type recovery struct {
	began      time.Time // when the device was last found lost
	asking     bool      // the server has yet to answer how it is
	serverless bool      // there is no server
	dying      time.Time // until then, wait for the server's end
	verdicts   chan verdict
}

// holds says why the failed server keeps processes from being woken; empty if it does not.
func (r *recovery) holds(now time.Time) string {
	switch {
	case r.asking:
		return "waiting for the state of the MPS server"
	case r.serverless, now.Before(r.dying):
		return "waiting for MPS: its server ended"
	}
	return ""
}

// verdict is what the MPS server reported after a process lost its device. With the zero
// key it concerns all processes.
type verdict struct {
	key    key
	guest  bool // a guest has ended, and the server was asked because of that
	health mps.Health
}

// openDevice opens the device that a manager wants, unless it is open. If a device lacks
// MPS, or a measurement of priorities, although the manager wants it, openDevice opens it
// again. No process runs on it when a manager is adopted, and what kept MPS from starting
// may be over.
func (s *supervisor) openDevice(o gpu.Options) {
	before := s.gpu.device
	fellBack := s.onGPU() && !s.sharesAtOnce() && !o.NoMPS
	if before != nil && before.Options.Device == o.Device && before.NoMPS == o.NoMPS && (before.Probe || !o.Probe) && !fellBack {
		return
	}
	s.gpu.device, s.gpu.State = nil, gpu.State{}
	s.weights.running.close()
	s.weights.running = nil
	if o.Device == "" || o.Device == control.DeviceCPU {
		if before != nil {
			s.closing.Go(before.Close)
		}
		return
	}
	s.gpu.device = gpu.Open(before, o, s.o.machine, s.o.Dir, s.log)
}

func (s *supervisor) closeDevice() {
	s.weights.running.close()
	if s.gpu.device != nil {
		s.gpu.device.Close()
	}
	s.closing.Wait()
}

// onGPU reports whether processes run on a GPU.
func (s *supervisor) onGPU() bool {
	return s.gpu.device != nil && s.gpu.Opened && !s.gpu.CPU && s.gpu.Err == nil
}

// sharesAtOnce reports whether a fault ends all processes: they are clients of one MPS
// server.
func (s *supervisor) sharesAtOnce() bool { return s.gpu.Mechanism == gpu.MPS }

// deviceStates returns the channel of the device's states, nil on a CPU.
func (s *supervisor) deviceStates() <-chan gpu.State {
	if s.gpu.device == nil {
		return nil
	}
	return s.gpu.device.States()
}

// noteGPU takes the device's new state.
func (s *supervisor) noteGPU(g gpu.State) {
	died := s.gpu.Opened && g.Losses > s.gpu.Losses
	s.gpu.State = g
	if g.Err != nil {
		s.target.ending = true // no process can run without the device
		return
	}
	if s.gpu.recovery.serverless {
		if s.gpu.recovery.serverless = !died; s.gpu.recovery.serverless && !s.gpu.recovery.asking {
			s.ask(key{})
		}
	}
	if died {
		s.gpu.recovery.dying = time.Time{}
		s.loseAll(key{}, "the MPS server ended")
		for _, c := range s.processes {
			// The server's death is not the fault of any of them, and they need not
			// report it first.
			if !c.lost && !c.failed.IsZero() {
				c.lost, c.blameless = true, true
			}
		}
	}
}

// onDevice adds the GPU to the spec of a process that is to be started.
func (s *supervisor) onDevice(sp *spec) {
	if !s.onGPU() {
		return
	}
	sp.start.Device, sp.start.GroupSMs = s.gpu.UUID, s.gpu.GroupSMs
	environment := maps.Clone(sp.environment)
	if environment == nil {
		environment = map[string]string{}
	}
	maps.Copy(environment, s.gpu.Environment)
	sp.environment = environment
}

// wakesHeld says why no process may be woken now; empty if nothing prevents it.
//
// A process that has just ended delays a wake only if the memory that it held is needed.
// A recovery does not wait while as much memory is free as all ended processes held.
func (s *supervisor) wakesHeld() string {
	if !s.onGPU() {
		return ""
	}
	if why := s.gpu.recovery.holds(s.now()); why != "" {
		return why
	}
	if !s.gpu.Serving {
		return s.gpu.Idle
	}
	if bytes := s.gpu.device.Releasing(); bytes > 0 && s.gpu.FreeBytes >= 0 && bytes > s.gpu.FreeBytes {
		return fmt.Sprintf("waiting until %d MiB of ended processes are free", bytes>>20)
	}
	return ""
}

// wakesHeldUntil is when to look again. Zero: a change of the device will trigger it.
func (s *supervisor) wakesHeldUntil() time.Time {
	if s.onGPU() && s.now().Before(s.gpu.recovery.dying) {
		return s.gpu.recovery.dying
	}
	return time.Time{}
}

// noteBatches takes the batch sizes that a process reports to run. The deadline of its
// move starts when it has all of them.
func (s *supervisor) noteBatches(c *child, n control.Notice) {
	if len(n.Batches) == 0 {
		return
	}
	c.notice.Batches = n.Batches
	switch {
	case n.WarmingUp && c.warmingSince.IsZero():
		c.warmingSince = s.now()
	case !n.WarmingUp && !c.warmingSince.IsZero():
		c.warmingSince, c.ordered = time.Time{}, s.now()
	}
}

// notePlace takes the groups that a process reports to run on.
func (s *supervisor) notePlace(k key, c *child, n control.Notice) {
	if n.SMs == 0 {
		return
	}
	c.notice.SMs, c.at, c.infeasibleGroups = n.SMs, n.SMGroups, n.InfeasibleGroups
	switch {
	case slices.Equal(c.at, c.groups):
		c.moving = false
	case c.moving && n.Reason != "":
		// The process reports why it could not move. The order is not repeated.
		c.moving = false
		s.addProcess(s.log.Error(), k).Ints("groups", c.groups).Ints("stays_on", c.at).Str("reason", c.notice.Reason).Msg("process cannot move to its multiprocessor groups")
	}
	c.mismatch = s.mismatched(c)
	if c.mismatch != "" && c.mismatch != c.complained {
		c.complained = c.mismatch
		s.addProcess(s.log.Warn(), k).Str("why", c.mismatch).Msg("process runs on other multiprocessors than assigned")
	}
}

// mismatched describes how a process's multiprocessors differ from what it was promised.
func (s *supervisor) mismatched(c *child) string {
	if len(c.at) == 0 && !s.sharesAtOnce() {
		return "" // with time slicing it has all of them
	}
	percent := c.wokenPercent
	if percent == 0 {
		percent = 100 // no share: MPS's default
	}
	least, most := gpu.PromisedSMs(s.gpu.Found, c.at, percent)
	switch n := c.notice.SMs; {
	case least <= n && n <= most:
		return ""
	case len(c.at) > 0:
		return fmt.Sprintf("the process has %d multiprocessors, and groups %v have %d", n, c.at, least)
	default:
		return fmt.Sprintf("the process has %d multiprocessors, and %g %% of %d are %d to %d", n, percent, s.gpu.SMs, least, most)
	}
}

// lose handles a process's report that its device failed.
func (s *supervisor) lose(k key, c *child) {
	switch {
	case !c.failed.IsZero(), !s.sharesAtOnce():
		// All processes lost the device; with time slicing, this process lost its own
		// context.
		c.lost = true
	case c.blameless:
		// The daemon reports the server as well until it sees the server's end, some 50
		// ms later.
		s.gpu.recovery.dying = s.now().Add(serverEndTimeout)
		s.loseAll(k, c.lastWords)
	case c.notice.SMs > 0:
		s.loseAll(k, c.lastWords)
	default:
		// The process may never have had the device. Then the failure is its own, and
		// the others are well. The server knows.
		s.ask(k)
	}
}

// ask asks the MPS server for its health, on behalf of a process. With the zero key it
// asks for all processes that are to be woken.
func (s *supervisor) ask(k key) { s.askFor(verdict{key: k}) }

func (s *supervisor) askFor(v verdict) {
	d := s.gpu.device
	s.closing.Go(func() {
		ctx, cancel := s.clock.WithTimeout(context.Background(), verdictTimeout)
		defer cancel()
		v.health = d.Health(ctx)
		select {
		case s.gpu.recovery.verdicts <- v:
		case <-s.done:
		}
	})
}

func (s *supervisor) noteVerdict(v verdict) {
	switch {
	case v.guest:
		s.noteGuestVerdict(v.health)
	case v.key == (key{}):
		// Gone: the device's state shows the server's end a little later, and then a new
		// server. A process that is woken before that would be refused.
		s.gpu.recovery.asking, s.gpu.recovery.serverless = false, v.health == mps.Gone
	case v.health != mps.Well && s.onGPU():
		s.loseAll(v.key, "the MPS server has failed")
	}
}

// loseAll marks the device as failed under every process that has touched it, and first
// as the process that reported it. Processes that are woken from now on are not
// affected.
func (s *supervisor) loseAll(first key, why string) {
	s.gpu.recovery.began = s.now()
	// A guest's program is more likely to be wrong than a model that has served.
	byGuest := s.endClients(first != (key{}))
	n := 0
	for _, c := range s.processes {
		if c.process != nil && c.woken && !c.state.Ended() && c.failed.IsZero() {
			c.failed = s.now()
			c.blameless = c.blameless || byGuest
			n++
		}
	}
	if c := s.processes[first]; c != nil {
		c.lost = true
	}
	if first != (key{}) && s.sharesAtOnce() && !s.gpu.recovery.asking && !s.now().Before(s.gpu.recovery.dying) {
		s.gpu.recovery.asking = true
		s.ask(key{})
	}
	e := s.log.Error().Int("processes", n).Str("why", why)
	if first != (key{}) {
		e = s.addProcess(e, first)
	}
	e.Msg("the GPU failed; ending all its processes")
}

// gpuBytes is the GPU memory of a process.
func (c *child) gpuBytes() int64 {
	return c.notice.PersistentBytes + c.notice.EphemeralBytes + contextBytes
}

// release notes that a process on the GPU has ended.
func (s *supervisor) release(c *child) {
	if !c.failed.IsZero() {
		c.lost = true
	}
	if c.process == nil || !c.woken {
		return
	}
	s.gpu.device.Follow(c.process.pid(), c.gpuBytes())
}

// observeGPU adds the device to the report for the manager.
func (s *supervisor) observeGPU(o *control.Observed) {
	switch {
	case !s.gpu.Opened, s.gpu.Err != nil:
		o.Mechanism = ""
	case s.gpu.CPU:
	default:
		o.Mechanism, o.Device = s.gpu.Mechanism, s.gpu.Observed()
		o.Device.Weights = s.weights.running.state()
	}
}

// observeChild adds a process's groups to the report for the manager.
func (s *supervisor) observeChild(k key, c *child, q *control.ObservedProcess) {
	q.SMs, q.DeviceLost, q.Blameless = c.notice.SMs, c.lost, c.lost && c.blameless
	q.InfeasibleGroups, q.WrongAnswers = c.infeasibleGroups, c.wrongAnswers
	switch {
	case c.state.Ended(): // it runs on nothing any more
		return
	case c.woken && (c.moving || c.at == nil):
		q.SMGroups = gpu.Union(c.at, c.groups)
	case c.woken:
		q.SMGroups = c.at
	case c.state == control.Loaded && q.Reason == "" && s.toServe(k):
		q.Reason = s.wakesHeld()
	}
	if q.Reason == "" {
		q.Reason = c.mismatch
	}
}

// toServe reports whether the manager wants a process to serve.
func (s *supervisor) toServe(k key) bool {
	return s.target.desired != nil && slices.ContainsFunc(s.target.desired.Processes, func(p control.DesiredProcess) bool {
		return keyOf(p) == k && p.Role == control.Serve
	})
}
