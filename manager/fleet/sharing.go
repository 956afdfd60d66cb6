package fleet

import (
	"cmp"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/rs/zerolog"
)

// occasion is why package sharing decides.
type occasion struct {
	observed *control.Observed // a new report of the orchestrator
	counts   bool              // a tick has passed: count arrivals
	interval bool              // shares.interval has passed: take windows
}

// device is a device that functions run on. Package sharing decides how the instances there share it, and device carries
// that out. The control loop owns it.
type device struct {
	*sharing.Sharing
	cfg       *configs.Config
	functions *functions // of the node
	published *control.Desired
	started   time.Time
	log       zerolog.Logger
	seen      []sharing.Function // of the last snapshot that was decided about; the next one uses its memory
	made      bool               // for an order: it is not in the configuration
	lost      string             // why the device can run nothing any more; empty: it works
	faults    faults
}

// eachInstance calls do with the instances on the device, and those that are moving there or away.
func (d *device) eachInstance(do func(*instance)) {
	d.functions.eachInstance(func(in *instance) {
		if in.pair.On(d.Device.Name) {
			do(in)
		}
	})
}

// decide lets package sharing decide about the functions as they are now, and carries that out.
func (d *device) decide(why occasion) {
	s := d.snapshot(d.seen[:0], why)
	d.seen = s.Functions
	for _, a := range d.Decide(s) {
		d.carryOut(a)
	}
}

// snapshot describes the functions on the device, with their processes there. It uses the memory of list, up to its
// capacity.
func (d *device) snapshot(list []sharing.Function, why occasion) sharing.Snapshot {
	for _, f := range *d.functions {
		if !f.instances.on(d) {
			continue
		}
		var to *sharing.Function
		list, to = next(list)
		*to = sharing.Function{Config: f.config, Objective: f.slo, ByHand: f.byHand, Edits: f.shareEdits, Removing: f.leaves, Instances: to.Instances[:0]}
		for _, in := range f.instances {
			if !in.pair.On(d.Device.Name) {
				continue
			}
			var of *sharing.Instance
			to.Instances, of = next(to.Instances)
			p, orders := in.pair, in.ordersOn(d)
			to.ByHand = cmp.Or(in.percent, to.ByHand)
			*of = sharing.Instance{
				Number: in.id.Instance, Card: p.Card(), Worker: f.setupFor(p.Card()).worker, Share: orders.share, Last: p.Last(), Changing: p.Changing(),
				Movable: max(in.ringSince, in.batchesSince), Report: in.reported.Report, Processes: of.Processes[:0],
			}
			if q := p.Active(); q != nil && q.Device == d.Device.Name {
				of.Active = q.Generation
			}
			if why.counts {
				of.Arrivals = in.queue.Arrivals()
			}
			if why.interval {
				w := in.queue.Window()
				of.Window = &w
			}
			for _, q := range p.Processes() {
				if q.Device != d.Device.Name {
					continue
				}
				of.Processes = append(of.Processes, sharing.Process{Process: *q, Worker: f.setupFor(q.Card).worker, Groups: orders.assigned[q.Generation]})
			}
		}
	}
	s := sharing.Snapshot{
		Config: d.cfg, Now: time.Since(d.started), Running: runclock.Now(), Published: d.published, Functions: list,
		Observed: why.observed, Counted: why.counts, Interval: why.interval,
	}
	d.Judged(&s)
	return s
}

// next appends an element to a list. If the list has room, it is what was there before.
func next[T any](list []T) ([]T, *T) {
	if len(list) == cap(list) {
		list = append(list, *new(T))
	} else {
		list = list[:len(list)+1]
	}
	return list, &list[len(list)-1]
}

