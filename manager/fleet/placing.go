package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
)

// An order of placement is carried out in this order, so that the functions have the old instances until the new ones
// serve:
//
//	spread: instances move or are added ──all serve──> settle: those too many leave ──none is left──> the order ends
//	                                     └─one cannot──> spread: everything as it was before
//
// One order is carried out at a time. Functions that it has placed stay there: package placement leaves them alone.

// placed is an instance as an order wants it.
type placed struct {
	Device string `json:"device"`
	// SharePercent is the share or the guarantee that it keeps; 0: as its function.
	SharePercent float64 `json:"share_percent,omitempty"`
}

// placing is an order of placement that is being carried out. The control loop owns it.
type placing struct {
	functions []placedFunction
	err       error // why everything becomes as it was before; nil while that may not be necessary
	done      func(error)
}

// placedFunction is a function of an order.
type placedFunction struct {
	*function
	// want are its instances, before those that it had; none: the function is to be removed, or did not exist.
	want, before []placed
}

// Place gives functions the instances of an order. It checks the whole order before it changes anything.
func (fl *Fleet) Place(o control.PlacementOrder) (Order, error) {
	if fl.draining {
		return Order{}, ErrStopped
	}
	if fl.placing != nil {
		return Order{}, errors.New("place functions: " + control.PlacementRuns)
	}
	wants, err := fl.checkPlacement(&o)
	if err != nil {
		return Order{}, fmt.Errorf("place functions: %w", err)
	}
	order, done := newOrder(fmt.Sprintf("%d functions placed", len(o.Functions)))
	p := &placing{done: done}
	fl.placing = p
	for i := range o.Functions {
		c := &o.Functions[i]
		f := fl.functions.find(c.Name)
		if f == nil && len(wants[i]) == 0 {
			continue
		}
		placed := placedFunction{function: f, want: wants[i]}
		if f != nil {
			placed.want, placed.before = f.align(wants[i]), f.placed()
		} else if err = fl.add(functionOf(c), 0); err == nil {
			placed.function = fl.functions.find(c.Name)
			placed.trial = &trial{end: func(error) {}}
		} else {
			break
		}
		p.functions = append(p.functions, placed)
	}
	for _, f := range p.functions {
		if len(f.want) > 0 && err == nil {
			err = f.spread(f.want)
		}
	}
	if err != nil {
		p.fail(err)
	}
	return order, nil
}

// functionOf is the function that an order adds.
func functionOf(c *control.FunctionPlacement) configs.Function {
	return configs.Function{Name: c.Name, Model: c.Model, SLO: c.SLO, Port: c.Port, Instances: 1}
}

// checkPlacement returns the instances that an order wants of each function, or what cannot be done.
func (fl *Fleet) checkPlacement(o *control.PlacementOrder) (wants [][]placed, err error) {
	percent := map[string]float64{} // by device
	names := map[string]bool{}
	for i := range o.Functions {
		c := &o.Functions[i]
		if names[c.Name] {
			return nil, fmt.Errorf("function %s is named twice; want each once", c.Name)
		}
		names[c.Name] = true
		want, err := fl.segments(c)
		if err == nil {
			err = fl.checkPlaced(c, want)
		}
		if err != nil {
			return nil, fmt.Errorf("function %s: %w", c.Name, err)
		}
		for _, in := range want {
			percent[in.Device] += in.SharePercent
		}
		wants = append(wants, want)
	}
	for _, f := range fl.functions {
		if !names[f.name] {
			for _, in := range f.placed() {
				percent[in.Device] += cmp.Or(in.SharePercent, f.byHand, f.config.SharePercent)
			}
		}
	}
	for _, d := range fl.devices {
		if all := percent[d.Device.Name]; all > wholePercent {
			return nil, fmt.Errorf("the shares on device %s are %v %% together, want at most 100 %%", d.Device.Name, all)
		}
	}
	return wants, nil
}

