package orchestrator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/orchestrator/mps"
)

// What the supervisor does differently on a GPU. The device is opened when a
// manager that wants it is adopted; until it is, nothing is started.
//
//	spawn    the GPU's UUID, its groups, the folders of MPS in the environment
//	wake     the percentage, or the groups, or neither where it has no share; not while
//	         MPS is down
//	reshare  other groups, one order at a time: the next waits until the process has
//	         said that it is where it was ordered to. A percentage is for life.
//	lost     the device failed under all: nobody's early failure, told at once, and
//	         who does not end by itself is killed
//
// Groups that a process was ordered to and groups that it has not said it left are
// both told to the manager, which gives none of them to another.

// deviceFailed is why a process is killed that a fault of others' took down.
const deviceFailed = "the GPU failed under it, as under all"

// lostTimeout is how long a process may live on a device that has failed. A busy
// one sees it in its running batch, answers and ends; an idle one sees nothing, and
// keeps the MPS server from recovering.
const lostTimeout = 50 * time.Millisecond

// dyingAtMost bounds how long the end of a server that has failed is waited for.
const dyingAtMost = time.Second

// verdictTimeout is how long the MPS server is asked whether it has failed: 2 ms,
// if it answers at all.
const verdictTimeout = 200 * time.Millisecond

// contextBytes is what a process's context takes beside what it allocates (516 MiB
// on an H200, driver 580).
const contextBytes = 512 << 20

// release is the memory of a process that has ended.
type release struct {
	bytes int64
	until time.Time // it is believed free then, whatever the driver says
}

// verdict is what the MPS server said after a process lost its device; with the zero
// key it is for all.
type verdict struct {
	key    key
	health mps.Health
}

// openDevice opens the device that a manager wants, unless it is open. One that has no
// MPS though it is wanted is opened anew: nobody runs on it when a manager is adopted,
// and what kept MPS from starting may be over.
func (s *supervisor) openDevice(name string, noMPS bool) {
	before := s.device
	fellBack := s.onGPU() && !s.together() && !noMPS
	if before != nil && before.name == name && before.noMPS == noMPS && !fellBack {
		return
	}
	s.device, s.gpu = nil, gpuState{}
	clear(s.releasing)
	s.weights.close()
	s.weights = nil
	if name == "" || name == control.DeviceCPU {
		if before != nil {
			s.closing.Go(before.close)
		}
		return
	}
	s.device = openDevice(before, name, noMPS, s.o.machine, s.o.Dir, s.log)
}

func (s *supervisor) closeDevice() {
	s.weights.close()
	if s.device != nil {
		s.device.close()
	}
	s.closing.Wait()
}

// onGPU reports whether processes run on a GPU.
func (s *supervisor) onGPU() bool {
	return s.device != nil && s.gpu.opened && !s.gpu.cpu && s.gpu.err == nil
}

// together reports whether the processes share a fate: they are clients of one MPS
// server.
func (s *supervisor) together() bool { return s.gpu.mechanism == mechanismMPS }

// deviceStates is nil on a CPU.
func (s *supervisor) deviceStates() <-chan gpuState {
	if s.device == nil {
		return nil
	}
	return s.device.states
}

// noteGPU takes what the device is now.
func (s *supervisor) noteGPU(g gpuState) {
	died := s.gpu.opened && g.losses > s.gpu.losses
	s.gpu = g
	if g.err != nil {
		s.wish.ending = true // no process was started
		return
	}
	if s.serverless {
		if s.serverless = !died; s.serverless && !s.asking {
			s.ask(key{})
		}
	}
	if died {
		s.dying = time.Time{}
		s.loseAll(key{}, "the MPS server died")
		for _, c := range s.processes {
			// None of them has done it, and none need say so first.
			if !c.lost && !c.failed.IsZero() {
				c.lost, c.blameless = true, true
			}
		}
	}
	for pid := range s.releasing {
		if !s.device.follows(pid) {
			delete(s.releasing, pid)
		}
	}
}

// onDevice tells a process that is to be started of the GPU.
func (s *supervisor) onDevice(sp *spec) {
	if !s.onGPU() {
		return
	}
	sp.start.Device, sp.start.GroupSMs = s.gpu.uuid, s.gpu.groupSMs
	environment := maps.Clone(sp.environment)
	if environment == nil {
		environment = map[string]string{}
	}
	maps.Copy(environment, s.gpu.environment)
	sp.environment = environment
}

