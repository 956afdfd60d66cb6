package fleet

import (
	"cmp"
	"errors"

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

// place returns the device for another function: of those with room for it, the one with most left, or else the fewest
// instances.
func (fl *Fleet) place(c configs.Function) (best *device, err error) {
	full := make([]error, 0, len(fl.devices))
	for _, d := range fl.devices {
		if err := d.fits(c); err != nil {
			full = append(full, err)
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(d.Left(), best.Left()), cmp.Compare(best.Members(), d.Members())) > 0 {
			best = d
		}
	}
	if best == nil {
		return nil, errors.Join(full...)
	}
	return best, nil
}

// fits returns an error if there is no room for another function on the device.
func (d *device) fits(c configs.Function) error {
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