// segments converts the segments of a function to instances.
func (fl *Fleet) segments(c *control.FunctionPlacement) (want []placed, err error) {
	shares := map[string]float64{}
	for _, s := range c.Segments {
		share, twice := shares[s.Device]
		switch {
		case !fl.has(s.Device):
			return nil, fmt.Errorf("device %q is not one of the node's, which are %v", s.Device, fl.cfg.DeviceNames())
		case fl.device(s.Device) != nil && fl.device(s.Device).lost != "":
			return nil, fmt.Errorf("device %s is lost: %s", s.Device, fl.device(s.Device).lost)
		case s.Processes < 1 || s.Processes > configs.MaxInstances-len(want):
			return nil, fmt.Errorf("%d processes on device %s; want at least 1, and at most %d on all devices", s.Processes, s.Device, configs.MaxInstances)
		case !(s.SharePercent >= 0 && s.SharePercent <= wholePercent):
			return nil, fmt.Errorf("a share of %v %% on device %s; want 0 to 100", s.SharePercent, s.Device)
		case twice && share != s.SharePercent:
			return nil, fmt.Errorf("shares of %v and %v %% on device %s; want one for all its instances there", share, s.SharePercent, s.Device)
		}
		shares[s.Device] = s.SharePercent
		want = append(want, slices.Repeat([]placed{{s.Device, s.SharePercent}}, s.Processes)...)
	}
	return want, nil
}

// has reports whether the node has a device, or may have it: plans of a node with `mig: manage` make MIG instances.
func (fl *Fleet) has(name string) bool {
	return fl.device(name) != nil || fl.cfg.MIG == configs.MIGManage && len(fl.cfg.Devices) > 0 && strings.HasPrefix(name, "MIG-")
}

// obtain adds a device that the node does not have yet. It reports whether the node has it now.
func (fl *Fleet) obtain(name string) bool {
	if fl.device(name) == nil && fl.has(name) {
		fl.newDevice(name)
		fl.device(name).made = true
		fl.cfg.Devices = append(slices.Clone(fl.cfg.Devices), configs.DeviceName(name))
	}
	return fl.device(name) != nil
}

// dropDevices drops the devices that were made for orders, and that no instance uses any more, so that they can be destroyed.
func (fl *Fleet) dropDevices() {
	fl.devices = slices.DeleteFunc(fl.devices, func(d *device) bool {
		if !d.made || slices.ContainsFunc(fl.functions, func(f *function) bool { return f.instances.on(d) }) {
			return false
		}
		d.Sharing.Close()
		fl.cfg.Devices = slices.DeleteFunc(slices.Clone(fl.cfg.Devices), func(n configs.DeviceName) bool { return string(n) == d.Device.Name })
		return true
	})
}

// checkPlaced returns an error if a function cannot have these instances.
func (fl *Fleet) checkPlaced(c *control.FunctionPlacement, want []placed) (err error) {
	f, config, card := fl.functions.find(c.Name), functionOf(c), (*models.Card)(nil)
	switch {
	case f != nil:
		config, card = f.config, f.model.desired
	case len(want) == 0:
		return nil
	default:
		if card, err = fl.checked(config); err != nil {
			return err
		}
	}
	allowed := fl.cfg.DevicesOf(&config)
	for _, in := range want {
		if len(config.Devices) > 0 && !slices.Contains(allowed, in.Device) {
			return fmt.Errorf("it may not use device %s; want one of %v, as its configuration says", in.Device, allowed)
		}
	}
	switch {
	case len(card.State) > 0 && len(want) > 1:
		return fmt.Errorf("model %s has state, which only one process can keep; want one", card.Name)
	case f == nil:
	case f.removing, f.model.replacing != nil, f.trial.running(), slices.ContainsFunc(f.instances, func(in *instance) bool { return in.leaving || in.moving() }):
		return errors.New("another change of it has not ended; try again later")
	case f.worker != "" && len(want) > 0:
		return fmt.Errorf("worker %s hosts it; run `penstock if move %s --own` first", f.worker, f.name)
	case c.Model != "" && c.Model != cmp.Or(f.config.Model, f.name):
		return fmt.Errorf("it runs model %s, and the order wants %s; run `penstock if replace` first", cmp.Or(f.config.Model, f.name), c.Model)
	case c.SLO != 0 && c.SLO != f.slo:
		return fmt.Errorf("its objective is %v, and the order wants %v; change its `slo` first", f.slo, c.SLO)
	case c.Port != 0 && c.Port != f.port.LocalAddr().Port():
		return fmt.Errorf("it has port %d, and the order wants %d; remove it first", f.port.LocalAddr().Port(), c.Port)
	}
	return nil
}