// wakesHeld says why nobody may be woken now; empty where nothing speaks against it.
//
// A process that has just ended delays a wake only where the memory that it held
// is needed: while as much as all of them held is free anyway, a recovery does not
// wait for them.
func (s *supervisor) wakesHeld() string {
	if !s.onGPU() {
		return ""
	}
	switch {
	case s.asking:
		return "asks the MPS server how it is"
	case s.serverless, s.now().Before(s.dying):
		return "waits for MPS: the server died"
	case !s.gpu.serving:
		return s.gpu.idle
	}
	var bytes int64
	for pid, r := range s.releasing {
		if !s.now().Before(r.until) {
			delete(s.releasing, pid)
			continue
		}
		bytes += r.bytes
	}
	if bytes > 0 && s.gpu.freeBytes >= 0 && bytes > s.gpu.freeBytes {
		return fmt.Sprintf("waits until %d MiB of processes that ended are free", bytes>>20)
	}
	return ""
}

// wakesHeldUntil is when to look again; zero: a change of the device will tell.
func (s *supervisor) wakesHeldUntil() time.Time {
	var first time.Time
	if s.wakesHeld() == "" {
		return first
	}
	if s.now().Before(s.dying) {
		first = s.dying
	}
	for _, r := range s.releasing {
		if first.IsZero() || r.until.Before(first) {
			first = r.until
		}
	}
	return first
}

// place completes an order with where to run.
func (s *supervisor) place(c *child, o *control.Order) {
	o.SMGroups, o.Early = c.desired.SMGroups, c.desired.Early && o.Do == control.DoWake
	c.groups, c.ordered = o.SMGroups, s.now()
	c.moving = o.Do == control.DoShare || len(o.SMGroups) > 0
	if o.Do == control.DoWake && len(o.SMGroups) == 0 && o.SharePercent > 0 && s.together() {
		o.Environment = map[string]string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percentage(o.SharePercent)}
	}
}

// regroup tells a process that is awake its terms and its groups. A process that sleeps
// learns them when it is woken, and one that moves learns other groups when it is there.
func (s *supervisor) regroup(k key, c *child) {
	c.terms = termsOf(c.desired)
	if !c.woken {
		return
	}
	o := s.orderOf(k, c, control.DoShare)
	o.SMGroups = c.groups
	switch {
	case !c.moving && !slices.Equal(c.groups, c.desired.SMGroups):
		s.place(c, &o)
	case c.terms.level == budget.Demoted:
		return // MPS keeps a percentage for the process's life
	}
	s.order(k, c, o)
}

// noteBatches takes which batch sizes a process says that it runs. Its time to move
// begins when it has all of them.
func (s *supervisor) noteBatches(c *child, n control.Notice) {
	if len(n.Batches) == 0 {
		return
	}
	c.notice.Batches = n.Batches
	switch {
	case n.Growing && c.growing.IsZero():
		c.growing = s.now()
	case !n.Growing && !c.growing.IsZero():
		c.growing, c.ordered = time.Time{}, s.now()
	}
}

// notePlace takes where a process says that it is.
func (s *supervisor) notePlace(k key, c *child, n control.Notice) {
	if n.SMs == 0 {
		return
	}
	c.notice.SMs, c.at, c.unfit = n.SMs, n.SMGroups, n.GroupsUnfit
	switch {
	case slices.Equal(c.at, c.groups):
		c.moving = false
	case c.moving && n.Reason != "":
		// It could not move, and says why. The order is not repeated.
		c.moving = false
		s.about(s.log.Error(), k).Ints("groups", c.groups).Ints("stays_on", c.at).Str("reason", c.notice.Reason).Msg("process does not move")
	}
	c.mismatch = s.mismatched(c)
	if c.mismatch != "" && c.mismatch != c.complained {
		c.complained = c.mismatch
		s.about(s.log.Warn(), k).Str("why", c.mismatch).Msg("process has other multiprocessors than promised")
	}
}

