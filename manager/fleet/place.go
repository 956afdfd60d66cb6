package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/manager/policy/placement"
)

// An instance runs on one device at a time. Its move to another one is a swap, like a new model:
//
//	process on the old device serves ──a shadow on the new one is ready──> epoch ──> the old process drains
//	                                 └─it cannot serve──> the old process continues
//
// Meanwhile both devices count the instance, each with the share that it gives it there. The queue with its waiting
// requests stays.
//
// A device that is lost ends all processes there. Its instances move at once; they start from scratch, because no shadow
// is elsewhere. Those without room on another device are held until there is room, or until the device returns.
//
// A function whose number of instances is not configured begins with one. If a device is overloaded while another is
// not, package placement moves an instance there or adds one. Instances are added and removed at the end of the list:
//
//	grow ──its first process serves──> it gets requests
//	shrink ──it gets no more, and passes on those that wait──> its processes drain ──> dropInstance

// place returns the device for another instance of a function. The function may use it, and it has room. It has the fewest
// of the function's instances; on ties, most of its time left; then, the fewest instances of all functions.
func (fl *Fleet) place(c configs.Function) (best *device, err error) {
	var full []string
	allowed, f := fl.cfg.DevicesOf(&c), fl.functions.find(c.Name)
	if len(allowed) > 1 { // else all of its instances must fit
		c.Instances = 1
	}
	own := func(d *device) (n int) {
		if f != nil {
			for _, in := range f.instances {
				if in.device() == d {
					n++
				}
			}
		}
		return n
	}
	for _, d := range fl.devices {
		if !slices.Contains(allowed, d.Device.Name) {
			full = append(full, d.Device.Name+": not in its devices")
			continue
		}
		if err = d.fits(c); err != nil {
			full = append(full, fmt.Sprintf("%s: %v", d.Device.Name, err))
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(own(best), own(d)), cmp.Compare(d.Left(), best.Left()), cmp.Compare(best.Members(), d.Members())) > 0 {
			best = d
		}
	}
	switch {
	case best != nil:
		return best, nil
	case len(fl.devices) > 1:
		err = fmt.Errorf("it fits on no device: %s", strings.Join(full, "; "))
	}
	return nil, err
}

// fits returns an error if there is no room for another instance of a function on the device.
func (d *device) fits(c configs.Function) error {
	if d.lost != "" {
		return fmt.Errorf("device is lost: %s", d.lost)
	}
	s := d.snapshot(nil, occasion{})
	return d.Fits(&s, c)
}

// move begins to move an instance to another device.
func (in *instance) move(to *device) error {
	if err := in.makeTensors(pair.Run{Card: in.pair.Card(), Device: to.Device.Name}); err != nil {
		return err
	}
	in.log.Info().Str("from", in.pair.Device()).Str("device", to.Device.Name).Msg("instance moves to another device")
	in.pair.Move(to.Device.Name)
	in.fleet.decide(occasion{}) // it has a share there before its first process
	return nil
}

// noteLoss records whether the device can run anything.
func (d *device) noteLoss(why string) {
	switch {
	case d.lost == "" && why != "":
		d.log.Error().Str("device", d.Device.Name).Str("reason", why).Msg("device is lost; its functions move to other devices")
	case d.lost != "" && why == "":
		d.log.Warn().Str("device", d.Device.Name).Msg("device is back")
	}
	d.lost = why
}

// rescue moves the instances of lost devices to others, those of the highest priority first.
func (fl *Fleet) rescue() {
	var lost []*instance
	fl.functions.eachInstance(func(in *instance) {
		if in.device().lost != "" && !in.f.removing {
			lost = append(lost, in)
		} else {
			in.unplaced = ""
		}
	})
	slices.SortStableFunc(lost, func(a, b *instance) int { return cmp.Compare(b.f.config.Priority, a.f.config.Priority) })
	for _, in := range lost {
		to, err := fl.place(in.f.config)
		if err == nil {
			err = in.move(to)
		}
		if err == nil {
			in.unplaced = ""
			continue
		}
		in.queue.PassOn() // to instances on other devices
		if in.unplaced == "" {
			in.log.Error().Err(err).Msg("instance is held: its device is lost")
		}
		in.unplaced = err.Error()
	}
	for _, d := range fl.devices {
		if d.lost != "" {
			d.eachInstance(func(in *instance) { in.pair.Leave(d.Device.Name) })
		}
	}
	for _, f := range fl.functions {
		f.applyHolds()
	}
}

// applyHolds lets processes serve, unless the function is held back or their instance has no device. If none may serve, the
// port refuses requests.
func (f *function) applyHolds() {
	refuses := true
	for _, in := range f.instances {
		held := in.held() != ""
		if in.pair.Held() != held {
			in.pair.Hold(held)
		}
		refuses = refuses && held
	}
	if f.removing || refuses == f.refuses {
		return
	}
	if f.refuses = refuses; refuses {
		f.port.Drain()
	} else {
		f.port.Resume()
	}
}

