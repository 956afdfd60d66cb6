package orchestrator

import (
	"errors"
	"slices"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/orchestrator/gpu"
)

// How a process gets its part of the device:
//
//  1. The manager's message has its terms (control.Terms). plan orders wake or reshare if they
//     have changed.
//  2. share (wake) and reshare keep them in the child, and limit enforces them: on CPUs by a control
//     group and the process's priority (shares.go, budget.go), on a GPU libml does.
//  3. order sends them to the process.

// reshare applies changed terms and groups.
func (s *supervisor) reshare(k key, c *child) {
	if c.device.onGPU() {
		s.regroup(k, c)
	} else {
		s.share(k, c, control.DoShare)
	}
}

// share writes the desired share, and sends it to a process that is awake.
func (s *supervisor) share(k key, c *child, do control.OrderKind) {
	c.terms = c.desired.Terms
	s.limit(k, c)
	if c.woken {
		o := s.orderOf(k, c, do)
		if c.device.onGPU() {
			s.place(c, &o)
			c.wokenPercent = c.terms.SharePercent
		}
		s.order(k, c, o)
	}
}

// regroup sends an awake process its terms and its groups. A sleeping process gets them
// when it is woken. A moving process gets other groups after it has arrived.
func (s *supervisor) regroup(k key, c *child) {
	c.terms = c.desired.Terms
	if !c.woken {
		return
	}
	o := s.orderOf(k, c, control.DoShare)
	o.SMGroups = c.groups
	switch {
	case !c.moving && !slices.Equal(c.groups, c.desired.SMGroups):
		s.place(c, &o)
	case c.terms.Level == budget.Demoted:
		return // MPS keeps a percentage for the process's life
	}
	s.order(k, c, o)
}

// place adds the process's place to an order.
func (s *supervisor) place(c *child, o *control.Order) {
	o.SMGroups, o.PartialWarmUp = c.desired.SMGroups, c.desired.PartialWarmUp && o.Do == control.DoWake
	c.groups, c.ordered = o.SMGroups, s.now()
	c.moving = o.Do == control.DoShare || len(o.SMGroups) > 0
	if o.Do == control.DoWake && len(o.SMGroups) == 0 && o.SharePercent > 0 && c.device.sharesAtOnce() {
		o.Environment = map[string]string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": gpu.Percentage(o.SharePercent)}
	}
}

// limit holds a process to its terms on the CPUs. libml does so on a GPU, and if no control
// group can. Without a share and a guarantee, the process competes like any other process of the
// machine.
func (s *supervisor) limit(k key, c *child) {
	if c.device.onGPU() || c.terms == (control.Terms{}) {
		return
	}
	enforced, err := s.o.shares.Apply(c.limited(k), c.process.pid(), c.terms)
	if err != nil && !c.governor {
		// The process may have just ended. Then its exit has the better reason.
		s.addProcess(s.log.Warn(), k).Err(err).Msg("cannot make a control group for the process; it limits itself")
	}
	c.governor = !enforced
}

// limited is what a process's terms limit: itself, or its worker.
func (c *child) limited(k key) string {
	if c.desired.Worker == "" {
		return k.id()
	}
	if m, ok := c.process.(*member); ok {
		return workerKey(m.saved.Worker, m.saved.Generation).id() // the key that it was started with
	}
	return workerKey(c.desired.Worker, uint32(c.process.pid())).id()
}

// unlimit removes what limit made for a process that has ended. A worker's limits stay until its
// last member has ended.
func (s *supervisor) unlimit(k key, c *child) {
	limited := c.limited(k)
	for other, o := range s.processes {
		if other != k && o.process != nil && !o.state.Ended() && o.limited(other) == limited {
			return
		}
	}
	if err := s.o.shares.Remove(limited); err != nil {
		s.addProcess(s.log.Warn(), k).Err(err).Msg("cannot remove share")
	}
}

// noteYields tells processes with a used-up balance to limit themselves, and other
// processes to stop doing so.
func (s *supervisor) noteYields() {
	for _, k := range sortedKeys(s.processes) {
		if c := s.processes[k]; c.woken && !c.state.Ended() && c.yields != s.o.shares.Yielding(c.limited(k)) {
			s.order(k, c, s.orderOf(k, c, control.DoShare))
		}
	}
}

// orderOf returns an order with the process's terms.
func (s *supervisor) orderOf(k key, c *child, do control.OrderKind) control.Order {
	o := control.Order{
		Do: do, SharePercent: c.terms.SharePercent, Governor: c.governor,
		GuaranteePercent: c.terms.GuaranteePercent, Level: c.terms.Level, MaxBatch: c.terms.MaxBatch,
	}
	if c.yields = s.o.shares.Yielding(c.limited(k)); c.yields {
		o.SharePercent = o.GuaranteePercent
	}
	return o
}

// order sends an order to a process, and kills a process that does not take it.
func (s *supervisor) order(k key, c *child, o control.Order) {
	err := c.process.order(o)
	switch {
	case errors.Is(err, control.ErrHungUp):
		// Its exit comes as an event with the reason.
		c.hungUp = s.now()
		s.addProcess(s.log.Debug(), k).Err(err).Str("order", string(o.Do)).Msg("cannot deliver order: process closed its link")
	case err != nil:
		// A process that hangs would ignore the next order as well.
		s.addProcess(s.log.Warn(), k).Err(err).Str("order", string(o.Do)).Msg("cannot send order to process; killing it")
		s.kill(k, c, "cannot send orders: "+err.Error(), "")
	}
}
