package gpu

import (
	"fmt"
	"slices"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
)

// place is where slots run: on a green context's multiprocessors, or on all that
// the process has. It goes with its last lane.
type place struct {
	green *cuda.Green // nil: all
	lanes int
}

// lane is a stream at a place; the zero lane is none.
type lane struct {
	stream cuda.Stream
	place  *place
}

// close destroys the stream, and the place with its last. A stream that cannot be
// destroyed stays, for Close to try again.
func (l *lane) close(errs *closing) {
	if l.place == nil {
		return
	}
	if err := l.stream.Destroy(); err != nil {
		errs.add(err)
		return
	}
	l.place.leave(errs)
	*l = lane{}
}

// leave takes one lane off.
func (p *place) leave(errs *closing) {
	if p.lanes--; p.lanes == 0 && p.green != nil {
		errs.add(p.green.Destroy())
	}
}

// SMs is how many multiprocessors the slot's batches can use.
func (d *Device) SMs(slot int) (int, error) {
	s, err := d.slot(slot)
	if err != nil {
		return 0, fmt.Errorf("count multiprocessors of slot %d: %w", slot, err)
	}
	d.mu.Lock()
	green := s.lane.place.green
	d.mu.Unlock()
	if green != nil {
		return green.SMs(), nil
	}
	n, err := d.context.SMs()
	if err != nil {
		return 0, d.fail("count multiprocessors", err)
	}
	return n, nil
}

// Stream is the slot's CUstream.
func (d *Device) Stream(slot int) uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.slots[slot].lane.stream.Handle()
}

// Repartition makes a green context of the groups, in one to two milliseconds, and
// streams in it. Other slots are not disturbed. cuda.ErrNotSupported where the
// driver or the device has no green contexts.
func (d *Device) Repartition(slots []int, groups []int) error {
	if err := d.repartition(slots, groups); err != nil {
		return d.fail(fmt.Sprintf("move slots %v to groups %v", slots, groups), err)
	}
	return nil
}

func (d *Device) repartition(slots, groups []int) (err error) {
	for i, slot := range slots {
		s, err := d.slot(slot)
		switch {
		case err != nil:
			return err
		case slices.Contains(slots[:i], slot):
			return fmt.Errorf("%w twice", ErrSlot)
		case s.asked:
			return fmt.Errorf("slot %d: %w", slot, ErrBusy)
		}
	}
	for i, g := range groups {
		if i > 0 && g <= groups[i-1] {
			return fmt.Errorf("groups are not ascending: %v", groups)
		}
	}
	if len(slots) == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	to, err := d.newPlace(groups)
	if err != nil {
		return err
	}
	var lanes [device.Slots]lane
	var errs closing
	for i := 0; i < len(slots) && errs.first == nil; i++ {
		lanes[i], err = d.newLane(to)
		errs.add(err)
	}
	for _, slot := range slots {
		if errs.first == nil {
			d.slots[slot].before.close(&errs)
		}
	}
	if errs.first != nil {
		to.lanes++ // ours, so that it goes last
		for i := range lanes {
			lanes[i].close(&errs)
		}
		to.leave(&errs)
		return errs.first
	}
	for i, slot := range slots {
		s := &d.slots[slot]
		s.before, s.lane = s.lane, lanes[i]
		clear(s.took) // another share, other times
	}
	return nil
}

// newPlace is a green context of groups, or all multiprocessors for none.
func (d *Device) newPlace(groups []int) (*place, error) {
	p := &place{}
	if len(groups) == 0 {
		return p, nil
	}
	var err error
	if d.split == nil {
		if d.split, err = d.device.Split(d.grain); err != nil {
			return nil, err
		}
	}
	p.green, err = d.context.Green(d.split, groups)
	return p, err
}

func (d *Device) newLane(at *place) (lane, error) {
	newStream := d.context.NewStream
	if at.green != nil {
		newStream = at.green.NewStream
	}
	stream, err := newStream()
	if err != nil {
		return lane{}, err
	}
	at.lanes++
	return lane{stream, at}, nil
}