// held returns why no process of the instance may serve; empty: they may.
func (in *instance) held() string { return cmp.Or(in.f.held, in.unplaced) }

// held returns why an instance may not serve; empty: all may.
func (list instances) held() string {
	for _, in := range list {
		if why := in.held(); why != "" {
			return why
		}
	}
	return ""
}

// grow adds an instance on a device.
func (f *function) grow(on *device) error {
	n := len(f.instances)
	if err := f.port.SetQueues(n + 1); err != nil {
		return err
	}
	in, err := newInstance(f, n, on)
	if err != nil {
		return errors.Join(err, f.port.SetQueues(max(1, n)))
	}
	f.instances = append(f.instances, in)
	return nil
}

// shrink begins to remove the last instance.
func (f *function) shrink() {
	last := len(f.instances) - 1
	in := f.instances[last]
	in.leaving = true
	in.remove()
	if err := f.port.SetQueues(last); err != nil {
		in.log.Error().Err(err).Msg("cannot close queue")
	}
}

// dropInstance removes the last instance if it is leaving, and its processes have ended.
func (f *function) dropInstance() {
	last := len(f.instances) - 1
	in := f.instances[last]
	if f.removing || !in.leaving || !in.pair.Removed() {
		return
	}
	in.queue.PassOn() // what its processes have left
	in.close()
	f.instances = f.instances[:last]
	in.log.Info().Msg("instance removed")
	f.fleet.keep()
}

// joining reports whether the instance was added to a function that serves, and has not served yet.
func (in *instance) joining() bool { return in.ran == nil && in.id.Instance >= in.f.config.Instances }

// rebalance carries out what package placement decides about the rates and needs of now.
func (fl *Fleet) rebalance() {
	if len(fl.devices) == 1 || !fl.cfg.Guarantees() || fl.draining || fl.placing != nil {
		return
	}
	var devices []placement.Device
	for _, d := range fl.devices {
		if d.lost == "" && d.Device.Known {
			devices = append(devices, placement.Device{Name: d.Device.Name, NeedsPercent: d.NeedsPercent()})
		}
	}
	var functions []placement.Function
	for _, f := range fl.functions {
		if !f.removing && !f.fixed && f.instances.held() == "" {
			functions = append(functions, f.placement())
		}
	}
	a, ok := fl.placements.Decide(time.Since(fl.started), devices, functions)
	if !ok {
		return
	}
	f := fl.functions.find(a.Function)
	var err error
	switch a.Kind {
	case placement.Add:
		f.log.Info().Str("device", a.Device).Msg("device is overloaded; adding an instance on another one")
		if err = f.grow(fl.device(a.Device)); err == nil {
			fl.decide(occasion{})
		}
	case placement.Move:
		err = f.instances[a.Instance].move(fl.device(a.Device))
	case placement.Remove:
		f.log.Info().Str("device", a.Device).Msg("other instances have time for all requests; removing the last one")
		f.shrink()
	}
	fl.keep()
	if err != nil {
		f.costs[a.Device] = math.Inf(1)
		f.log.Error().Err(err).Str("device", a.Device).Msg("cannot run another instance on the device")
	}
}

// placement describes the function for package placement, and removes an instance that cannot join it.
func (f *function) placement() placement.Function {
	p := placement.Function{
		Name: f.name, Allowed: f.fleet.cfg.DevicesOf(&f.config), Cost: f.costs,
		Fixed:    f.config.Instances > 1 || len(f.model.desired.State) > 0 || f.worker != "",
		Changing: f.model.replacing != nil || f.trial.running(),
	}
	for _, in := range f.instances {
		d := in.device()
		u, _ := d.Use(in.id)
		if u.Cost > 0 {
			f.costs[d.Device.Name] = u.Cost.Seconds()
		}
		if in.joining() && !in.leaving && in.failures.count > 0 {
			in.log.Error().Str("device", d.Device.Name).Str("reason", in.failures.reason).Msg("instance cannot start; removing it")
			f.costs[d.Device.Name] = math.Inf(1)
			f.shrink()
		}
		p.Changing = p.Changing || in.leaving || in.joining() || in.moving()
		p.Instances = append(p.Instances, placement.Instance{Device: d.Device.Name, NeedPercent: wholePercent * u.Need, Behind: u.Behind})
	}
	return p
}

// wholePercent is all of a device's time.
const wholePercent = 100

// moving reports whether an instance has processes on another device.
func (in *instance) moving() bool {
	return slices.ContainsFunc(in.pair.Processes(), func(q *pair.Process) bool { return q.Device != in.pair.Device() })
}