// mismatched says what a process has in place of what it was promised.
func (s *supervisor) mismatched(c *child) string {
	if len(c.at) == 0 && !s.together() {
		return "" // by time it has all of them
	}
	percent := c.wokenPercent
	if percent == 0 {
		percent = 100 // no share: MPS's default
	}
	least, most := promisedSMs(s.gpu.foundGPU, c.at, percent)
	switch n := c.notice.SMs; {
	case least <= n && n <= most:
		return ""
	case len(c.at) > 0:
		return fmt.Sprintf("it counts %d multiprocessors where groups %v are %d", n, c.at, least)
	default:
		return fmt.Sprintf("it counts %d multiprocessors where %g %% of %d are %d to %d", n, percent, s.gpu.sms, least, most)
	}
}

// lose takes a process's word that its device failed.
func (s *supervisor) lose(k key, c *child) {
	switch {
	case !c.failed.IsZero(), !s.together():
		// One of all that were lost; or, by time, a context of its own.
		c.lost = true
	case c.blameless:
		// Until the server's end is seen, some 50 ms later, the daemon believes it well.
		s.dying = s.now().Add(dyingAtMost)
		s.loseAll(k, c.lastWords)
	case c.notice.SMs > 0:
		s.loseAll(k, c.lastWords)
	default:
		// It may never have had the device: then that is its own failure, and the
		// others are well. The server knows.
		s.ask(k)
	}
}

// ask asks the MPS server how it is, on behalf of a process or, with the zero key, of
// those that are to be woken.
func (s *supervisor) ask(k key) {
	d := s.device
	s.closing.Go(func() {
		ctx, cancel := s.clock.WithTimeout(context.Background(), verdictTimeout)
		defer cancel()
		v := verdict{k, d.health(ctx)}
		select {
		case s.verdicts <- v:
		case <-s.over:
		}
	})
}

func (s *supervisor) noteVerdict(v verdict) {
	switch {
	case v.key == (key{}):
		// Gone: the device's state sees the server's end a little later, and then tells
		// of another. A process that is woken before that would be refused.
		s.asking, s.serverless = false, v.health == mps.Gone
	case v.health != mps.Well && s.onGPU():
		s.loseAll(v.key, "the MPS server has failed")
	}
}

// loseAll marks every process that has touched the device as lost, and first as the
// one that said so. What is woken from now on is not.
func (s *supervisor) loseAll(first key, why string) {
	n := 0
	for _, c := range s.processes {
		if c.process != nil && c.woken && !c.state.Ended() && c.failed.IsZero() {
			c.failed = s.now()
			n++
		}
	}
	if c := s.processes[first]; c != nil {
		c.lost = true
	}
	if first != (key{}) && s.together() && !s.asking && !s.now().Before(s.dying) {
		s.asking = true
		s.ask(key{})
	}
	e := s.log.Error().Int("processes", n).Str("why", why)
	if first != (key{}) {
		e = s.about(e, first)
	}
	e.Msg("the GPU failed under all its processes")
}

// release notes that a process of the GPU has ended.
func (s *supervisor) release(c *child) {
	if !c.failed.IsZero() {
		c.lost = true
	}
	if c.process == nil || !c.woken {
		return
	}
	pid := c.process.pid()
	s.releasing[pid] = release{
		bytes: c.notice.PersistentBytes + c.notice.EphemeralBytes + contextBytes,
		until: s.now().Add(releaseTimeout),
	}
	s.device.follow(pid)
}

// observeGPU tells the manager of the device.
func (s *supervisor) observeGPU(o *control.Observed) {
	switch {
	case !s.gpu.opened, s.gpu.err != nil:
		o.Mechanism = ""
	case s.gpu.cpu:
	default:
		o.Mechanism, o.Device = s.gpu.mechanism, s.gpu.observed()
		o.Device.Weights = s.weights.state()
	}
}

// observeChild tells the manager where a process is.
func (s *supervisor) observeChild(k key, c *child, q *control.ObservedProcess) {
	q.SMs, q.DeviceLost, q.Blameless, q.GroupsUnfit = c.notice.SMs, c.lost, c.lost && c.blameless, c.unfit
	switch {
	case c.state.Ended(): // on nothing any more
		return
	case c.woken && (c.moving || c.at == nil):
		q.SMGroups = union(c.at, c.groups)
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
	return s.wish.desired != nil && slices.ContainsFunc(s.wish.desired.Processes, func(p control.DesiredProcess) bool {
		return keyOf(p) == k && p.Role == control.Serve
	})
}