// carryOut carries out what package sharing has decided.
func (d *device) carryOut(a sharing.Action) {
	on := func(id gslice.ID, do func(*instance)) {
		if in := d.functions.instance(id); in != nil {
			do(in)
		}
	}
	switch a := a.(type) {
	case sharing.SetShare:
		on(a.ID, func(in *instance) {
			in.ordersOn(d).share = a.Percent
			in.followShare()
		})
	case sharing.SetTerms:
		on(a.ID, func(in *instance) { in.ordersOn(d).terms[a.Worker] = a.Terms })
	case sharing.SetGroups:
		on(a.ID, func(in *instance) { in.ordersOn(d).groups = a })
	case sharing.NextWindow:
		on(a.ID, func(in *instance) { in.queue.NextWindow() })
	case sharing.Tune:
		d.decide(occasion{interval: true})
	case sharing.Renew:
		on(a.ID, func(in *instance) { in.pair.Renew() })
	case sharing.Kill:
		on(a.ID, func(in *instance) { in.pair.Kill(a.Generation) })
	case sharing.Excuse:
		on(a.ID, func(in *instance) { in.pair.Excuse(a.Generation) })
	case sharing.Refuse:
		on(a.ID, func(in *instance) { in.pair.Wrong(a.Generation) })
	case sharing.Judge:
		d.Keep(a)
	case sharing.Open:
		d.Open(a.GPU)
	case sharing.ForgetDevice:
		d.eachInstance(func(in *instance) { in.forgetDevice(d) })
	case sharing.Log:
		log := &d.log
		if f := d.functions.find(a.ID.IF); f != nil {
			log = &f.log
		}
		on(a.ID, func(in *instance) { log = &in.log })
		log.WithLevel(a.Level).Fields(a.Fields).Msg(a.Message)
	}
}

// setByHand sets the share of each instance of a function, as an operator wants it.
func (fl *Fleet) setByHand(f *function, percent float64) error {
	for _, d := range fl.devices {
		if !f.instances.on(d) {
			continue
		}
		s := d.snapshot(nil, occasion{})
		if err := d.CheckByHand(&s, f.name, percent); err != nil {
			return err
		}
	}
	if fl.cfg.Shares.Tune && !fl.cfg.Guarantees() { // it lasts until the next tuning
		for _, in := range f.instances {
			in.device().carryOut(sharing.SetShare{ID: in.id, Percent: percent})
		}
		return nil
	}
	f.setPercent(percent)
	fl.decide(occasion{})
	return nil
}

// setPercent sets the share of each instance by hand; 0 returns to the configured one. It replaces those of orders.
func (f *function) setPercent(percent float64) {
	f.byHand = percent
	for _, in := range f.instances {
		in.percent = 0
	}
}

// device returns the device of that name; nil if the node has none.
func (fl *Fleet) device(name string) *device {
	for _, d := range fl.devices {
		if d.Device.Name == name {
			return d
		}
	}
	return nil
}

// decide lets package sharing decide about all devices.
func (fl *Fleet) decide(why occasion) {
	for _, d := range fl.devices {
		d.decide(why)
	}
}

// hosts reports whether a worker has processes, or is going to.
func (list functions) hosts(worker string) (used bool) {
	list.eachInstance(func(in *instance) {
		used = used || in.f.setupFor(in.pair.Card()).worker == worker
		for _, q := range in.pair.Processes() {
			used = used || in.f.setupFor(q.Card).worker == worker
		}
	})
	return used
}

// orders are what was decided about the processes of an instance on a device. It has no terms and no groups at first.
type orders struct {
	share    float64                  // percent; 0: the whole device
	terms    map[string]control.Terms // by worker
	groups   sharing.SetGroups
	assigned map[uint32][]int // the last groups of each generation
}

// ordersOn returns the orders for the processes of the instance on a device.
func (in *instance) ordersOn(d *device) *orders {
	o := in.orders[d.Device.Name]
	if o == nil {
		o = &orders{terms: map[string]control.Terms{}, assigned: map[uint32][]int{}}
		in.orders[d.Device.Name] = o
	}
	return o
}

// followShare gives the next process the share that was decided for its device.
func (in *instance) followShare() {
	in.pair.SetShare(in.ordersOn(in.device()).share)
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