// placed returns the instances of the function as they should be now.
func (f *function) placed() (list []placed) {
	for _, in := range f.instances {
		if !in.leaving {
			list = append(list, placed{in.pair.Device(), in.percent})
		}
	}
	return list
}

// align orders wanted instances so that few of the present ones move.
func (f *function) align(want []placed) []placed {
	aligned, rest := make([]placed, len(want)), slices.Clone(want)
	for i := range aligned {
		if i < len(f.instances) {
			device := f.instances[i].pair.Device()
			if at := slices.IndexFunc(rest, func(p placed) bool { return p.Device == device }); at >= 0 {
				aligned[i] = rest[at]
				rest = slices.Delete(rest, at, at+1)
			}
		}
	}
	for i := range aligned {
		if aligned[i].Device == "" {
			aligned[i], rest = rest[0], rest[1:]
		}
	}
	return aligned
}

// spread puts the instances of a function on devices. It adds those that are missing.
func (f *function) spread(want []placed) (err error) {
	for i, w := range want {
		switch {
		case !f.fleet.obtain(w.Device):
			err = errors.Join(err, fmt.Errorf("device %s is not one of the node's", w.Device))
			continue
		case i >= len(f.instances):
			if e := f.grow(f.fleet.device(w.Device)); e != nil {
				return errors.Join(err, e)
			}
		case f.instances[i].pair.Device() != w.Device:
			err = errors.Join(err, f.instances[i].move(f.fleet.device(w.Device)))
		}
		f.instances[i].percent = w.SharePercent
	}
	f.fleet.decide(occasion{})
	return err
}

// fail makes the order undo what it has done.
func (p *placing) fail(err error) {
	p.err = err
	for i := range p.functions {
		f := &p.functions[i]
		if f.want = f.before; f.removing {
			continue
		}
		if err := f.spread(f.want); err != nil {
			f.log.Error().Err(err).Msg("cannot put the function back to its devices")
		}
	}
}

// advancePlacing takes the next step of the order that is being carried out.
func (fl *Fleet) advancePlacing() {
	p := fl.placing
	if p == nil {
		return
	}
	ends := true
	for i := range p.functions {
		serves, err := p.functions[i].serves()
		if err != nil && p.err == nil {
			p.fail(err)
		}
		ends = ends && serves
	}
	if p.err == nil && !ends {
		return
	}
	ends = true
	for i := range p.functions {
		f := &p.functions[i]
		f.fixed = f.fixed || p.err == nil
		ends = f.settle() && ends
	}
	if fl.draining && !ends {
		p.err, ends = ErrStopped, true
	}
	if ends {
		fl.placing = nil
		fl.dropDevices()
		fl.keep()
		p.done(p.err)
	}
}

// serves reports whether all wanted instances serve. The error says why one cannot.
func (f *placedFunction) serves() (all bool, err error) {
	switch {
	case f.trial.failed():
		return false, fmt.Errorf("place function %s: it cannot serve: %s", f.name, f.trial.failure)
	case f.removing && len(f.want) > 0:
		return false, fmt.Errorf("place function %s: it was removed", f.name)
	}
	all = true
	for i, w := range f.want {
		in := f.instances[i]
		if why := f.fleet.device(w.Device).lost; why != "" {
			return false, fmt.Errorf("place function %s: it cannot serve on device %s, which is lost: %s", f.name, w.Device, why)
		}
		if in.pair.Device() != w.Device || in.joining() && in.failures.count > 0 {
			return false, fmt.Errorf("place function %s: it cannot serve on device %s: %s", f.name, w.Device, in.failures.reason)
		}
		q := in.pair.Active()
		all = all && q != nil && q.State == control.Active && q.Device == w.Device
	}
	return all, nil
}

// settle removes the instances that are not wanted any more, and reports whether none of their processes is left.
func (f *placedFunction) settle() bool {
	fl, last := f.fleet, len(f.instances)-1
	switch {
	case !slices.Contains(fl.functions, f.function):
		return true
	case len(f.want) == 0 && !f.removing:
		_, err := fl.Remove(f.name)
		return err != nil
	case f.removing, f.instances[last].leaving:
		return false
	case last >= len(f.want):
		f.shrink()
		return false
	}
	return !slices.ContainsFunc(f.instances, (*instance).moving)
}
