package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/manager/policy/pair"
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

// place returns the device for another function: of those that it may use with room for it, the one with most left, or
// else the fewest instances.
func (fl *Fleet) place(c configs.Function) (best *device, err error) {
	var full []string
	allowed := fl.cfg.DevicesOf(&c)
	for _, d := range fl.devices {
		if !slices.Contains(allowed, d.Device.Name) {
			full = append(full, d.Device.Name+": not in its devices")
			continue
		}
		if err = d.fits(c); err != nil {
			full = append(full, fmt.Sprintf("%s: %v", d.Device.Name, err))
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(d.Left(), best.Left()), cmp.Compare(best.Members(), d.Members())) > 0 {
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

// fits returns an error if there is no room for another function on the device.
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
		c := in.f.config
		c.Instances = 1
		to, err := fl.place(c)
		if err == nil {
			err = in.move(to)
		}
		if err == nil {
			in.unplaced = ""
			continue
		}
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
