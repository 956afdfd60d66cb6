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

// The supervisor does some things differently on a GPU. Until the device is open, it starts nothing
// there.
//
//	spawn    the environment has the GPU's UUID, its groups and the folders of MPS
//	wake     the order has the percentage, or the groups, or neither if the process has
//	         no share; not while MPS is down
//	reshare  other groups, one order at a time: the next waits until the process has
//	         reported that it runs where it was ordered to. A percentage never changes.
//	lost     the device failed under all processes: report it at once, do not count it
//	         toward backoff, and kill a process that does not end by itself
//	vanish   the device can run nothing any more: the same for all processes, and start none
//	         before it works again
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

// recovery follows an MPS server that has failed, until there is another one.
type recovery struct {
	began      time.Time // when the device was last found lost
	asking     bool      // the server has yet to answer how it is
	serverless bool      // there is no server
	dying      time.Time // until then, wait for the server's end
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
// key it concerns all processes of the device.
type verdict struct {
	device *device
	key    key
	guest  bool // a guest has ended, and the server was asked because of that
	health mps.Health
}

// add adds the device to the spec of a process that is to be started.
func (d *device) add(sp *spec) {
	if !d.onGPU() {
		return
	}
	sp.start.Device, sp.start.GroupSMs = d.UUID, d.GroupSMs
	environment := maps.Clone(sp.environment)
	if environment == nil {
		environment = map[string]string{}
	}
	maps.Copy(environment, d.Environment)
	sp.environment = environment
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
	c.mismatch = c.mismatched()
	if c.mismatch != "" && c.mismatch != c.complained {
		c.complained = c.mismatch
		s.addProcess(s.log.Warn(), k).Str("why", c.mismatch).Msg("process runs on other multiprocessors than assigned")
	}
}

// mismatched describes how a process's multiprocessors differ from what it was promised.
func (c *child) mismatched() string {
	if len(c.at) == 0 && !c.device.sharesAtOnce() {
		return "" // with time slicing it has all of them
	}
	percent := c.wokenPercent
	if percent == 0 {
		percent = 100 // no share: MPS's default
	}
	least, most := gpu.PromisedSMs(c.device.Found, c.at, percent)
	switch n := c.notice.SMs; {
	case least <= n && n <= most:
		return ""
	case len(c.at) > 0:
		return fmt.Sprintf("the process has %d multiprocessors, and groups %v have %d", n, c.at, least)
	default:
		return fmt.Sprintf("the process has %d multiprocessors, and %g %% of %d are %d to %d", n, percent, c.device.SMs, least, most)
	}
}

// lose handles a process's report that its device failed.
func (d *device) lose(k key, c *child) {
	switch {
	case !c.failed.IsZero(), !d.sharesAtOnce():
		// All processes lost the device; with time slicing, this process lost its own
		// context.
		c.lost = true
	case c.blameless:
		// The daemon reports the server as well until it sees the server's end, some 50
		// ms later.
		d.recovery.dying = d.s.now().Add(serverEndTimeout)
		d.loseAll(k, c.lastWords)
	case c.notice.SMs > 0:
		d.loseAll(k, c.lastWords)
	default:
		// The process may never have had the device. Then the failure is its own, and
		// the others are well. The server knows.
		d.ask(k)
	}
}

// ask asks the MPS server for its health, on behalf of a process. With the zero key it
// asks for all processes that are to be woken.
func (d *device) ask(k key) { d.askFor(verdict{key: k}) }

func (d *device) askFor(v verdict) {
	s, handle := d.s, d.handle
	v.device = d
	s.closing.Go(func() {
		ctx, cancel := s.clock.WithTimeout(context.Background(), verdictTimeout)
		defer cancel()
		v.health = handle.Health(ctx)
		select {
		case s.verdicts <- v:
		case <-s.done:
		}
	})
}

func (d *device) noteVerdict(v verdict) {
	switch {
	case v.guest:
		d.noteGuestVerdict(v.health)
	case v.key == (key{}):
		// Gone: the device's state shows the server's end a little later, and then a new
		// server. A process that is woken before that would be refused.
		d.recovery.asking, d.recovery.serverless = false, v.health == mps.Gone
	case v.health != mps.Well && d.onGPU():
		d.loseAll(v.key, "the MPS server has failed")
	}
}

// loseAll marks the device as failed under every process that has touched it, and first
// as the process that reported it. Processes that are woken from now on are not
// affected. A device that is lost fails under all of its processes.
func (d *device) loseAll(first key, why string) {
	s := d.s
	d.recovery.began = s.now()
	// A guest's program is more likely to be wrong than a model that has served.
	byGuest := d.endClients(first != (key{}))
	n := 0
	for _, c := range s.processes {
		if c.device == d && c.process != nil && (c.woken || d.Lost != "") && !c.state.Ended() && c.failed.IsZero() {
			c.failed = s.now()
			c.blameless = c.blameless || byGuest
			n++
		}
	}
	if c := s.processes[first]; c != nil {
		c.lost = true
	}
	if first != (key{}) && d.sharesAtOnce() && !d.recovery.asking && !s.now().Before(d.recovery.dying) {
		d.recovery.asking = true
		d.ask(key{})
	}
	e := d.log.Error().Int("processes", n).Str("why", why)
	if first != (key{}) {
		e = s.addProcess(e, first)
	}
	e.Msg("the GPU failed; ending all its processes")
}

// vanish ends all that runs on a device that is lost. A process that hangs in the driver may end much later, and nothing waits for it.
func (d *device) vanish() {
	d.recovery, d.refused = recovery{}, nil
	d.loseAll(key{}, d.Lost)
	d.acquit()
	if guests := d.s.guests.server; guests != nil {
		guests.Lose(d.Device, d.Idle)
	}
	d.s.closing.Go(d.weights.running.close)
	d.weights.running = nil
}

// maxRefused is how many processes of each function a device may refuse before it is lost.
const maxRefused = 2

// refuse counts a process that lost the device before it had any use of it. If that happens to all functions there and
// none gets ready, the device is lost, though NVML and MPS say that it works.
func (d *device) refuse(function, why string) {
	if d.refused == nil {
		d.refused = map[string]int{}
	}
	d.refused[function]++
	for k, c := range d.s.processes {
		if c.device == d && d.refused[k.name] < maxRefused {
			return
		}
	}
	d.handle.GiveUp("no process can use it: " + why)
}

// acquit reports the processes that loseAll has marked at once: neither a process nor its notice is the cause.
func (d *device) acquit() {
	for _, c := range d.s.processes {
		if c.device == d && !c.lost && !c.failed.IsZero() {
			c.lost, c.blameless = true, true
		}
	}
}

// gpuBytes is the GPU memory of a process.
func (c *child) gpuBytes() int64 {
	return c.notice.PersistentBytes + c.notice.EphemeralBytes + contextBytes
}

// release notes that a process on the GPU has ended.
func (d *device) release(c *child) {
	if !c.failed.IsZero() {
		c.lost = true
	}
	if c.process == nil || !c.woken {
		return
	}
	d.handle.Follow(c.process.pid(), c.gpuBytes())
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
		q.Reason = c.device.wakesHeld()
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
