package fleet

import (
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/manager/sharing"
)

// traffic has measurements of the requests that pass through an instance.
type traffic interface {
	// Arrivals counts the requests since the instance was created.
	Arrivals() int
	// Window returns the window statistics so far. NextWindow begins a new window.
	Window() datapath.Window
	NextWindow()
}

// occasion is why package sharing decides.
type occasion struct {
	observed *control.Observed // a new report of the orchestrator
	counts   bool              // a tick has passed: count arrivals
	interval bool              // shares.interval has passed: take windows
}

// share lets package sharing decide about the functions as they are now, and carries out what it decides.
func (fl *Fleet) share(now time.Duration, why occasion) {
	s := fl.shareSnapshot()
	s.Now, s.Observed, s.Counted, s.Interval = now, why.observed, why.counts, why.interval
	fl.functions.eachInstance(func(in *instance) {
		d := s.Instance(in.id())
		if why.counts {
			d.Arrivals = in.traffic.Arrivals()
		}
		if why.interval {
			w := in.traffic.Window()
			d.Window = &w
		}
	})
	for _, a := range fl.sharing.Decide(s) {
		fl.carryOut(a, now)
	}
}

// reshare is share for a change of the functions.
func (fl *Fleet) reshare() { fl.share(time.Since(fl.started), occasion{}) }

// shareSnapshot describes the functions for package sharing.
func (fl *Fleet) shareSnapshot() sharing.Snapshot {
	s := sharing.Snapshot{Config: &fl.cfg, Running: runclock.Now(), Published: &fl.orchestrator.desired}
	for _, f := range fl.functions {
		d := sharing.Function{Config: f.config, Objective: f.slo, ByHand: f.byHand, Edits: f.shareEdits, Removing: f.leaves}
		for _, in := range f.instances {
			d.Instances = append(d.Instances, in.shareSnapshot())
		}
		s.Functions = append(s.Functions, d)
	}
	fl.sharing.Judged(&s)
	return s
}

// shareSnapshot describes the instance, without its traffic.
func (in *instance) shareSnapshot() sharing.Instance {
	p := in.pair
	s := sharing.Instance{
		Card: p.Card(), Worker: in.f.workerOf(p.Card()), Share: p.Share(), Last: p.Last(), Changing: p.Changing(),
		Movable: in.movable(), Report: in.reported.Report,
	}
	if q := p.Active(); q != nil {
		s.Active = q.Generation
	}
	for _, q := range p.Processes() {
		s.Processes = append(s.Processes, sharing.Process{Process: *q, Worker: in.f.workerOf(q.Card), Groups: in.orders.assigned[q.Generation]})
	}
	return s
}

// carryOut carries out what package sharing has decided.
func (fl *Fleet) carryOut(a sharing.Action, now time.Duration) {
	on := func(id gslice.ID, do func(*instance)) {
		if in := fl.functions.instance(place{id.IF, id.Instance}); in != nil {
			do(in)
		}
	}
	switch a := a.(type) {
	case sharing.SetShare:
		on(a.ID, func(in *instance) { in.setShare(a.Percent) })
	case sharing.SetTerms:
		on(a.ID, func(in *instance) { in.orders.terms[a.Worker] = a.Terms })
	case sharing.SetGroups:
		on(a.ID, func(in *instance) { in.orders.groups = a })
	case sharing.NextWindow:
		on(a.ID, func(in *instance) { in.traffic.NextWindow() })
	case sharing.Tune:
		fl.share(now, occasion{interval: true})
	case sharing.Renew:
		on(a.ID, func(in *instance) { in.pair.Renew() })
	case sharing.Kill:
		on(a.ID, func(in *instance) { in.pair.Kill(a.Generation) })
	case sharing.Excuse:
		on(a.ID, func(in *instance) { in.pair.Excuse(a.Generation) })
	case sharing.Refuse:
		on(a.ID, func(in *instance) { in.pair.Wrong(a.Generation) })
	case sharing.Judge:
		fl.sharing.Keep(a)
	case sharing.Open:
		fl.sharing.Open(a.GPU)
	case sharing.ForgetDevice:
		fl.functions.eachInstance((*instance).forgetDevice)
	case sharing.Log:
		log := &fl.log
		on(a.ID, func(in *instance) { log = &in.log })
		log.WithLevel(a.Level).Fields(a.Fields).Msg(a.Message)
	}
}

// setShare sets the desired share; 0 means no share, the whole device.
func (in *instance) setShare(percent float64) {
	in.pair.SetShare(percent)
	if percent == 0 {
		percent = 100
	}
	in.queue.SetWeight(percent)
}

// id names the instance for package sharing.
func (in *instance) id() gslice.ID { return gslice.ID{IF: in.place.name, Instance: in.place.instance} }

// change is how the function's share changes.
func (f *function) change() configs.Change { return f.fleet.sharing.Change(&f.fleet.cfg, f.config) }

// hosts reports whether a worker has processes, or is going to.
func (list functions) hosts(worker string) (used bool) {
	list.eachInstance(func(in *instance) {
		used = used || in.f.workerOf(in.pair.Card()) == worker
		for _, q := range in.pair.Processes() {
			used = used || in.f.workerOf(q.Card) == worker
		}
	})
	return used
}

// fits returns an error if there is no room for another function.
func (fl *Fleet) fits(c configs.Function) error {
	s := fl.shareSnapshot()
	return fl.sharing.Fits(&s, c)
}

// orders are what was decided about the processes of an instance. It has no terms and no groups at first.
type orders struct {
	terms    map[string]control.Terms // by worker
	groups   sharing.SetGroups
	assigned map[uint32][]int // the last groups of each generation
}

func newOrders() orders {
	return orders{terms: map[string]control.Terms{}, assigned: map[uint32][]int{}}
}

// fill adds to a desired process its role and its part of the device. A process that should serve and must wait
// for groups stays a shadow. Outside workers, a process that does not serve has no guarantee: it loads its
// model in the time that the functions leave unused.
func (o *orders) fill(p *control.DesiredProcess, q *pair.Process, cfg *configs.Config, change configs.Change) {
	p.Role = q.Role
	if change == configs.ChangePartition && q.Role != control.Shadow {
		p.SMGroups = o.assigned[q.Generation] // a process that drains keeps them
		if q.Role == control.Serve {
			if len(o.groups.Groups) == 0 || !o.groups.Starts && p.SMGroups == nil {
				p.Role, p.SMGroups = control.Shadow, nil
			} else {
				p.SMGroups = o.groups.Groups
				o.assigned[q.Generation] = p.SMGroups
			}
		}
	}
	if cfg.Guarantees() {
		p.Terms = o.terms[p.Worker]
		if p.Worker == "" && p.Role != control.Serve && p.Role != control.Drain {
			p.Terms.GuaranteePercent, p.Terms.BalanceNanos = 0, 0
		}
	}
	p.Terms.SharePercent = q.SharePercent
}
